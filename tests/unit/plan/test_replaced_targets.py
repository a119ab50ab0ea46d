"""What the plan says about the targets of sinks below a view that is replaced side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mzplan.config import load_configuration
from mzplan.model.plan import Plan
from mzplan.model.resources import Configuration
from mzplan.model.state import State
from mzplan.plan import build_plan
from mzplan.plan.effects.targets import target_lines
from tests.unit.small_projects import at, change_of, commit, observe

PROJECT = """
connections: {k: {type: kafka, brokers: ["b:9092"]}}
sources: {orders: {type: local, schema: "id BIGINT, amount BIGINT"}}
views:
  lines: {query: "SELECT id, sum(amount) AS amount FROM orders GROUP BY id", output: update, key: [id]}
sinks: {sent: {from: lines, connection: k, topic: lines, mode: upsert, key: [id]}}
"""
QUERY = ("sum(amount)", "sum(amount + 1)")
COMPARES = (
    "writes only the difference between the generations of view.lines to lines, and deletes keys that only "
    "the former one has"
)
UPSERTS = "writes all rows again to lines; keys that the new query never writes stay"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mzplan.yaml").write_text("version: 1\nproject: shop\nwarehouse: ./warehouse\n")
    return tmp_path


def load(folder: Path, *edits: tuple[str, str]) -> Configuration:
    text = PROJECT
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (folder / "shop.yaml").write_text(text)
    return load_configuration(str(folder))


def effect(plan: Plan) -> str:
    (line,) = target_lines(change_of(plan, "sink.sent"))
    return line


def test_a_format_that_changes_with_the_view_keeps_the_target(folder: Path) -> None:
    state = commit(load(folder))
    assert effect(build_plan(load(folder, QUERY), state, {})) == COMPARES
    other = ("topic: lines", "topic: lines, schema_registry: registry, format: {type: avro}")
    registry = ("connections: {", "connections: {registry: {type: schema-registry, url: https://r}, ")
    planned = effect(build_plan(load(folder, QUERY, registry, other), state, {}))
    assert planned == (
        "writes all rows again to lines, and deletes keys that only the former generation of view.lines has"
    )


def test_a_sink_that_is_replaced_by_hand_before_its_view_takes_over(folder: Path) -> None:
    first = commit(load(folder))
    changed = load(folder, QUERY)
    state = commit(changed, first)

    def planned(state: State, **seen: Any) -> str:
        return effect(build_plan(changed, state, observe(state, **seen), replace=[at("sink.sent")]))

    waits = {"generation": 1, "held": "waits"}
    assert planned(state, lines=waits, sent=waits) == COMPARES
    # The sink follows the newest generation: nothing is known of keys that an earlier one had.
    assert planned(state) == UPSERTS
    assert planned(state, sent=waits) == UPSERTS
