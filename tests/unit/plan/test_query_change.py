"""The change of a stateful view's query in a plan: effect, columns, sinks and cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mzplan.config import load_configuration
from mzplan.model.plan import Change, Plan
from mzplan.model.query_changes import QueryChange
from mzplan.model.resources import Configuration
from mzplan.plan import build_plan
from mzplan.plan.commit import causes_of
from mzplan.plan.file import decode_plan, digest_of_plan, encode_plan
from mzplan.render.plan_json import plan_to_json
from mzplan.render.plan_text import render_plan
from tests.unit.cli_runs import apply, mzplan
from tests.unit.small_projects import at, commit, observe

PROJECT = """
connections:
  k: {type: kafka, brokers: ["b:9092"]}
  pg: {type: postgres, host: pg, database: shop, user: app, password: "${env:PG}"}
sources:
  orders:
    connection: k
    topic: orders
    format: {type: json, schema: "id BIGINT, customer STRING, amount DECIMAL(10,2), tax DECIMAL(10,2)"}
views:
  totals:
    query: SELECT customer, sum(amount) AS total FROM orders GROUP BY customer
    output: update
    key: [customer]
    on_query_change: resume
sinks:
  report: {from: totals, connection: pg, table: report, mode: upsert, key: [customer]}
"""
SEEN: dict[str, dict[str, Any]] = {
    "totals": {"step": 811, "processed_rows_per_second": 1000.0},
    "orders": {"step": 900, "last_steps": ((900, 0.0),), "total_rows": 1_200_000},
}


def load(folder: Path, text: str) -> Configuration:
    (folder / "mzplan.yaml").write_text("version: 1\nproject: shop\nwarehouse: ./warehouse\n")
    (folder / "pipeline.yaml").write_text(text)
    return load_configuration(str(folder))


def planned(folder: Path, *edits: tuple[str, str], step: int = 811) -> tuple[Plan, Change, QueryChange]:
    text = PROJECT
    state = commit(load(folder, text))
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    plan = build_plan(
        load(folder, text), state, observe(state, **{**SEEN, "totals": {**SEEN["totals"], "step": step}})
    )
    (change,) = [one for one in plan.changes if one.address == at("view.totals")]
    assert change.query is not None
    return plan, change, change.query


def test_a_mixed_state_is_resumed_if_the_view_says_so(tmp_path: Path) -> None:
    plan, change, query = planned(tmp_path, ("sum(amount)", "sum(tax)"))
    assert (change.effect, query.state) == ("restart", "mixed")
    (column,) = query.columns
    assert (column.before, column.after, column.since_step) == ("sum(amount)", "sum(tax)", 812)
    sentence = "`total`: sum(amount) until step 811, sum(tax) after it"
    assert query.sinks == (at("sink.report"),)
    text = render_plan(plan)
    assert "sink.report keeps rows of the former query" in text
    assert sentence in text and text.endswith("State: mixed in view.totals.\n")
    assert (
        "--replace view.totals --allow-replace, which reads 1,200,000 rows in 901 steps, about 20 min" in text
    )
    assert causes_of(plan, 2)[at("view.totals")].detail.startswith(f"state mixed; {sentence}; query ")


def test_a_mixed_state_is_replaced_by_default(tmp_path: Path) -> None:
    edits = ("sum(amount)", "sum(tax)"), ("    on_query_change: resume\n", "")
    plan, change, query = planned(tmp_path, *edits)
    assert (change.effect, query.state, query.sinks) == ("replace", "mixed", ())
    assert query.columns[0].since_step is None
    text = render_plan(plan)
    assert "its state can't be kept (mixed): `sum(tax)` takes the place of `sum(amount)`" in text
    assert "to continue with the old state instead: `on_query_change: resume`; saves 1,200,000 rows" in text


def test_a_lost_state_is_replaced_whatever_the_view_says(tmp_path: Path) -> None:
    _, change, query = planned(tmp_path, ("sum(amount) AS", "avg(amount) AS"))
    assert (change.effect, query.state) == ("replace", "lost")


def test_a_rewrite_restarts_and_is_no_change_of_rows(tmp_path: Path) -> None:
    plan, change, query = planned(
        tmp_path, ("FROM orders GROUP BY customer", "FROM orders o GROUP BY o.customer")
    )
    assert (change.effect, query.state, query.columns, query.cost) == ("restart", "kept", (), None)
    text = render_plan(plan)
    assert "its state is kept: both queries compute the same state" in text
    assert "writes other rows" not in text and "affects only new rows" not in text


def test_a_change_above_the_state_says_which_rows_keep_the_former_form(tmp_path: Path) -> None:
    plan, _, query = planned(tmp_path, ("sum(amount) AS", "-sum(amount) AS"))
    assert query.state == "kept" and "applies to rows written from now on" in query.because
    assert "`total`: sum(amount) until step 811, -sum(amount) after it" in render_plan(plan)


def test_a_saved_plan_has_the_verdict_and_its_digest_does_not(tmp_path: Path) -> None:
    """The verdict names steps, which change while the queries run."""
    plan, _, query = planned(tmp_path, ("sum(amount)", "sum(tax)"))
    again = decode_plan(encode_plan(plan))
    (change,) = [one for one in again.changes if one.address == at("view.totals")]
    assert change.query == query
    later, _, other = planned(tmp_path, ("sum(amount)", "sum(tax)"), step=900)
    assert other.columns[0].since_step == 901
    assert digest_of_plan(again) == digest_of_plan(later)
    document = plan_to_json(plan)["changes"][0]["query"]
    assert document["operators"] == [{"kind": "aggregation", "state": "mixed", "because": query.because}]
    assert document["cost"] == {"steps": 901, "rows": 1_200_000, "seconds": 1200.0}


def test_an_apply_prints_the_verdict_beside_the_runs(tmp_path: Path) -> None:
    load(tmp_path, PROJECT)
    settings = "version: 1\nproject: shop\nwarehouse: ./warehouse\ninstances: {local: {type: dry}}\n"
    (tmp_path / "mzplan.yaml").write_text(settings)
    apply(tmp_path)
    (tmp_path / "pipeline.yaml").write_text(PROJECT.replace("sum(amount) AS", "sum(tax) AS"))
    document = json.loads(mzplan(tmp_path, "apply", "--auto-approve", "--json").out)
    (query,) = [c["query"] for c in document["changes"] if c["address"] == "view.totals"]
    assert (query["state"], query["operators"][0]["kind"]) == ("mixed", "aggregation")
    assert {"id", "run_id_before", "run_id_after"} < query.keys() and query["id"]


def test_a_column_of_another_type_replaces_a_view_whose_state_could_be_kept(tmp_path: Path) -> None:
    plan, change, query = planned(tmp_path, ("sum(amount) AS", "sum(amount) + 1 AS"))
    assert (change.effect, query.state) == ("replace", "kept")
    assert "its state could be kept: the change is above the state" in render_plan(plan)
