"""Parts of views of each kind that are computed again: rows changed by hand, and what isn't exact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mzplan.model.tasks import TaskOutcome
from mzplan.schema.description import Description
from mzplan.warehouse.checkpoints import Checkpoint, TaskRecord
from tests.integration.spark.current_lab import CurrentLab
from tests.integration.spark.test_spark_keyed import send
from tests.integration.spark.test_spark_relational import ORDERS, Shop, order
from tests.integration.spark_lab import Lab
from tests.support import Make, eventually
from tests.tasks import recompute

TOTALS = "SELECT customer, count(*) AS n, sum(amount) AS total FROM orders GROUP BY customer"
SCHEMA = "customer STRING, n BIGINT, total BIGINT"
BY_CUSTOMER: dict[str, Any] = {"output": "update", "key": ["customer"]}


@pytest.fixture
def shop(lab: Lab) -> Shop:
    shop = Shop(lab)
    shop.source("orders", ORDERS)
    return shop


def by_hand(lab: Lab, view: Description, statement: str) -> None:
    """Change the rows of a view's collection, whose name stands in braces."""
    lab.spark.sql(statement.format(f"delta.`{lab._collection(view)}`"))


def asked(lab: Lab, view: Description, where: str, serial: int = 7) -> Description:
    return replace(lab.retried(view), tasks=(recompute(serial, where),))


def recomputed(lab: Lab, view: Description) -> dict[str, Any]:
    """Start a view with a task, and return the outcome."""
    assert lab.codes(view) == []
    lab.start(view)
    return dict(lab.report(view).tasks_done[-1].facts)


def cached_rows(lab: Lab) -> set[int]:
    """The ids of the rows that Spark keeps in memory, but for the states of Delta's tables."""
    context: Any = lab.spark.sparkContext
    kept = context._jsc.getPersistentRDDs()
    return {int(id_) for id_ in kept if "Delta Table State" not in str(kept[id_].name())}


def test_totals_go_on_from_their_state(lab: Lab, shop: Shop) -> None:
    view = shop.view(TOTALS, SCHEMA, "orders", expect={"few": {"check": "n < 4"}}, **BY_CUSTOMER)
    lab.start(view)
    shop.add("orders", order(1, "a", 5, 0), order(2, "b", 1, 0), order(3, "c", 7, 0), order(4, "d", 2, 0))
    shop.add("orders", order(5, "a", 5, 0))
    shop.has(view, ("a", 2, 10), ("b", 1, 1), ("c", 1, 7), ("d", 1, 2))
    lab.finish(view)
    by_hand(lab, view, "UPDATE {} SET total = 0 WHERE customer < 'c'")
    by_hand(lab, view, "DELETE FROM {} WHERE customer = 'c'")
    by_hand(lab, view, "INSERT INTO {} VALUES ('x', 1, 1, NULL)")
    step = lab.last_step(view)
    view, cached = asked(lab, view, "customer <> 'b'"), cached_rows(lab)
    assert recomputed(lab, view) == {"deleted": 1, "changed": 1, "new": 1}
    assert cached_rows(lab) <= cached
    shop.has(view, ("a", 2, 10), ("b", 1, 0), ("c", 1, 7), ("d", 1, 2))
    assert not (lab.checkpoint(view) / "recomputed").exists()
    record = next(record for record in lab.recorded(view, 3) if record.step == step + 1)
    assert (record.rows, record.task) == (3, ("recompute", 7))
    assert record.violations == {} or record.violations is None
    shop.add("orders", order(6, "a", 1, 0), order(7, "b", 1, 0), order(8, "c", 1, 0))
    shop.has(view, ("a", 3, 11), ("b", 2, 2), ("c", 2, 8), ("d", 1, 2))
    # Once, however often it starts; and one that writes nothing.
    lab.finish(view)
    view = asked(lab, view, "true", 8)
    assert recomputed(lab, view) == {"deleted": 0, "changed": 0, "new": 0}
    shop.add("orders", order(9, "a", 1, 0))
    shop.has(view, ("a", 4, 12), ("b", 2, 2), ("c", 2, 8), ("d", 1, 2))
    lab.finish(view)


@pytest.mark.nightly
def test_a_cancelled_recompute_uses_up_its_step(lab: Lab, shop: Shop) -> None:
    view = shop.view(TOTALS, SCHEMA, "orders", **BY_CUSTOMER)
    lab.start(view)
    shop.add("orders", order(1, "a", 5, 0))
    shop.has(view, ("a", 1, 5))
    lab.finish(view)
    step, tasks = lab.last_step(view) + 1, Checkpoint(str(lab.checkpoint(view))).tasks
    begun = TaskRecord(task=recompute(6, "true"), outcome=TaskOutcome(serial=6), step=step)
    tasks.record(begun)
    by_hand(lab, view, "UPDATE {} SET total = 0")
    view = lab.retried(view)
    lab.start(view)
    assert lab.last_step(view) == step
    shop.add("orders", order(2, "b", 1, 0))
    shop.has(view, ("a", 1, 0), ("b", 1, 1))
    lab.finish(view)
    again = asked(lab, view, "true", 6)
    assert recomputed(lab, again) == {"deleted": 0, "changed": 1, "new": 0}
    assert tasks.all()[0] == begun, "it has written nothing"
    shop.add("orders", order(3, "a", 1, 0))
    shop.has(again, ("a", 2, 6), ("b", 1, 1))
    lab.finish(again)


