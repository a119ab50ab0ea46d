"""What a column of a collection reaches, and which queries restart when an input gets a column."""

from __future__ import annotations

from pathlib import Path

import pytest

from mzplan.model.plan import Plan
from mzplan.plan import build_plan
from tests.unit.cli_runs import mzplan
from tests.unit.plan.test_query_change import load
from tests.unit.small_projects import commit, commit_plan

PROJECT = """
connections:
  k: {type: kafka, brokers: ["b:9092"]}
  pg: {type: postgres, host: pg, database: shop, user: app, password: "${env:PG}"}
sources:
  orders:
    connection: k
    topic: o
    format: {type: json, schema: "id BIGINT, customer STRING, amount INT, ts TIMESTAMP"}
  payments: {connection: k, topic: p, format: {type: json, schema: "id BIGINT, paid INT, ts TIMESTAMP"}}
views:
  good: {query: "SELECT * FROM orders WHERE amount > 0", materialize: false}
  joined:
    query: >
      SELECT g.id, p.paid FROM good g JOIN payments p
      ON g.id = p.id AND p.ts BETWEEN g.ts AND g.ts + INTERVAL 1 HOUR
    watermarks: {orders: {column: ts, delay: 1 minute}, payments: {column: ts, delay: 1 minute}}
  totals:
    query: SELECT customer, sum(amount) AS total FROM orders GROUP BY customer
    output: update
    key: [customer]
  few: {query: "SELECT id, amount * 2 AS twice FROM orders"}
  copy: {query: "SELECT * FROM orders"}
sinks:
  report: {from: totals, connection: pg, table: report, mode: upsert, key: [customer]}
  all_pg: {from: orders, connection: pg, table: all_orders}
  few_pg: {from: orders, connection: pg, table: few, select: [id, ts AS at], where: customer IS NOT NULL}
"""


def planned(folder: Path, *edits: tuple[str, str]) -> Plan:
    state, text = commit(load(folder, PROJECT)), PROJECT
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return build_plan(load(folder, text), state)


def effects(plan: Plan) -> dict[str, str]:
    return {str(change.address): change.effect for change in plan.changes}


ORDERS = "amount INT, ts TIMESTAMP"


@pytest.mark.parametrize(
    "added", [f"{ORDERS}, note STRING", f"note STRING, {ORDERS}"], ids=["last", "before"]
)
def test_an_added_column_restarts_the_source_and_the_readers_of_all_columns(
    tmp_path: Path, added: str
) -> None:
    """A stream join behind the `*` of an inlined view doesn't use the column."""
    plan = planned(tmp_path, (ORDERS, added))
    assert effects(plan) == dict.fromkeys(("source.orders", "view.copy", "sink.all_pg"), "restart")
    assert set(map(str, plan.downstream)) == {
        *("view.joined", "view.totals", "view.few"),
        *("sink.report", "sink.few_pg"),
    }


def test_a_reader_that_begins_to_use_the_column_restarts(tmp_path: Path) -> None:
    plan = planned(
        tmp_path,
        (ORDERS, f"{ORDERS}, note STRING"),
        ("few, select: [id,", "few, select: [note,"),
    )
    assert effects(plan)["sink.few_pg"] == "restart" and "view.few" not in effects(plan)


def test_another_order_of_columns_restarts_only_readers_of_all_columns(tmp_path: Path) -> None:
    plan = planned(tmp_path, ("id BIGINT, customer STRING", "customer STRING, id BIGINT"))
    assert set(effects(plan)) == {"source.orders", "view.copy", "sink.all_pg"}


def test_a_state_of_an_earlier_version_restarts_nothing(tmp_path: Path) -> None:
    """Its digests cover all columns of the inputs."""
    from dataclasses import replace

    state = commit(load(tmp_path, PROJECT))
    old = {a: replace(r, digest=r.digest.replace("2:", "1:", 1)) for a, r in state.resources.items()}
    assert build_plan(load(tmp_path, PROJECT), replace(state, resources=old)).is_empty
    text = PROJECT.replace(ORDERS, f"{ORDERS}, note STRING")
    plan = build_plan(load(tmp_path, text), replace(state, resources=old))
    assert set(effects(plan)) == {"source.orders", "view.copy", "sink.all_pg"}


