"""Dead letters of views: each row that an expectation removes is kept once, with its step and the reason."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import Row

from mzplan.connectors.formats import dead_letters, row_letters
from mzplan.schema.description import Description
from mzplan.spark import streams
from tests.integration.spark.current_lab import CurrentLab
from tests.integration.spark.test_spark_expectations import again, counts, violations
from tests.integration.spark.test_spark_relational import ORDERS, Shop, order
from tests.integration.spark_lab import Lab
from tests.support import eventually


@pytest.fixture
def shop(lab: Lab) -> Shop:
    shop = Shop(lab)
    shop.source("orders", ORDERS)
    return shop


def keeping(check: str, path: str = "dead/views") -> dict[str, Any]:
    """The properties of a view that keeps the rows that don't meet this check."""
    return {
        "expect": {"fits": {"check": check, "on_violation": "dead-letter"}},
        "dead_letter": {"path": path},
    }


def of_rows(view: Description) -> Description:
    """A view that computes each row from one row."""
    body = {name: value for name, value in view.body.items() if name not in ("reads", "partitions")}
    return replace(view, body={**body, "from": next(iter(view.reads))})


def letters(lab: Lab, view: Description) -> list[Row]:
    table = lab.spark.read.format("delta").load(str(lab.folder / view.body["dead_letter"]["path"]))
    return table.where(f"query = '{view.id}'").orderBy("generation", "step", "row").collect()


def kept(lab: Lab, view: Description) -> list[dict[str, Any]]:
    """The rows of a view's letters."""
    return [json.loads(letter.row) for letter in letters(lab, view)]


def test_views_of_each_shape_keep_each_row_once(lab: Lab, shop: Shop) -> None:
    """Rows, a union, a join with a snapshot and groups: each runs its last step again."""
    whole = "SELECT id, customer, CAST(amount AS DECIMAL(20,8)) AS amount, ts FROM orders"
    rows = of_rows(
        shop.view(
            whole,
            "id BIGINT, customer STRING, amount DECIMAL(20,8), ts TIMESTAMP",
            "orders",
            **keeping("customer <> 'z'"),
        )
    )
    union = shop.view(
        "SELECT id, customer FROM orders UNION ALL SELECT id + 10, customer FROM orders",
        "id BIGINT, customer STRING",
        "orders",
        **keeping("customer <> 'z' OR id > 10"),
    )
    joined, _ = shop.with_cities('"customer": "a", "city": "Bonn"')
    joined = lab.changed(joined, **keeping("city IS NOT NULL"))
    groups = shop.view(
        "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer",
        "customer STRING, total BIGINT",
        "orders",
        output="update",
        key=["customer"],
        **keeping("total < 10"),
    )
    views = (rows, union, joined, groups)
    lab.start(*views)
    shop.add("orders", order(1, "a", 5, 0), order(2, "z", 20, 0))
    shop.has(joined, (1, "Bonn"))
    shop.has(groups, ("a", 5))
    shop.has(union, (1, "a"), (11, "a"), (12, "z"))
    eventually("the row is there", lambda: lab.ids(rows) == [1])
    for view in views:
        counts(lab, view, fits=1)
        again(lab, view, view)
    shop.add("orders", order(3, "z", 1, 0), order(4, "a", 1, 0))
    shop.has(joined, (1, "Bonn"), (4, "Bonn"))
    shop.has(groups, ("a", 6))
    eventually("the next row is there", lambda: lab.ids(rows) == [1, 4])
    for view in views:
        counts(lab, view, fits=2)
        lab.finish(view)
    assert kept(lab, union) == [{"id": 2, "customer": "z"}, {"id": 3, "customer": "z"}]
    assert kept(lab, joined) == [{"id": 2, "city": None}, {"id": 3, "city": None}]
    assert kept(lab, groups) == [{"customer": "z", "total": 20}, {"customer": "z", "total": 21}]
    first, second = letters(lab, rows)
    at = "2026-01-01T00:00:10.000000Z"
    assert kept(lab, rows) == [
        {"id": 2, "customer": "z", "amount": 20, "ts": at},
        {"id": 3, "customer": "z", "amount": 1, "ts": at},
    ]
    assert (first.source, first.generation, first.reason) == (
        str(rows.address),
        1,
        "it violates the expectation fits: customer <> 'z'",
    )
    recorded = [record.step for record in lab.recorded(rows, 2) if record.violations]
    assert [first.step, second.step] == recorded
    assert first.kept_at < second.kept_at
    a_new_generation_keeps_its_own(lab, rows)


