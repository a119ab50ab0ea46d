"""A replaced view whose new generation runs beside the former one, until it has read as much."""

from __future__ import annotations

import json

from deltalake import DeltaTable, Field, Schema

from tests.integration.spark_lab import read_delta
from tests.support import Project, eventually

QUERY = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"
DOUBLED = "SELECT customer, sum(amount * 2) AS total FROM orders WHERE customer <> 'bob' GROUP BY customer"
EVERY = {"trigger": {"interval": "200ms"}}
STEPS = 5


def declare(project: Project, query: str) -> None:
    beside = {"replace": "side-by-side"}
    slow = {"trigger": {"interval": "1s"}, "max_files_per_trigger": 1}
    totals = {"query": query, "output": "update", "key": ["customer"], "lifecycle": beside}
    large = {
        "query": "SELECT customer, total * 10 AS total FROM totals",
        "key": ["customer"],
        "lifecycle": beside,
    }
    written = {
        "from": "large",
        "connection": "lake",
        "path": "written",
        "mode": "upsert",
        "key": ["customer"],
    }
    shop = {
        "connections": {"lake": {"type": "files", "path": str(project.folder / "lake")}},
        "sources": {"orders": {"type": "local", "schema": "customer STRING, amount BIGINT", **EVERY}},
        "views": {"totals": {**totals, **slow}, "large": {**large, **EVERY}},
        "sinks": {"written": {**written, "type": "delta", "on_replace": "difference", **EVERY}},
    }
    project.write("side_by_side", json.dumps(shop))


def add(project: Project, **amounts: int) -> None:
    project.append("orders", [{"customer": name, "amount": amount} for name, amount in amounts.items()])


def target(project: Project) -> dict[str, int]:
    return {row["customer"]: row["total"] for row in read_delta(project.folder / "lake" / "written")}


def test_readers_keep_the_former_generation_until_the_new_one_has_read_as_much(project: Project) -> None:
    declare(project, QUERY)
    DeltaTable.create(
        str(project.folder / "lake" / "written"),
        Schema([Field("customer", "string"), Field("total", "long")]),
    )
    project.apply()
    for number in range(STEPS):
        add(project, ada=number, bob=1)
    expected = {"ada": 10 * sum(range(STEPS)), "bob": 10 * STEPS}
    eventually("the target has all rows", lambda: target(project) == expected)

    # Bob is left out, and each sum is doubled.
    declare(project, DOUBLED)
    project.apply("--allow-replace", "--wait", "1s", code=8)
    seen = project.queries()
    assert seen["view.totals"]["generation"] == 1 and seen["view.totals@2"]["generation"] == 2
    assert seen["view.large"]["condition"] == "running" and seen["view.large"]["generation"] == 1
    assert "generation 2 runs beside it" in project.run("why", "view.totals").stdout
    # The former generation still serves: a row that arrives now is in the target at once.
    add(project, ada=100, cyd=7)
    expected |= {"ada": expected["ada"] + 1000, "cyd": 70}
    kept: list[dict[str, int]] = []
    eventually("the new row is written", lambda: kept.append(target(project)) or kept[-1] == expected)
    wanted = {"ada": 2 * expected["ada"], "cyd": 140}
    eventually("the new generation serves", lambda: kept.append(target(project)) or kept[-1] == wanted)
    # Never empty, and never half of each.
    assert all(rows in (expected, wanted) or "cyd" not in rows for rows in kept)
    eventually("nothing runs beside", lambda: not any("@" in address for address in project.queries()))
    project.apply()
    for view in ("view.totals", "view.large"):
        assert project.run("verify", view).returncode == 0
    add(project, bob=1, ada=1)
    eventually("it goes on", lambda: target(project) == {**wanted, "ada": wanted["ada"] + 20})
