"""Another version of a function's package is drift, and a planned restart or replace by its author's word."""

from __future__ import annotations

from typing import Any

import pytest

from mzplan.model.state import State
from mzplan.plan import build_plan
from mzplan.plan.commit import causes_of
from mzplan.plan.drift import drift_between
from tests.unit.small_projects import at, change_of, commit, kafka, observe, project, resource, source

ADDRESS = "view.enriched"
RUNS = {"function": "shop 1.5.0", "function_before": "shop 1.4.2"}
REFUSED = {"condition": "failed", "error": "why", "error_code": "MZ364", "error_kind": "code-changed"}


def shop(state: str) -> Any:
    view = resource(
        ADDRESS, "function", function="shop.enrich:f", reads=["orders"], schema="id BIGINT", state=state
    )
    return project(kafka(), source(), view)


@pytest.mark.parametrize(
    ("word", "seen", "effect", "reason"),
    [
        ("none", RUNS, "restart", "it runs shop 1.5.0, and its last apply accepted shop 1.4.2"),
        ("kept", RUNS, "restart", "it runs shop 1.5.0, and its last apply accepted shop 1.4.2"),
        ("unknown", REFUSED, "replace", "another version of its function's package is installed"),
        ("kept", REFUSED, "restart", "another version of its function's package is installed"),
    ],
)
def test_another_version_is_drift_and_planned(word: str, seen: Any, effect: str, reason: str) -> None:
    state = commit(shop(word))
    (item,) = drift_between(state, observe(state, enriched=seen), {"local": True})
    assert (item.address, item.kind) == (ADDRESS, "code-changed")
    plan = build_plan(shop(word), state, observe(state, enriched=seen))
    change = change_of(plan, ADDRESS)
    assert len(plan.changes) == 1 and change.effect == effect and change.reason == reason
    assert change.after is not None and change.before is not None
    assert change.after.generation == change.before.generation + (effect == "replace")
    # Once it is committed, the runner's old report changes nothing.
    assert causes_of(plan, 2)[at(ADDRESS)].cause == ("upgrade" if effect == "restart" else "change")
    later = commit(shop(word), state, statuses=observe(state, enriched=seen))
    assert drift_between(later, observe(later, enriched={"function": "shop 1.5.0"}), {"local": True}) == ()
    assert build_plan(shop(word), later, observe(later)).changes == ()
    assert later.resources[at(ADDRESS)].digest != state.resources[at(ADDRESS)].digest


@pytest.mark.parametrize(
    ("body", "effect"),
    [
        ({}, "restart"),
        ({"state": "1:abc"}, "replace"),
        ({"state": "1:abc", "on_query_change": "resume"}, "restart"),
    ],
)
def test_another_version_of_a_function_in_sql_replaces_a_view_with_state(
    body: dict[str, Any], effect: str
) -> None:
    called = {"f": {"function": "shop.text:f", "returns": "STRING"}}
    view = resource(
        ADDRESS,
        "sql",
        query="SELECT f(id) AS id FROM orders",
        reads=["orders"],
        schema="id STRING",
        functions=called,
        **body,
    )
    wanted = project(kafka(), source(), view)
    state = commit(wanted)
    change = change_of(build_plan(wanted, state, observe(state, enriched=RUNS)), ADDRESS)
    assert change.effect == effect


def test_the_same_version_is_nothing() -> None:
    state: State = commit(shop("none"))
    seen = observe(state, enriched={"function": "shop 1.4.2"})
    assert (
        drift_between(state, seen, {"local": True}) == ()
        and build_plan(shop("none"), state, seen).changes == ()
    )
    for other in ({**RUNS, "digest": "1:old"}, {**REFUSED, "wanted_digest": "1:old"}):  # of an earlier commit
        assert build_plan(shop("none"), state, observe(state, enriched=other)).changes == ()