def a_new_generation_keeps_its_own(lab: Lab, view: Description) -> None:
    replaced = replace(view, generation=2, digest=f"1:{uuid.uuid4().hex}")
    lab.start(replaced)
    eventually("it has read all rows", lambda: lab.ids(replaced) == [1, 4])
    lab.finish(replaced)
    found = [(letter.generation, json.loads(letter.row)["id"]) for letter in letters(lab, replaced)]
    assert found == [(1, 2), (1, 3), (2, 2), (2, 3)]


def test_a_view_that_follows_updates_keeps_each_version(lab: Lab) -> None:
    shop = CurrentLab(lab)
    shop.table("orders", "id BIGINT, amount INT", "id", "1, 5", "2, -1")
    view = of_rows(
        lab.view(
            "SELECT id, amount FROM orders",
            "id BIGINT, amount INT",
            [shop.inputs["orders"]],
            key=["id"],
            **keeping("amount > 0"),
        )
    )
    lab.start(view)

    def has_row() -> bool:
        assert (error := lab.report(view).error) is None, error
        return lab.ids(view) == [1]

    eventually("the row is there", has_row)
    shop.sql("UPDATE {orders} SET amount = -7 WHERE id = 1")
    shop.sql("DELETE FROM {orders} WHERE id = 2")
    eventually("the row has gone", lambda: lab.ids(view) == [])
    counts(lab, view, fits=2)
    lab.finish(view)
    assert kept(lab, view) == [{"id": 2, "amount": -1}, {"id": 1, "amount": -7}]


def test_another_attempt_at_a_step_replaces_its_letters(
    lab: Lab, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The append fails once the letters are stored. The next attempt has another row with the same id."""
    sql = "SELECT id, rand() AS drawn FROM orders"
    view = of_rows(shop.view(sql, "id BIGINT, drawn DOUBLE", "orders", **keeping("id < 2")))
    lab.start(view)
    shop.add("orders", order(1, "a", 1, 0))
    eventually("the row is there", lambda: lab.ids(view) == [1])

    def broken(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(streams, "append", broken)
        shop.add("orders", order(2, "a", 1, 0))
        assert "no space left" in str(lab.ended(view).error)
    (before,) = kept(lab, view)
    lab.stop(view)
    again_ = lab.retried(view)
    lab.start(again_)
    shop.add("orders", order(3, "a", 1, 0))
    counts(lab, again_, fits=2)
    lab.finish(again_)
    assert lab.ids(view) == [1]
    second, third = kept(lab, view)
    assert (second["id"], third["id"]) == (2, 3) and second["drawn"] != before["drawn"]


def test_sources_and_views_share_a_table(lab: Lab, shop: Shop) -> None:
    """Each adds the columns that the other's table doesn't have."""
    for path, first in (("dead/shared-a", dead_letters.COLUMNS), ("dead/shared-b", row_letters.COLUMNS)):
        table = dead_letters.ensure_table(lab.spark, str(lab.folder / path), first)
        view = of_rows(shop.view("SELECT id FROM orders", "id BIGINT", "orders", **keeping("id > 1", path)))
        lab.start(view)
        shop.add("orders", order(1, "a", 1, 0))
        eventually("it is counted", lambda view=view: violations(lab, view)["fits"] > 0)  # type: ignore[misc]
        lab.finish(view)
        assert {"id": 1} in kept(lab, view)
        dead_letters.ensure_table(lab.spark, str(lab.folder / path))
        names = {
            column.split()[0]
            for columns in (dead_letters.COLUMNS, row_letters.COLUMNS)
            for column in columns.split(", ")
        }
        assert set(lab.spark.table(table).columns) == names


def test_a_folder_that_cannot_be_written_is_found_before_the_start(lab: Lab, shop: Shop) -> None:
    (lab.folder / "row-letters").touch()
    view = of_rows(shop.view("SELECT id FROM orders", "id BIGINT", "orders", **keeping("id > 1")))
    assert lab.codes(view) == []
    lab.finds(lab.changed(view, dead_letter={"path": "row-letters/dead"}), "MZ057", "row-letters")