def test_the_reach_of_a_column_is_drawn(tmp_path: Path) -> None:
    load(tmp_path, PROJECT)

    def drawn(*options: str, column: str = "source.orders.AMOUNT") -> str:
        return mzplan(tmp_path, "graph", "--impact", column, *options).out

    assert drawn().splitlines() == [
        "source.orders.amount reaches 6 queries:",
        "  sink.all_pg  amount",
        "  view.copy    amount",
        "  view.few     twice",
        "  view.joined  which rows it has",
        "  view.totals  total",
        "  sink.report  total",
    ]
    assert '  view_totals["view.totals<br>total"]\n' in drawn("--format", "mermaid")
    assert '  "view.totals" [label="view.totals\\ntotal"];\n' in drawn("--format", "dot")
    assert '"column": "amount"' in drawn("--json")
    assert drawn(column="source.payments.paid").splitlines() == [
        "source.payments.paid reaches 1 query:",
        "  view.joined  paid",
    ]
    ran = mzplan(tmp_path, "graph", "--impact", "source.orders.amout")
    assert ran.code == 64 and "did you mean amount?" in ran.err


def test_inputs_that_a_query_reads_in_another_order_replace_nothing(tmp_path: Path) -> None:
    """A view without state also keeps its checkpoint if it becomes relational, or reads other tables."""
    views = """
  named: {query: "SELECT o.id, o.customer AS c FROM orders o LEFT JOIN p USING (id)", snapshots: [p]}
  both:
    query: >
      SELECT id, count(*) AS n FROM (SELECT id FROM orders UNION ALL SELECT id FROM payments) u GROUP BY id
    output: update
    key: [id]
sinks:"""
    text = PROJECT.replace("\nsinks:", views).replace(
        "  payments: {",
        "  p: {connection: k, topic: c, format: {type: json, schema: 'id BIGINT'}}\n  payments: {",
    )
    state = commit(load(tmp_path, text))
    for old, new, changed in (
        (
            "FROM orders UNION ALL SELECT id FROM payments",
            "FROM payments UNION ALL SELECT id FROM orders",
            "both",
        ),
        ('o LEFT JOIN p USING (id)", snapshots: [p]}', 'o"}', "named"),
        (
            "id, amount * 2 AS twice FROM orders",
            "id, amount * 2 AS twice FROM (SELECT * FROM orders) x",
            "few",
        ),
    ):
        assert old in text
        plan = build_plan(load(tmp_path, text.replace(old, new)), state)
        assert effects(plan) == {f"view.{changed}": "restart"}, [c.fields for c in plan.changes]


def test_a_column_that_was_added_later_is_removed_as_cheaply(tmp_path: Path) -> None:
    """A column with which the generation began is part of its rows."""
    more = f"{ORDERS}, note STRING"
    state = commit(load(tmp_path, PROJECT))
    wider = load(tmp_path, PROJECT.replace(ORDERS, more))
    added = build_plan(wider, state)
    state = commit_plan(added, state)
    undone = build_plan(load(tmp_path, PROJECT), state)
    assert (
        effects(undone)
        == effects(added)
        == dict.fromkeys(("source.orders", "view.copy", "sink.all_pg"), "restart")
    )
    state = commit_plan(undone, state)
    assert effects(build_plan(wider, state)) == effects(added)
    retyped = load(tmp_path, PROJECT.replace(ORDERS, more.replace("note STRING", "note INT")))
    assert effects(build_plan(retyped, state))["source.orders"] == "replace"
    fewer = load(tmp_path, PROJECT.replace("id BIGINT, paid INT", "id BIGINT, paid INT, x INT"))
    begun = commit(fewer)
    assert effects(build_plan(load(tmp_path, PROJECT), begun))["source.payments"] == "replace"


def test_a_plan_names_the_columns_of_sinks_that_a_change_breaks(tmp_path: Path) -> None:
    def broken(*edits: tuple[str, str]) -> list[str]:
        found = planned(tmp_path, *edits).diagnostics
        return sorted(one.summary for one in found if one.code == "MZ306")

    text = ("amount INT, ts", "amount STRING, ts")
    assert broken(text, ("sum(amount)", "sum(length(amount))"), ("amount * 2", "length(amount)")) == [
        "The change of source.orders.amount breaks column `amount` of sink.all_pg"
    ]
    assert broken(("amount INT, ts", "amount DOUBLE, ts")) == [
        "The change of source.orders.amount breaks column `amount` of sink.all_pg",
        "The change of source.orders.amount breaks column `total` of sink.report",
    ]
    assert broken(("AS total", "AS revenue")) == [
        "The change of view.totals.total breaks column `total` of sink.report"
    ]
    assert broken(("amount INT, ts", "amount BIGINT, ts")) == []  # its targets can keep the values
    assert broken(("select: [id, ts AS at]", "select: [id]")) == []  # edited by hand
