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
    slow = {"trigger": {"interval": "1s"}, "max_files_per_trigger": 1}
    totals = {"query": query, "output": "update", "key": ["customer"]}
    large = {
        "query": "SELECT customer, total * 10 AS total FROM totals",
        "key": ["customer"],
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
        "sinks": {"written": {**written, "type": "delta", **EVERY}},
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


def test_a_current_view_with_another_key(project: Project) -> None:
    def declare_by(column: str) -> None:
        query = f"SELECT {column}, count(*) AS n FROM customers GROUP BY {column}"
        counts = {"query": query, "output": "current", "key": [column], **EVERY}
        schema = {"type": "local", "schema": "id BIGINT, city STRING, country STRING", "key": ["id"], **EVERY}
        project.write("current", json.dumps({"sources": {"customers": schema}, "views": {"counts": counts}}))

    declare_by("city")
    project.apply()
    places = [("Rome", "Italy"), ("Milan", "Italy"), ("Oslo", "Norway")]
    rows = [{"id": id_, "city": city, "country": country} for id_, (city, country) in enumerate(places)]
    project.append("customers", rows)
    eventually("all are counted", lambda: '"city":"Oslo"' in snapshot(project, "view.counts"))
    declare_by("country")
    project.apply("--allow-replace")
    assert {a: query["generation"] for a, query in project.queries().items()} == {
        "source.customers": 1,
        "view.counts": 2,
    }
    assert '"country":"Norway","n":1' in snapshot(project, "view.counts")
    project.append("customers", [{"id": 7, "city": "Bergen", "country": "Norway"}])
    eventually("it goes on", lambda: '"country":"Norway","n":2' in snapshot(project, "view.counts"))


def snapshot(project: Project, view: str) -> str:
    return project.run("snapshot", view, "--format", "json").stdout.replace(" ", "")
