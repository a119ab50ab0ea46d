"""Stateful views below a query that writes other rows from now on (MZ340)."""

from __future__ import annotations

from pathlib import Path

import pytest

from mzplan.config import load_configuration
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.plan import Plan
from mzplan.model.resources import Configuration
from mzplan.plan import build_plan
from mzplan.render.markdown import render_plan_markdown
from mzplan.render.plan_text import render_plan
from tests.unit.small_projects import at, commit, observe

PROJECT = """
connections: {k: {type: kafka, brokers: ["b:9092"]}, c: {type: files, path: /inbox}}
sources:
  orders:
    connection: k
    topic: orders
    on_error: skip
    format: {type: json, values: exact, schema: "id BIGINT, customer STRING, amount DECIMAL(10,2)"}
  customers: {connection: c, path: customers, format: {type: csv, schema: "customer STRING, city STRING"}}
views:
  lines: {query: "SELECT id, customer, amount * 1 AS amount FROM orders WHERE id > 0"}
  cities: {query: "SELECT customer, upper(city) AS city FROM customers"}
  enriched:
    query: "SELECT l.id, l.amount, c.city FROM lines l JOIN cities c USING (customer)"
    snapshots: [cities]
  totals:
    query: "SELECT city, sum(amount) AS total, count(*) AS lines FROM enriched GROUP BY city"
    output: update
    key: [city]
"""


def load(folder: Path, text: str) -> Configuration:
    (folder / "mzplan.yaml").write_text("version: 1\nproject: shop\nwarehouse: ./warehouse\n")
    (folder / "pipeline.yaml").write_text(text)
    return load_configuration(str(folder))


def planned(folder: Path, *edits: tuple[str, str], replace: tuple[str, ...] = ()) -> Plan:
    state = commit(load(folder, PROJECT))
    text = PROJECT
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    seen = observe(state, totals={"step": 811})
    return build_plan(load(folder, text), state, seen, replace=[at(address) for address in replace])


def warnings(folder: Path, *edits: tuple[str, str], replace: tuple[str, ...] = ()) -> list[Diagnostic]:
    found = planned(folder, *edits, replace=replace).diagnostics
    return [diagnostic for diagnostic in found if diagnostic.code == "MZ340"]


@pytest.mark.parametrize(
    ("edit", "origin", "replaced"),
    [
        (("amount * 1 ", "amount * 2 "), "view.lines", "--replace view.lines"),
        (("id > 0", "id > 1"), "view.lines", "--replace view.lines"),
        (("values: exact", "values: converted"), "source.orders", "--replace source.orders"),
        (("on_error: skip", "on_error: fail"), "source.orders", "--replace source.orders"),
        (("upper(city)", "lower(city)"), "view.cities", "--replace view.cities --replace view.enriched"),
        (("c.city FROM", "lower(c.city) AS city FROM"), "view.enriched", "--replace view.enriched"),
    ],
    ids=["expression", "where", "format", "on_error", "table", "join"],
)
def test_a_stateful_view_says_from_which_step_on_it_mixes(
    tmp_path: Path, edit: tuple[str, str], origin: str, replaced: str
) -> None:
    (found,) = warnings(tmp_path, edit)
    assert (
        found.summary == f"Sums and counts of view.totals mix old and new rows of {origin} from step 812 on"
    )
    assert found.hint.endswith(f": mzplan apply {replaced} --allow-replace")
    assert warnings(tmp_path, edit, replace=tuple(replaced.split()[1::2])) == []


def test_a_column_that_the_state_does_not_use_mixes_nothing(tmp_path: Path) -> None:
    lines = "SELECT id, customer, amount * 1 AS amount"
    assert warnings(tmp_path, (lines, f"{lines}, id + 1 AS next")) == []
    assert warnings(tmp_path, (lines, lines.replace("id,", "id + 1 AS id,"))) == []
    assert warnings(tmp_path, (lines, lines.replace("id,", "id + 1 AS id,")), ("id > 0", "id > 1"))


def test_only_the_first_changed_query_is_named(tmp_path: Path) -> None:
    edits = ("amount * 1 ", "amount * 2 "), ("c.city FROM", "lower(c.city) AS city FROM")
    (found,) = warnings(tmp_path, *edits)
    assert "of view.lines from" in found.summary


def test_a_replaced_view_reads_old_and_new_rows(tmp_path: Path) -> None:
    (found,) = warnings(tmp_path, ("amount * 1 ", "amount * 2 "), ("sum(amount)", "max(amount)"))
    assert found.summary == "Maxima and counts of view.totals mix old and new rows of view.lines"


@pytest.mark.parametrize(
    "edit",
    [
        ("amount * 1 ", "amount  *  1 "),
        ("on_error: skip", "on_error: skip\n    trigger: {interval: 9s}"),
        ("topic: orders", "topic: web_orders"),
    ],
    ids=["spaces", "trigger", "replaced"],
)
def test_other_changes_mix_nothing(tmp_path: Path, edit: tuple[str, str]) -> None:
    assert warnings(tmp_path, edit) == []


def test_the_last_line_names_views_below_a_changed_query(tmp_path: Path) -> None:
    """At any depth: their own queries are the same. A worse verdict elsewhere comes first."""
    plan = planned(tmp_path, ("upper(city)", "lower(city)"))
    assert render_plan(plan).endswith("State: mixed in view.totals.\n")
    assert "**State: mixed in view.totals.**" in render_plan_markdown(plan)
    lost = planned(tmp_path, ("upper(city)", "lower(city)"), ("sum(amount)", "avg(amount)"))
    assert render_plan(lost).endswith("State: lost in view.totals.\n")
