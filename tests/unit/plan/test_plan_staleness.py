"""A saved plan is stale if planning again would commit something else, and the error says what."""

from __future__ import annotations

from typing import Any

import pytest

from mzplan.model.diagnostics import ExitCode
from mzplan.model.losses import Loss
from mzplan.model.plan import Plan
from mzplan.model.resources import Configuration
from mzplan.model.state import State
from mzplan.plan import build_plan
from mzplan.plan.manual_changes import plan_destroy, plan_restart
from mzplan.plan.staleness import ensure_same
from tests.support import refusal
from tests.unit.small_projects import (
    at,
    commit,
    commit_plan,
    console,
    kafka,
    observe,
    project,
    shop,
    source,
)

OTHER = {"k2": kafka("k2"), "other": source("other", connection="k2"), "o": console("o", "other")}
BASE = shop(**OTHER)
MOVED = shop(**OTHER, k=kafka(brokers=["b:9092"]))  # reaches connection.k and source.orders


@pytest.fixture
def state() -> State:
    return commit(BASE)


def stale(plan: Plan, configuration: Configuration, state: State, **options: Any) -> str:
    """Return the difference that the error names."""
    found = refusal(lambda: ensure_same(plan, build_plan(configuration, state, **options), state))
    assert (found.code, found.exit_code) == ("MZ036", ExitCode.STALE)
    assert "Nothing was changed" in found.detail
    return found.detail


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        (
            {"k": kafka(brokers=["c:9092"])},
            "connection.k was changed since (brokers[0]); source.orders was changed since",
        ),
        ({"k": kafka(description="new")}, "connection.k was changed since (description)"),
        (
            {"orders": source(trigger={"interval": "9s"})},
            "source.orders was changed since (trigger.interval)",
        ),
        ({"late": source("late")}, "source.late would also restart"),
    ],
)
def test_a_commit_of_a_planned_resource_makes_a_plan_stale(
    state: State, changed: dict[str, Any], named: str
) -> None:
    later = commit(shop(**{**OTHER, **changed}), state)
    wanted = shop(**{**OTHER, **changed, "k": kafka(brokers=["b:9092"])})
    assert named in stale(build_plan(MOVED, state), wanted, later)


def test_a_restart_or_destroy_by_hand_makes_a_plan_stale(state: State) -> None:
    plan = build_plan(MOVED, state)
    restarted = commit_plan(plan_restart(state, [at("source.orders")]), state)
    assert "source.orders was changed since (paused or restarted by hand)" in stale(plan, MOVED, restarted)
    gone = commit_plan(plan_destroy(state, [at("source.orders")]), state)
    assert "source.orders was changed since (removed)" in stale(plan, MOVED, gone)


def test_edited_files_make_a_plan_stale(state: State) -> None:
    plan = build_plan(MOVED, state)
    elsewhere = shop(**OTHER, k=kafka(brokers=["c:9092"]))
    assert "connection.k would become something else (brokers[0])" in stale(plan, elsewhere, state)
    more = shop(**OTHER, k=kafka(brokers=["b:9092"]), more=console("more", "other"))
    assert "sink.more would also create" in stale(plan, more, state)
    without = project(*(r for a, r in MOVED.resources.items() if a.name != "o"))
    assert "sink.o would also delete" in stale(plan, without, state)
    assert "sink.o would no longer delete" in stale(build_plan(without, state), MOVED, state)


def test_a_loss_that_was_found_since_makes_a_plan_stale(state: State) -> None:
    options = {"replace": [at("source.orders")]}
    replaced = build_plan(BASE, state, **options)
    loss = Loss(lost=2, read=9, unit="records", where="in partition 0")
    seen = observe(state, orders={"loss": loss})
    assert "source.orders would lose rows" in stale(replaced, BASE, state, **options, statuses=seen)
