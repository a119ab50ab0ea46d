"""A stateful view whose query changes while it runs: it keeps its state, mixes it, or begins again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support import Project, eventually

SCHEMA = "id BIGINT, customer STRING, amount BIGINT, tax BIGINT"
TOTALS = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"
REWRITTEN = (
    "WITH o AS (SELECT customer AS c, amount AS a FROM orders WHERE TRUE) "
    "SELECT c AS customer, sum(a) AS total FROM o GROUP BY c"
)
ABOVE = TOTALS.replace("sum(amount) AS", "sum(amount) * 10 AS")
TAXES = TOTALS.replace("sum(amount)", "sum(tax)")


def declare(project: Project, query: str, **more: Any) -> None:
    view = {
        "query": query,
        "output": "update",
        "key": ["customer"],
        "schema": "customer STRING, total BIGINT",
    }
    every = {"trigger": {"interval": "200ms"}}
    shop = {
        "sources": {"orders": {"type": "local", "schema": SCHEMA, **every}},
        "views": {"totals": {**view, **every, **more}},
    }
    project.write("query_changes", json.dumps(shop))


def add(project: Project, id_: int, customer: str, amount: int, tax: int) -> None:
    project.append("orders", [{"id": id_, "customer": customer, "amount": amount, "tax": tax}])


def has(project: Project, expected: dict[str, int]) -> None:
    """Wait until the view has these totals."""

    def totals() -> dict[str, int]:
        done = project.run("snapshot", "view.totals", "--format", "json")
        rows = [json.loads(line) for line in done.stdout.splitlines()] if done.returncode == 0 else []
        return {row["customer"]: row["total"] for row in rows}

    eventually(f"the totals are {expected}", lambda: totals() == expected)


def planned(project: Project) -> tuple[str, str, list[dict[str, Any]]]:
    """Return what would happen to the view, the verdict on its state, and its changed columns."""
    (change,) = [one for one in project.json("plan")["changes"] if one["address"] == "view.totals"]
    return change["effect"], change["query"]["state"], change["query"]["columns"]


@pytest.mark.nightly
def test_a_changed_query_keeps_or_mixes_or_loses_the_state(project: Project) -> None:
    declare(project, TOTALS)
    project.apply()
    add(project, 1, "ada", 5, 1)
    add(project, 2, "bob", 7, 2)
    has(project, {"ada": 5, "bob": 7})

    declare(project, REWRITTEN)
    assert planned(project) == ("restart", "kept", [])
    project.apply()
    add(project, 3, "ada", 1, 1)
    has(project, {"ada": 6, "bob": 7})

    declare(project, ABOVE)
    effect, state, (column,) = planned(project)
    project.apply()
    assert (effect, state, column["name"]) == ("restart", "kept", "total")
    assert (column["before"], column["after"]) == ("sum(amount)", "sum(amount) * 10")
    add(project, 4, "ada", 1, 1)
    has(project, {"ada": 70, "bob": 7})  # a group keeps its former row until it changes

    declare(project, TAXES)
    assert planned(project)[:2] == ("replace", "mixed")
    declare(project, TAXES, on_query_change="resume")
    effect, state, (column,) = planned(project)
    project.apply()
    assert (effect, state) == ("restart", "mixed") and column["since_step"] > 0
    add(project, 5, "ada", 100, 3)
    has(project, {"ada": 10, "bob": 7})  # 5 + 1 + 1 of amount, then 3 of tax
    told = f"`total`: sum(amount) * 10 until step {column['since_step'] - 1}, sum(tax) after it"
    assert told in project.run("why", "view.totals").stdout

    lost = TOTALS.replace("sum(amount)", "CAST(avg(amount) AS BIGINT)")
    declare(project, lost, on_query_change="resume")
    assert planned(project)[:2] == ("replace", "lost")
    project.apply("--allow-replace")
    has(project, {"ada": 26, "bob": 7})


def test_a_column_that_nobody_uses_restarts_no_reader_and_loses_no_state(project: Project) -> None:
    """Delta ends each stream of a table that gets a column. The runner resumes it, and that is no failure."""
    every = {"trigger": {"interval": "200ms"}}
    views: dict[str, dict[str, Any]] = {
        "totals": {
            "query": "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer",
            "output": "update",
            "key": ["customer"],
            "partitions": 1,
            "schema": "customer STRING, total BIGINT",
            **every,
        },
        "large": {"query": "SELECT customer, total FROM totals WHERE total > 5", **every},
        "copy": {"query": "SELECT * FROM orders", **every},
    }

    def declared(schema: str) -> dict[str, str]:
        shop = {"sources": {"orders": {"type": "local", "schema": schema, **every}}, "views": views}
        project.write("query_changes", json.dumps(shop))
        return {change["address"]: change["effect"] for change in project.apply()["changes"]}

    declared(SCHEMA)
    add(project, 1, "ada", 5, 1)
    has(project, {"ada": 5})
    assert declared(f"{SCHEMA}, note STRING") == {"source.orders": "restart", "view.copy": "restart"}
    row = {"id": 2, "customer": "ada", "amount": 2, "tax": 1, "note": "x"}
    project.append("orders", [row])
    has(project, {"ada": 7})
    views["totals"]["query"] = (
        "SELECT customer, sum(amount) AS total, sum(amount) * 2 AS twice FROM orders GROUP BY customer"
    )
    views["totals"]["schema"] = "customer STRING, total BIGINT, twice BIGINT"
    assert declared(f"{SCHEMA}, note STRING") == {"view.totals": "restart"}
    add(project, 3, "ada", 1, 1)
    has(project, {"ada": 8})

    def large() -> list[dict[str, Any]]:
        done = project.run("snapshot", "view.large", "--format", "json")
        return [json.loads(line) for line in done.stdout.splitlines()]

    eventually("view.large follows", lambda: large() == [{"customer": "ada", "total": 8}])
    started = project.queries()["view.large"]["started_because"]
    assert (started["cause"], started["detail"]) == (
        "retry",
        "the columns of a collection that it reads have changed",
    )
    assert not [event for event in project.json("events")["events"] if event["kind"] == "failed"]

    # Undoing both costs as little. The tables keep the columns, and new rows have NULL in them.
    views["totals"]["query"] = TOTALS
    views["totals"]["schema"] = "customer STRING, total BIGINT"
    undone = declared(SCHEMA)
    assert undone == dict.fromkeys(("source.orders", "view.copy", "view.totals"), "restart")
    add(project, 4, "ada", 1, 1)
    add(project, 5, "bob", 9, 1)
    has(project, {"ada": 9, "bob": 9})
    eventually("view.large follows", lambda: {row["total"] for row in large()} == {9})
    verified = project.json("verify", "view.copy")
    assert verified["difference"] is None and verified["verified"] > 0


@pytest.mark.nightly
def test_inputs_in_another_order_or_read_otherwise_keep_the_checkpoint(project: Project) -> None:
    """Spark knows a stream by its place among the query's streams; mzplan gives each its own position."""
    every = {"trigger": {"interval": "200ms"}}
    orders, payments = "SELECT id, amount AS n FROM orders", "SELECT id, paid AS n FROM payments"
    united = "SELECT id, sum(n) AS total FROM ({}) u GROUP BY id"
    plain = "SELECT id, customer AS name FROM orders"
    joined = "SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON o.customer = c.customer"

    def applied(union: str, row: str, **more: Any) -> dict[str, str]:
        totals = {"query": union, "output": "update", "key": ["id"], "partitions": 1, **every}
        shop = {
            "sources": {
                "orders": {"type": "local", "schema": SCHEMA, **every},
                "payments": {"type": "local", "schema": "id BIGINT, paid BIGINT", **every},
                "customers": {"type": "local", "schema": "customer STRING, name STRING", **every},
                "names": {"type": "local", "schema": "customer STRING", **every},
            },
            "views": {
                "totals": {**totals, "schema": "id BIGINT, total BIGINT"},
                "named": {"query": row, "schema": "id BIGINT, name STRING", **every, **more},
            },
        }
        project.write("query_changes", json.dumps(shop))
        changes = project.apply()["changes"]
        return {one["address"]: one["effect"] for one in changes if one["effect"] != "none"}

    def rows(view: str) -> list[tuple[Any, ...]]:
        done = project.run("snapshot", view, "--format", "json")
        return sorted(tuple(json.loads(line).values()) for line in done.stdout.splitlines())

    def shows(view: str, *expected: tuple[Any, ...]) -> None:
        eventually(f"{view} is {expected}", lambda: rows(view) == sorted(expected))

    applied(united.format(f"{orders} UNION ALL {payments}"), plain)
    add(project, 1, "ada", 5, 1)
    project.append("payments", [{"id": 1, "paid": 1}, {"id": 2, "paid": 2}])
    project.append("customers", [{"customer": "bob", "name": "Bob"}])
    shows("view.totals", (1, 6), (2, 2))
    shows("view.named", (1, "ada"))

    swapped = united.format(f"{payments} UNION ALL {orders}")
    found = applied(swapped, joined, snapshots=["customers"])
    assert found == {"view.totals": "restart", "view.named": "restart"}
    add(project, 2, "bob", 10, 1)
    shows("view.totals", (1, 6), (2, 12))
    shows("view.named", (1, "ada"), (2, "Bob"))

    both = f"{joined} LEFT JOIN names n ON n.customer = c.customer"
    assert applied(swapped, both, snapshots=["customers", "names"]) == {"view.named": "restart"}
    assert applied(swapped, both, snapshots=["names", "customers"]) == {"view.named": "in-place"}
    assert applied(swapped, plain) == {"view.named": "restart"}
    add(project, 3, "cy", 7, 1)
    shows("view.totals", (1, 6), (2, 12), (3, 7))
    shows("view.named", (1, "ada"), (2, "Bob"), (3, "cy"))


@pytest.mark.nightly
def test_another_number_of_partitions_restarts_the_view(project: Project) -> None:
    declare(project, TOTALS, partitions=2)
    project.apply()
    for number, customer in enumerate("abcdef"):
        add(project, number, customer, number, 1)
    has(project, {customer: number for number, customer in enumerate("abcdef")})

    declare(project, TOTALS, partitions=5)
    planned = project.json("plan")
    assert [(one["address"], one["effect"]) for one in planned["changes"]] == [("view.totals", "restart")]
    assert "repartitions its state" in str(planned["diagnostics"])
    project.apply()
    add(project, 6, "a", 10, 1)
    has(project, {customer: number or 10 for number, customer in enumerate("abcdef")})
    verified = project.json("verify", "view.totals")
    assert verified["difference"] is None and verified["verified"] > 0
    assert project.queries()["view.totals"]["generation"] == 1
