"""A part of a view is computed again: the difference reaches the sink, and the view goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from deltalake import DeltaTable, Field, Schema

from tests.integration.spark_lab import read_delta
from tests.support import Project, eventually

TOTALS = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"
LARGE = f"{TOTALS} HAVING sum(amount) > 10"
EVERY = {"trigger": {"interval": "200ms"}}


def declare(project: Project, query: str) -> None:
    totals = {"query": query, "output": "update", "key": ["customer"], **EVERY}
    doubled = {"query": "SELECT customer, total * 2 AS total FROM totals", "key": ["customer"], **EVERY}
    sink = {"from": "doubled", "type": "delta", "connection": "lake", "path": "recomputed", **EVERY}
    shop = {
        "connections": {"lake": {"type": "files", "path": str(project.folder / "lake")}},
        "sources": {"orders": {"type": "local", "schema": "customer STRING, amount BIGINT", **EVERY}},
        "views": {"totals": totals, "doubled": doubled},
        "sinks": {"written": {**sink, "mode": "upsert", "key": ["customer"]}},
    }
    project.write("recompute", json.dumps(shop))


def add(project: Project, **amounts: int) -> None:
    project.append("orders", [{"customer": name, "amount": amount} for name, amount in amounts.items()])


def has(project: Project, **totals: int) -> None:
    """Wait until the sink's target has these totals, doubled."""
    wanted = {name: 2 * total for name, total in totals.items()}

    def target() -> dict[str, int]:
        return {row["customer"]: row["total"] for row in read_delta(project.folder / "lake" / "recomputed")}

    eventually(f"the target has {wanted}", lambda: target() == wanted)


def recompute(project: Project, where: str) -> dict[str, Any]:
    """Recompute a part of the totals. Returns the outcome."""
    (change,) = project.json("recompute", "view.totals", "--where", where, "--auto-approve")["changes"]
    outcome: dict[str, Any] = change["task"]["outcome"]
    return outcome


@pytest.mark.nightly
def test_rows_of_a_former_query_are_computed_again(project: Project) -> None:
    table = str(project.folder / "lake" / "recomputed")
    DeltaTable.create(table, Schema([Field("customer", "string"), Field("total", "long")]))
    declare(project, TOTALS)
    project.apply()
    add(project, ada=5, bob=30, cyd=2)
    has(project, ada=5, bob=30, cyd=2)
    declare(project, LARGE)
    project.apply()
    add(project, bob=1)
    has(project, ada=5, bob=31, cyd=2)

    asked = ("recompute", "view.totals", "--where", "customer < 'c'", "--auto-approve")
    done = project.run(*asked)
    assert done.returncode == 0 and "view.totals: 1 deleted, 0 changed, 0 new" in done.stdout, done
    has(project, bob=31, cyd=2)
    query = project.queries()["view.totals"]
    assert query["generation"] == 1 and query["tasks"][0]["done"]
    add(project, ada=6, cyd=1)
    has(project, ada=11, bob=31, cyd=2)
    assert recompute(project, "true") == {"deleted": 1, "changed": 0, "new": 0}
    has(project, ada=11, bob=31)
    assert recompute(project, "true") == {"deleted": 0, "changed": 0, "new": 0}
    add(project, cyd=10)
    has(project, ada=11, bob=31, cyd=13)
    assert sum("task" in step for step in project.json("steps", "view.totals")["steps"]) >= 2
    for view in ("view.totals", "view.doubled"):
        verified = project.json("verify", view)
        assert verified["difference"] is None and "foreign" not in verified, verified

    refused = project.run("recompute", "view.totals", "--where", "total > 1", "--auto-approve")
    assert refused.returncode == 64 and "MZ401" in refused.stderr + refused.stdout