@pytest.mark.nightly
def test_late_rows_count(lab: Lab, shop: Shop) -> None:
    sql = (
        "SELECT customer, minute(window(ts, '1 minute').start) AS at, count(*) AS n FROM orders "
        "GROUP BY customer, window(ts, '1 minute')"
    )
    mark = {"orders": {"column": "ts", "delay": "1 minute"}}
    view = shop.view(
        *(sql, "customer STRING, at INT, n BIGINT", "orders"),
        output="update",
        key=["customer", "at"],
        watermarks=mark,
    )
    lab.start(view)
    shop.add("orders", order(1, "a", 1, 0), order(2, "b", 1, 0))
    shop.has(view, ("a", 0, 1), ("b", 0, 1))
    shop.add("orders", order(3, "a", 1, 30))
    shop.has(view, ("a", 0, 1), ("b", 0, 1), ("a", 30, 1))
    shop.add("orders", order(4, "a", 1, 0), order(5, "b", 1, 0), order(6, "a", 1, 31))  # two are late
    shop.has(view, ("a", 0, 1), ("b", 0, 1), ("a", 30, 1), ("a", 31, 1))
    eventually("they are counted", lambda: lab.history(view).index.last().late == 2)  # type: ignore[union-attr]
    lab.finish(view)
    view = asked(lab, view, "customer = 'a' AND at < 30")
    assert recomputed(lab, view) == {"deleted": 0, "changed": 1, "new": 0, "late": 2}
    shop.add("orders", order(7, "a", 1, 31), order(8, "a", 1, 29))
    shop.has(view, ("a", 0, 2), ("b", 0, 1), ("a", 30, 1), ("a", 31, 2))
    lab.finish(view)


def test_what_is_not_exact_is_refused(lab: Lab, shop: Shop) -> None:
    sql = "SELECT customer, avg(CAST(amount AS DOUBLE)) AS mean FROM orders GROUP BY customer"
    view = shop.view(sql, "customer STRING, mean DOUBLE", "orders", **BY_CUSTOMER)
    lab.start(view)
    shop.add("orders", order(1, "a", 5, 0))
    shop.has(view, ("a", 5.0))
    lab.finish(view)
    problem = lab.refused(asked(lab, view, "customer = 'a'"))
    assert problem.code == "MZ401" and "floating-point" in problem.detail
    assert lab.codes(asked(lab, view, "customer = reflect('a', 'b')")) == ["MZ019"]
    lab.start(later := lab.retried(view))
    shop.add("orders", order(2, "b", 1, 0))
    shop.has(later, ("a", 5.0), ("b", 1.0))
    lab.finish(later)


def test_current_views_are_compared_at_their_versions(lab: Lab) -> None:
    shop = CurrentLab(lab)
    shop.table(
        "orders", "id BIGINT, customer STRING, amount INT", "id", "1, 'a', 5", "2, 'a', 7", "3, 'b', 1"
    )
    shop.table("customers", "customer STRING, city STRING", "customer", "'a', 'Bonn'", "'b', 'Rome'")
    named = "SELECT o.id, o.amount, c.city FROM orders o JOIN customers c ON o.customer = c.customer"
    view = shop.view(named, "id BIGINT, amount INT, city STRING", "id", "orders customers")
    lab.start(view)
    shop.agrees(view)
    lab.finish(view)
    by_hand(lab, view, "UPDATE {} SET amount = 0")
    by_hand(lab, view, "INSERT INTO {} VALUES (9, 1, 'Oslo', NULL)")
    again = asked(lab, view, "id > 1")
    assert recomputed(lab, again) == {"deleted": 1, "changed": 2, "new": 0}
    assert sorted((row["id"], row["amount"]) for row in lab.read(again)) == [(1, 0), (2, 7), (3, 1)]
    shop.sql("UPDATE {orders} SET amount = 6 WHERE id = 1")
    shop.agrees(again)
    lab.finish(again)


def test_views_of_rows_keep_positions(lab: Lab, topic: Make) -> None:
    name = topic(partitions=1)
    source = lab.kafka_source(name, envelope={"type": "upsert", "key": ["id"]})
    twice = "CAST(amount * 2 AS DECIMAL(12,2)) AS twice"
    query = f"SELECT id, {twice} FROM {source.address.name} WHERE amount > 1"
    view = lab.view(query, "id BIGINT, twice DECIMAL(12,2)", [source], key=["id"])
    body = {name: value for name, value in view.body.items() if name != "reads"}
    view = replace(view, body={**body, "from": source.address.name})

    def has(*ids: int) -> None:
        eventually(f"the rows are {ids}", lambda: lab.ids(view) == sorted(ids))

    lab.start(source, view)
    orders = [(str(id_), {"id": id_, "customer": "c", "amount": id_}) for id_ in range(5)]
    send(lab, name, *orders)
    has(2, 3, 4)
    lab.finish(source, view)
    before = lab.read(view)
    by_hand(lab, view, "UPDATE {} SET twice = 0, _position = NULL WHERE id < 4")
    by_hand(lab, view, "UPDATE {} SET id = 9 WHERE id = 4")
    again = asked(lab, view, "id > 2")
    assert recomputed(lab, again) == {"deleted": 1, "changed": 1, "new": 1}
    found = {row["id"]: row for row in lab.read(again)}
    assert found.pop(2)["twice"] == 0
    assert found == {row["id"]: row for row in before if row["id"] > 2}
    lab.start(source)
    send(lab, name, ("3", None), ("1", {"id": 1, "customer": "c", "amount": 5}))
    has(1, 2, 4)
    lab.finish(source, again)
