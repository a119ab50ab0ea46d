"""Current views that run: their rows are those of a batch query, and each step writes only the difference."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from mzplan.connectors.api.queries import resolve
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.frames.merges import merge
from mzplan.schema.current.rows import ANY, CHANGED
from mzplan.schema.description import Description
from mzplan.schema.relations.analysis import trace_of
from mzplan.schema.relations.parse import parse_query
from mzplan.spark.current import run
from mzplan.spark.sql.view_sql import rows_of_tables
from mzplan.spark.verification.recomputed_view import RecomputedView
from mzplan.warehouse.checkpoint_log import position_after
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.rows.snapshot import name_of
from tests.current_queries import case
from tests.integration.spark.current_lab import CurrentLab
from tests.integration.spark_lab import Lab, read_delta
from tests.support import eventually

TOTALS = (
    "SELECT c.city, count(*) AS n, sum(o.amount) AS total FROM orders o JOIN customers c "
    "ON o.customer = c.customer GROUP BY c.city"
)
SCHEMA = "city STRING, n BIGINT, total BIGINT"
POSITION = "STRUCT<input: STRING>"
NAMED = "SELECT o.id, o.amount, c.city FROM orders o LEFT JOIN customers c ON o.customer = c.customer"
NAMED_SCHEMA = "id BIGINT, amount INT, city STRING"


@pytest.fixture
def shop(lab: Lab) -> CurrentLab:
    return opened(lab)


def opened(lab: Lab) -> CurrentLab:
    shop = CurrentLab(lab)
    shop.table(
        *("orders", "id BIGINT, customer STRING, amount INT", "id"),
        *("1, 'a', 5", "2, 'a', 7", "3, 'b', 1", "4, 'z', 9"),
    )
    shop.table("customers", "customer STRING, city STRING", "customer", "'a', 'Bonn'", "'b', 'Rome'")
    return shop


def change(shop: CurrentLab, *views: Description) -> None:
    """Change the tables in several ways, and compare the views after each."""
    shop.sql("UPDATE {orders} SET amount = 50 WHERE id = 2")
    shop.agrees(*views)
    shop.sql("UPDATE {customers} SET city = 'Oslo' WHERE customer = 'b'")
    shop.agrees(*views)
    shop.sql("DELETE FROM {orders} WHERE id = 3")
    shop.agrees(*views)
    shop.insert("customers", "'z', 'Rome'")
    shop.sql("UPDATE {orders} SET customer = 'z' WHERE id = 1")
    shop.agrees(*views)


def test_steps_compute_affected_keys_and_write_only_the_difference(lab: Lab, shop: CurrentLab) -> None:
    view = shop.view(NAMED, NAMED_SCHEMA, "id", "orders customers", refresh="incremental")
    lab.start(view)
    shop.agrees(view)
    change(shop, view)
    # A change that no row of the view shows, and one of a row that the view doesn't use.
    shop.sql("UPDATE {orders} SET customer = 'x' WHERE id = 4")
    shop.insert("customers", "'nobody', 'Paris'")
    shop.agrees(view)
    lab.finish(view)
    first, *later = shop.steps(view)
    assert (first.refresh, first.why, first.changes) == ("full", "it is the first step", 4)
    assert {step.refresh for step in later} == {"incremental"}
    assert max(step.changes or 0 for step in later) <= 2
    commits = [commit for commit in shop.log(view).after(0) if commit.step is not None]
    assert len(commits) == sum(step.changes != 0 for step in (first, *later))
    records = lab.recorded(view, len(commits))
    assert records[0].refreshed == first.summary() and records[0].digest is not None
    comparison = RecomputedView(lab.spark, lab.verified(view).resolve(), lab.context.warehouse, Connectors())
    assert comparison.compare(records[-1]).is_equal
    path = str(lab._collection(view))
    lab.spark.sql(f"UPDATE delta.`{path}` SET amount = 0 WHERE id = 2")
    spoilt = replace(records[-1], version=DeltaTable(path).version())
    result = comparison.compare(spoilt)
    assert result.is_wrong and (result.missing, result.more) == (1, 1)


@pytest.mark.nightly
def test_views_of_current_views_agree(lab: Lab, shop: CurrentLab) -> None:
    totals = shop.named("totals", shop.view(TOTALS, SCHEMA, "city", "orders customers"))
    named = shop.named(
        "named", shop.view(NAMED, NAMED_SCHEMA, "id", "orders customers", refresh="incremental")
    )
    top = shop.view(
        "SELECT city, total FROM totals ORDER BY total DESC, city LIMIT 2",
        "city STRING, total BIGINT",
        "city",
        "totals",
    )
    both = shop.view(  # a diamond
        "SELECT n.id, t.total FROM named n JOIN totals t USING (city)",
        "id BIGINT, total BIGINT",
        "id",
        "named totals",
    )
    views = (totals, named, top, both)
    lab.start(*views)
    shop.agrees(*views)
    change(shop, *views)
    assert {step.why for step in shop.steps(top)[1:]} <= {"LIMIT counts all rows", ""}
    lab.finish(*views)


def test_a_changed_query_writes_only_the_difference(lab: Lab, shop: CurrentLab) -> None:
    view = shop.view(TOTALS, SCHEMA, "city", "orders customers")
    target = lab.folder / "lake" / view.id
    sink = lab.delta_sink(view, target.parent, target.name, mode="upsert", key=["city"])
    lab.start(view, sink)
    shop.agrees(view)
    # No input changes in between.
    later = (
        (TOTALS.replace("GROUP", "WHERE o.id <> 3 GROUP"), SCHEMA, ["orders", "customers"]),
        (
            TOTALS.replace(" FROM", ", max(o.id) AS last FROM"),
            f"{SCHEMA}, last BIGINT",
            ["orders", "customers"],
        ),
        (TOTALS.replace(", sum(o.amount) AS total", ""), "city STRING, n BIGINT", ["orders", "customers"]),
        (
            "SELECT city, count(*) AS n, CAST(NULL AS BIGINT) AS total FROM customers GROUP BY city",
            SCHEMA,
            ["customers"],
        ),
        (TOTALS, SCHEMA, ["customers", "orders"]),
    )
    for query, schema, reads in later:
        lab.finish(view)
        before = shop.log(view).versions()[-1]
        other = shop.view(query, schema, "city", " ".join(reads))
        view = replace(lab.changed(view, **other.body), reads=other.reads)
        assert lab.codes(view) == []
        lab.start(view)
        shop.agrees(view)
        eventually("it is recorded", lambda v=view: shop.steps(v)[-1].why.startswith("the query"))  # type: ignore[misc]
        assert shop.log(view).versions()[-1] - before <= 2
    wanted = sorted((row["city"], row["n"]) for row in map(json.loads, shop.rows(view)))

    def follows() -> bool:
        if not lab.report(sink).active:  # a controller starts it again, because the view has got a column
            assert lab.report(sink).error_kind == "columns-changed"
            lab.stop(sink)
            lab.start(sink)
        return sorted((row["city"], row["n"]) for row in read_delta(target)) == wanted

    eventually("the sink follows", follows)


def test_a_step_that_runs_again_reads_the_same_versions(lab: Lab, shop: CurrentLab) -> None:
    view = shop.view(TOTALS, SCHEMA, "city", "orders customers")
    lab.start(view)
    shop.agrees(view)
    shop.sql("UPDATE {orders} SET amount = 51 WHERE id = 2")
    shop.agrees(view)
    lab.finish(view)
    before, versions = shop.steps(view)[-1], shop.log(view).versions()
    # As if the driver had been killed after the commit of the step, and before Spark noted it down.
    lab.undo_commit(view)
    shop.sql("UPDATE {orders} SET amount = 52 WHERE id = 2")
    lab.start(view)
    shop.agrees(view)
    assert shop.steps(view)[len(shop.steps(view)) - 2] == before
    assert len(shop.log(view).versions()) == len(versions) + 1
    lab.finish(view)


def test_a_version_whose_files_are_gone_is_read_as_it_is(lab: Lab, shop: CurrentLab) -> None:
    view = shop.view(TOTALS, SCHEMA, "city", "orders customers")
    lab.start(view)
    shop.agrees(view)
    lab.finish(view)
    shop.sql("UPDATE {orders} SET amount = 60 WHERE id = 2")
    shop.sql("UPDATE {orders} SET amount = 61 WHERE id < 4")
    path = Path(lab._collection(shop.inputs["orders"]))
    # The step is planned at the first of the two updates, and its change feed is gone.
    log, table = shop.checkpoint(view).log, CollectionLog(str(path)).table_id() or "?"
    newest = DeltaTable(str(path)).version()
    lines = [
        position_after(table, newest - 1) if table in line else line
        for line in log.lines(log.committed())[2:]
    ]
    log.plan(*lines)
    kept = {file.rpartition("/")[2] for file in DeltaTable(str(path)).file_uris()}
    for file in path.rglob("*.parquet"):
        if file.name not in kept and "_delta_log" not in file.parts:
            file.unlink()
    lab.start(view)
    shop.agrees(view)
    lab.finish(view)
    assert any(step.refresh == "full" for step in shop.steps(view)[1:])
    place = name_of(shop.inputs["orders"].place)
    assert shop.steps(view)[-1].versions[place] == newest


def test_a_write_that_fails_after_its_commit_keeps_its_versions(
    lab: Lab, shop: CurrentLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = shop.view(TOTALS, SCHEMA, "city", "orders customers")
    lab.start(view)
    shop.agrees(view)

    def write_and_fail(*arguments: Any) -> None:
        merge(*arguments)
        monkeypatch.undo()
        shop.sql("UPDATE {orders} SET amount = amount + 1")  # the step hasn't read this version
        raise RuntimeError("OffsetOutOfRange")

    monkeypatch.setattr(run, "merge", write_and_fail)
    shop.sql("UPDATE {orders} SET amount = 60 WHERE id = 2")
    lab.fails(view, "MZ067")
    lab.stop(view)
    lab.start(view)
    shop.agrees(view)


def test_two_rows_with_one_key_are_an_error(lab: Lab, shop: CurrentLab) -> None:
    view = shop.view(
        "SELECT customer, amount FROM orders", "customer STRING, amount INT", "customer", "orders"
    )
    lab.start(view)
    lab.fails(view, "MZ019", "2 rows have the key", '"customer":"a"')
    assert lab.read(view) == []


def test_a_row_with_the_key_of_a_row_that_no_change_affects_is_an_error(lab: Lab, shop: CurrentLab) -> None:
    shop.sql("DELETE FROM {orders} WHERE id = 2")
    query = "SELECT customer, amount, count(*) OVER (PARTITION BY amount) AS n FROM orders"
    schema = "customer STRING, amount INT, n BIGINT"
    view = shop.view(query, schema, "customer", "orders", refresh="incremental")
    lab.start(view)
    shop.agrees(view)
    before = shop.rows(view)
    shop.insert("orders", "5, 'b', 20")  # only rows with this amount are affected
    lab.fails(view, "MZ019", "2 rows have the key", '"customer":"b"')
    assert shop.rows(view) == before


@pytest.mark.parametrize("seeds", [range(25), pytest.param(range(25, 300), marks=pytest.mark.nightly)])
def test_the_checks_of_the_runner_allow_every_query(lab: Lab, seeds: range) -> None:
    """The query of a view, and the queries by which its affected keys are found."""
    session = lab.spark.newSession()
    for one in map(case, seeds):
        inputs = {table.name: table.input for table in one.tables}
        frames = {table.name: session.createDataFrame([], table.ddl) for table in one.tables}
        view = lab.view(one.sql, "id BIGINT", [], output="current", key=[*one.key])
        query = resolve(view, lab.secrets, str(lab.folder))
        rows_of_tables(session, one.sql, frames, query)
        used = {name: inputs[name] for name in parse_query(one.sql, over_tables=True).places}
        relations = {f"{prefix}{name}": frames[name] for name in used for prefix in (CHANGED, ANY)}
        for affected in trace_of(one.sql, used, {"key": [*one.key]}).affected:
            rows_of_tables(session, affected.sql, relations, query)
