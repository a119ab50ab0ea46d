"""The runner of a current view is killed at each failpoint of a step that computes all rows with another
query, and of one that computes affected keys."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from mzplan.host.failpoints import Failpoint
from tests.faults.doomed import ASKED, SECONDS, Doomed, points
from tests.integration.spark_lab import read_delta
from tests.support import Project, eventually

EVERY = {"interval": "300ms"}
SOURCES = {
    "orders": ("id BIGINT, customer STRING, amount BIGINT", "id"),
    "customers": ("customer STRING, city STRING", "customer"),
}


class CurrentShop(Doomed):
    """Orders and customers that change, the totals of each city, and a Delta table that follows them."""

    def __init__(self, project: Project):
        super().__init__(project)
        self.rows: dict[str, dict[Any, dict[str, Any]]] = {name: {} for name in SOURCES}
        self.factor = 1

    def declare(self, factor: int) -> None:
        """The view adds up the amounts, multiplied by a factor."""
        self.factor = factor
        query = (
            f"SELECT c.city, count(*) AS n, sum(o.amount * {factor}) AS total FROM orders o JOIN customers c "
            "ON o.customer = c.customer GROUP BY c.city"
        )
        totals = {
            "query": query,
            "output": "current",
            "key": ["city"],
            "schema": "city STRING, n BIGINT, total BIGINT",
            "refresh": "incremental",
        }
        sink = {"from": "totals", "type": "delta", "connection": "disk", "path": "out"}
        shop: dict[str, Any] = {
            "connections": {"disk": {"type": "files", "path": "lake"}},
            "sources": {
                name: {"type": "local", "schema": schema, "key": [key], "trigger": EVERY}
                for name, (schema, key) in SOURCES.items()
            },
            "views": {"totals": {**totals, "trigger": EVERY}},
            "sinks": {"out": {**sink, "mode": "upsert", "key": ["city"], "trigger": EVERY}},
        }
        self.project.write("shop", json.dumps(shop))

    def change(self, name: str, *rows: dict[str, Any]) -> None:
        key = SOURCES[name][1]
        self.rows[name] |= {row[key]: row for row in rows}
        self.project.append(name, rows)

    def delete(self, name: str, key: Any) -> None:
        del self.rows[name][key]
        self.project.append(name, [{SOURCES[name][1]: key}], "--delete")

    def wanted(self) -> list[tuple[Any, ...]]:
        amounts: dict[str, list[int]] = defaultdict(list)
        for order in self.rows["orders"].values():
            if (customer := self.rows["customers"].get(order["customer"])) is not None:
                amounts[customer["city"]].append(order["amount"] * self.factor)
        return sorted((city, len(found), sum(found)) for city, found in amounts.items())

    def agrees(self) -> None:
        """Wait until the view and the table have the rows that they should have."""
        wanted = self.wanted()

        def view() -> list[tuple[Any, ...]]:
            done = self.project.run("snapshot", "view.totals", "--format", "json")
            lines = done.stdout.splitlines() if done.returncode == 0 else []
            return sorted(tuple(json.loads(line).values()) for line in lines)

        def table() -> list[tuple[Any, ...]]:
            rows = read_delta(self.project.folder / "lake" / "out")
            return sorted((row["city"], row["n"], row["total"]) for row in rows)

        eventually("the view is as it should be", lambda: view() == wanted, SECONDS)
        eventually("so is the table", lambda: table() == wanted, SECONDS)


@pytest.mark.timeout(1200)
def test_killed_at_each_failpoint_of_a_step(tmp_path: Path) -> None:
    shop = CurrentShop(Project(tmp_path / "p", "current"))
    try:
        shop.declare(1)
        runner = shop.runner()
        assert shop.project.run("apply", *ASKED).returncode == 8
        eventually("it runs", shop.is_running, SECONDS)
        shop.change("customers", *({"customer": f"c{i}", "city": f"city {i % 3}"} for i in range(6)))
        shop.change("orders", *({"id": i, "customer": f"c{i % 6}", "amount": i} for i in range(40)))
        shop.agrees()
        for number, point in enumerate(points("view")):
            shop.stop(runner)
            # Another query, while its inputs change.
            shop.declare(number + 2)
            shop.change("orders", {"id": number, "customer": "c1", "amount": 100 + number})
            dying = shop.runner(point)
            shop.project.run("apply", *ASKED)
            shop.is_killed(dying)
            runner = shop.runner()
            shop.agrees()
            if point == Failpoint.VIEW_PLANNED:
                continue
            # Affected keys only.
            shop.stop(runner)
            dying = shop.runner(point)
            shop.change("customers", {"customer": "c2", "city": f"city {number}"})
            shop.delete("orders", 10 + number)
            shop.is_killed(dying)
            runner = shop.runner()
            shop.agrees()
        status = shop.project.queries()["view.totals"]
        assert "affected key" in status["refreshed"], status
        shop.stop(runner)
        found = shop.project.json("verify", "view.totals")
        assert found["recomputed"]["equal"] and found["recomputed"]["rows"]["collection"] == len(
            shop.wanted()
        )
    finally:
        shop.close()
