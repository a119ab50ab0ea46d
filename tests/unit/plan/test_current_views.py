"""The plan of a changed current view: it computes all rows again, and only another key replaces it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mzplan.config import load_configuration
from mzplan.model.plan import Change, Plan
from mzplan.model.resources import Configuration
from mzplan.plan import build_plan
from mzplan.plan.file import decode_plan, encode_plan
from mzplan.render.markdown import render_plan_markdown
from mzplan.render.plan_json import plan_to_json
from mzplan.render.plan_text import render_plan
from tests.unit.small_projects import at, commit, observe

PROJECT = """
connections:
  pg: {type: postgres, host: pg, database: shop, user: app, password: "${env:PG}"}
sources:
  orders: {type: local, key: [id], schema: "id BIGINT, customer STRING, amount BIGINT"}
  customers: {type: local, key: [customer], schema: "customer STRING, city STRING"}
views:
  big: {query: "SELECT id, customer, amount FROM orders WHERE amount > 10", materialize: false}
  totals:
    query: >-
      SELECT c.city, count(*) AS n, sum(o.amount) AS total
      FROM big o JOIN customers c ON o.customer = c.customer GROUP BY c.city
    output: current
    key: [city]
    schema: "city STRING, n BIGINT, total BIGINT"
sinks:
  report: {from: totals, connection: pg, table: report, mode: upsert, key: [city]}
"""
AGAIN = "the view computes all rows again, and writes only the rows that differ"


def load(folder: Path, text: str) -> Configuration:
    (folder / "mzplan.yaml").write_text("version: 1\nproject: shop\nwarehouse: ./warehouse\n")
    (folder / "pipeline.yaml").write_text(text)
    return load_configuration(str(folder))


def planned(folder: Path, *edits: tuple[str, str]) -> tuple[Plan, Change]:
    """The plan after these edits, and its change of the view."""
    text = PROJECT
    state = commit(load(folder, text))
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    seen = {"step": 900, "last_steps": ((900, 0.0),), "total_rows": 1_200_000}
    plan = build_plan(load(folder, text), state, observe(state, orders=seen, customers=seen))
    (change,) = [one for one in plan.changes if one.address == at("view.totals")]
    return plan, change


def test_a_changed_query_computes_all_rows_again(tmp_path: Path) -> None:
    plan, change = planned(tmp_path, ("GROUP BY c.city", "WHERE o.id > 3 GROUP BY c.city"))
    assert change.effect == "restart" and change.query is not None and change.query.recomputes
    cost = f"{AGAIN}; it reads 2,400,000 rows in 1802 steps"
    assert cost in render_plan(plan).replace("1,802", "1802") and AGAIN in render_plan_markdown(plan)
    assert "affects only new rows" not in render_plan(plan)
    document = plan_to_json(plan)["changes"][0]["query"]
    assert document["recomputes"] is True and document["state"] == "kept"
    assert decode_plan(encode_plan(plan)).changes[0].query == change.query


def test_columns_come_and_go_without_a_replace(tmp_path: Path) -> None:
    more = (
        (", sum(o.amount) AS total", ", sum(o.amount) AS total, max(o.id) AS last"),
        (
            "total BIGINT",
            "total BIGINT, last BIGINT",
        ),
    )
    fewer = (", sum(o.amount) AS total", ""), (", total BIGINT", "")
    for edits in (more, fewer):
        plan, change = planned(tmp_path, *edits)
        assert (change.action, change.effect) == ("update", "restart"), change
        (sink,) = [one for one in plan.changes if one.address == at("sink.report")]
        assert sink.effect == "restart" and sink.action == "restart"


def test_an_inlined_view_is_part_of_the_query(tmp_path: Path) -> None:
    _, change = planned(tmp_path, ("amount > 10", "amount > 20"))
    assert change.effect == "restart" and change.query is not None and change.query.recomputes


def test_other_inputs_are_no_replace(tmp_path: Path) -> None:
    edit = "FROM big o JOIN customers c ON o.customer = c.customer GROUP BY c.city"
    fewer = (
        "FROM customers c JOIN (SELECT 'a' AS customer, 1L AS amount FROM customers) o USING (customer) "
        "GROUP BY c.city"
    )
    _, change = planned(tmp_path, (edit, fewer))
    assert change.effect == "restart"
    # A new generation of an input is read as a whole.
    _, change = planned(
        tmp_path, ('schema: "customer STRING, city STRING"', 'schema: "customer STRING, city VARCHAR(9)"')
    )
    assert change.effect == "restart"


def test_another_key_replaces_the_view(tmp_path: Path) -> None:
    _, change = planned(tmp_path, ("key: [city]\n    schema", "key: [city, n]\n    schema"))
    assert (change.action, change.effect) == ("replace", "replace")


@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("SELECT id FROM orders o WHERE EXISTS (SELECT 1 FROM towns t WHERE amount > 1)", "amount"),
        ("SELECT towns.id FROM towns", "id"),
    ],
)
def test_a_name_that_stands_for_a_new_column_computes_all_rows_again(
    tmp_path: Path, query: str, name: str
) -> None:
    """The input gets a column that the names of a correlated subquery, or of a field, then stand for."""
    text = (
        'sources:\n  orders: {type: local, key: [id], schema: "id BIGINT, amount BIGINT"}\n'
        '  towns: {type: local, schema: "city STRING, towns STRUCT<id: BIGINT>"}\n'
        f"views:\n  totals: {{output: current, key: [id], query: '{query}'}}\n"
    )
    state = commit(load(tmp_path, text))
    assert state.resources[at("view.totals")].body["aliases"] == [name]
    plan = build_plan(load(tmp_path, text.replace("city STRING", f"city STRING, {name} BIGINT")), state)
    (change,) = [one for one in plan.changes if one.address == at("view.totals")]
    assert change.effect == "restart" and change.query is not None and change.query.recomputes
    assert "affects only new rows" not in render_plan(plan)
