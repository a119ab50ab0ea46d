"""Expectations of sources and views: what happens to rows that violate them, and exact counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mzplan.connectors.catalogue import Connectors
from mzplan.model.address import Address
from mzplan.model.violations import ViolationCount
from mzplan.schema.columns import POSITION
from mzplan.schema.description import Description
from mzplan.spark.current import run as current_run
from mzplan.spark.verification.recomputed_view import RecomputedView
from mzplan.warehouse.rows.content_hash import ContentHash, content_hash
from mzplan.warehouse.rows.replay import collection_batches
from mzplan.warehouse.rows.violations import Violations
from mzplan.warehouse.step_record import StepRecord
from tests.integration.spark.current_lab import CurrentLab
from tests.integration.spark.test_spark_relational import ORDERS, Shop, order
from tests.integration.spark_lab import Lab
from tests.support import eventually

POSITIVE = {"positive": {"check": "amount > 0", "on_violation": "drop"}}
NAMED = {"has_customer": {"not_null": "customer"}}


@pytest.fixture
def shop(lab: Lab) -> Shop:
    shop = Shop(lab)
    shop.source("orders", ORDERS, expect={**POSITIVE, **NAMED})
    return shop


def violations(lab: Lab, query: Description) -> dict[str, int]:
    """The violations of all steps, as the query reports them."""
    return {name: counted.rows for name, counted in lab.report(query).violations.items()}


def counts(lab: Lab, query: Description, **wanted: int) -> None:
    """Wait until these violations are counted."""
    try:
        eventually("the violations are counted", lambda: violations(lab, query) == wanted)
    except AssertionError:
        raise AssertionError(f"{violations(lab, query)} instead of {wanted}") from None


def written(lab: Lab, source: Description, record: StepRecord) -> ContentHash:
    """The hash of the rows that a step has written, without their positions."""
    batches = collection_batches(lab.history(source).collection, record)
    return content_hash(batch.drop_columns([POSITION]) for batch in batches)


def again(lab: Lab, query: Description, now: Description) -> None:
    """Stop a query as if its runner had been killed before Spark noted the last step, and start it again."""
    lab.finish(query)
    lab.undo_commit(query)
    lab.start(now)


def test_a_source_drops_and_counts_each_row_once(lab: Lab, shop: Shop) -> None:
    source = shop.sources["orders"]
    counts(lab, source, has_customer=0, positive=0)
    shop.add("orders", order(1, "a", 5, 0), order(2, "a", -1, 0), '"id": 3, "amount": 1')
    counts(lab, source, has_customer=1, positive=1)
    eventually("the rows are there", lambda: lab.ids(source) == [1, 3])
    again(lab, source, source)  # the step runs again
    shop.add("orders", '"id": 4, "amount": null', '"id": 5, "amount": 0')
    counts(lab, source, has_customer=3, positive=2)  # NULL is no violation of a check
    eventually("the rows are there", lambda: lab.ids(source) == [1, 3, 4])
    # The step is written, so another rule doesn't count its rows again.
    lenient = lab.changed(source, expect={"positive": {"check": "amount >= 0", "on_violation": "drop"}})
    again(lab, source, lenient)
    shop.add("orders", order(6, "a", 0, 0), order(7, "a", -2, 0))
    counts(lab, lenient, positive=3)
    eventually("the rows are there", lambda: lab.ids(lenient) == [1, 3, 4, 6])
    lab.finish(lenient)
    total = Violations(str(lab.checkpoint(lenient))).total()
    assert total["has_customer"] == ViolationCount(rows=3, last_step=1)
    records = lab.recorded(lenient, 3)
    assert [(record.rows, record.violations) for record in records] == [
        (2, {"has_customer": 1, "positive": 1}),
        (1, {"has_customer": 2, "positive": 1}),
        (1, {"positive": 1}),
    ]
    upstream = lab.upstream(lenient)  # each step with the rule under which it began
    assert [upstream.content_hash(record) for record in records] == [written(lab, source, r) for r in records]


def test_a_step_whose_rows_are_all_dropped(lab: Lab, shop: Shop) -> None:
    source = shop.sources["orders"]
    shop.add("orders", order(1, "a", -5, 0), order(2, "a", -1, 0))
    counts(lab, source, has_customer=0, positive=2)
    again(lab, source, source)
    shop.add("orders", order(3, "a", -5, 0))
    counts(lab, source, has_customer=0, positive=3)
    assert lab.ids(source) == []


def test_a_query_that_may_not_write_such_rows_fails(lab: Lab, shop: Shop) -> None:
    sql = "SELECT id, amount FROM orders WHERE customer = 'b'"
    expect = {"small": {"check": "amount < 10", "on_violation": "fail"}}
    view = shop.view(sql, "id BIGINT, amount BIGINT", "orders", expect=expect)
    body = {name: value for name, value in view.body.items() if name not in ("reads", "partitions")}
    view = replace(view, body={**body, "from": "orders"})  # a view of rows
    lab.start(view)
    shop.add("orders", order(1, "b", 5, 0))
    shop.has(view, (1, 5))
    shop.add("orders", order(2, "b", 50, 0), order(3, "b", 7, 0))
    lab.fails(view, "MZ381", "1 row of step ", " violates it: amount < 10", "wasn't written")
    assert violations(lab, view) == {"small": 0} and shop.rows(view) == [(1, 5)]
    lab.stop(view)
    warned = lab.changed(view, expect={"small": {"check": "amount < 10"}})
    lab.start(warned)
    shop.has(warned, (1, 5), (2, 50), (3, 7))
    counts(lab, warned, small=1)


def test_a_group_that_violates_an_expectation_goes(lab: Lab, shop: Shop) -> None:
    sql = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"
    expect = {"small": {"check": "total < 10", "on_violation": "drop"}}
    schema = "customer STRING, total BIGINT"
    view = shop.view(sql, schema, "orders", output="update", key=["customer"], expect=expect)
    lab.start(view)
    shop.add("orders", order(1, "a", 5, 0), order(2, "b", 1, 0))
    shop.has(view, ("a", 5), ("b", 1))
    shop.add("orders", order(3, "a", 6, 0))
    shop.has(view, ("b", 1))  # not a's former total
    counts(lab, view, small=1)
    again(lab, view, view)
    shop.add("orders", order(4, "b", 2, 0))
    shop.has(view, ("b", 3))
    counts(lab, view, small=1)
    lab.finish(view)
    query = lab.verified(view).resolve()
    comparison = RecomputedView(lab.spark, query, lab.context.warehouse, Connectors())
    assert comparison.compare(lab.recorded(view, 3)[-1]).is_equal


@pytest.mark.parametrize("joins", [True, False])
def test_views_that_append_drop_rows(lab: Lab, shop: Shop, joins: bool) -> None:
    body: dict[str, Any] = {}
    if joins:
        view, _ = shop.with_cities('"customer": "a", "city": "Bonn"')
        body = {"known": {"not_null": ["city"], "on_violation": "drop"}}
    else:
        sql = "SELECT id, customer AS city FROM orders UNION ALL SELECT id + 10, customer FROM orders"
        view = shop.view(sql, "id BIGINT, city STRING", "orders")
        body = {"known": {"check": "city <> 'z' AND id < 10", "on_violation": "drop"}}
    view = lab.changed(view, expect=body)
    lab.start(view)
    shop.add("orders", order(1, "a", 5, 0), order(2, "z", 1, 0))
    shop.has(view, (1, "Bonn" if joins else "a"))
    counts(lab, view, known=1 if joins else 3)
    again(lab, view, view)
    shop.add("orders", order(3, "z", 2, 0))
    counts(lab, view, known=2 if joins else 5)


def test_a_current_view_counts_the_rows_that_it_changes(lab: Lab) -> None:
    shop = CurrentLab(lab)
    shop.table("orders", "id BIGINT, amount INT", "id", "1, 5", "2, -1", "3, -2")
    view = shop.view(
        "SELECT id, amount FROM orders",
        "id BIGINT, amount INT",
        "id",
        "orders",
        expect={"positive": {"check": "amount > 0"}},
    )
    lab.start(view)
    shop.agrees(view)
    counts(lab, view, positive=2)
    shop.sql("UPDATE {orders} SET amount = -7 WHERE id = 1")
    shop.sql("DELETE FROM {orders} WHERE id = 2")
    shop.agrees(view)
    counts(lab, view, positive=3)


def test_a_step_that_writes_nothing_after_all_has_no_violations(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merge fails after the count. Before the next attempt, the violating row goes away."""
    shop = CurrentLab(lab)
    shop.table("orders", "id BIGINT, amount INT", "id", "1, 5")
    expect = {"positive": {"check": "amount > 0"}}
    view = shop.view("SELECT id, amount FROM orders", "id BIGINT, amount INT", "id", "orders", expect=expect)
    lab.start(view)
    shop.agrees(view)

    def broken(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(current_run, "merge", broken)
        shop.insert("orders", "2, -1")
        assert "no space left" in str(lab.ended(view).error)
    found = Violations(str(lab.checkpoint(view)))
    assert found.total()["positive"].rows == 1
    shop.sql("DELETE FROM {orders} WHERE id = 2")
    view = lab.retried(view)
    lab.start(view)
    shop.agrees(view)
    eventually("the count is removed", lambda: not found.steps())


def test_rows_that_other_keys_repeat_are_counted_once(lab: Lab, shop: Shop) -> None:
    sql = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"
    body = {"output": "update", "key": ["customer"], "expect": {"apart": {"unique": "total"}}}
    view = shop.view(sql, "customer STRING, total BIGINT", "orders", **body)
    lab.start(view)
    shop.add("orders", order(1, "a", 5, 0), order(2, "b", 5, 0), '"id": 3, "customer": "n"')
    shop.has(view, ("a", 5), ("b", 5), ("n", None))
    counts(lab, view, apart=2)  # both are written
    again(lab, view, view)
    shop.add("orders", order(4, "c", 5, 0), order(5, "a", 1, 0), '"id": 6, "customer": "m"')
    shop.has(view, ("a", 6), ("b", 5), ("c", 5), ("n", None), ("m", None))
    counts(lab, view, apart=3)  # c repeats b, and a no longer does
    shop.add("orders", order(7, "b", 1, 0), order(8, "a", 1, 0))
    shop.has(view, ("a", 7), ("b", 6), ("c", 5), ("n", None), ("m", None))
    counts(lab, view, apart=3)  # b has what a had before the step
    lab.finish(view)
    failing = lab.changed(view, expect={"apart": {"unique": ["total"], "on_violation": "fail"}})
    lab.start(failing)
    shop.add("orders", order(9, "b", 1, 0))
    lab.fails(failing, "MZ381", "violates it: unique: total")


def test_a_current_view_whose_keys_swap_their_values(lab: Lab) -> None:
    shop = CurrentLab(lab)
    shop.table("orders", "id BIGINT, amount INT", "id", "1, 5", "2, 6", "3, 7")
    view = shop.view(
        "SELECT id, amount FROM orders",
        "id BIGINT, amount INT",
        "id",
        "orders",
        expect={"apart": {"unique": "amount"}},
    )
    lab.start(view)
    shop.agrees(view)
    shop.sql("UPDATE {orders} SET amount = 11 - amount WHERE id < 3")
    shop.agrees(view)
    counts(lab, view, apart=0)
    shop.sql("UPDATE {orders} SET amount = 7 WHERE id = 1")
    shop.agrees(view)
    counts(lab, view, apart=1)


def test_spark_refuses_a_check_before_the_query_starts(lab: Lab) -> None:
    source = lab.local_source("id BIGINT, at MAP<STRING, INT>", "bad_check")
    source = replace(source, address=Address("source", "bad_check"))
    lab.finds(lab.changed(source, expect={"e": {"check": "at > 1"}}), "MZ019", "at")
