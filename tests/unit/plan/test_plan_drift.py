"""Drift: the state against what the runners report."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mzplan.model.resources import Instance
from mzplan.model.state import State
from mzplan.plan.drift import drift_between, drift_of_instance
from tests.unit.small_projects import commit, observe, shop, source

ALIVE = {"local": True}
QUERIES = ("sink.orders_pg", "source.orders")


def found(state: State, alive: dict[str, bool] = ALIVE, **seen: Any) -> list[tuple[str, str, str]]:
    drift = drift_between(state, observe(state, **seen), alive)
    return [(item.address, item.kind, item.detail) for item in drift]


def test_a_runner_reports_drift_only_of_its_own_queries_and_serial() -> None:
    status = observe(commit(shop()), orders={"condition": "failed"})["local"]
    state = commit(shop(other=source("other", instance="elsewhere")))
    (found,) = drift_of_instance(state, status, status.heartbeat)
    assert (found.address, found.kind) == ("source.orders", "failed-query")
    behind = dataclasses.replace(status, serial=state.serial - 1)
    assert drift_of_instance(state, behind, status.heartbeat) == ()


def error(code: str, kind: str, condition: str = "running") -> dict[str, Any]:
    return {"condition": condition, "error": "why", "error_code": code, "error_kind": kind}


@pytest.mark.parametrize(
    ("seen", "kind", "detail"),
    [
        ({"condition": "failed", "error": "boom", "error_code": "X"}, "failed-query", "X: boom"),
        ({"digest": "1:old"}, "outdated-query", "it still runs with its previous description"),
        ({"digest": "1:old", "condition": "rejected", "error": "no"}, "outdated-query", "no"),
        (error("MZ043", "another-upstream"), "upstream-changed", "MZ043: why"),
        (error("MZ067", "offsets-gone", "failed"), "upstream-changed", "MZ067: why"),
        (error("MZ161", "checkpoint-missing"), "checkpoint-missing", "MZ161: why"),
        (error("MZ161", "collection-missing"), "collection-missing", "MZ161: why"),
        (error("MZ162", "stopped-by-hand", "failed"), "missing-query", "MZ162: why"),
        ({"condition": "stopped"}, "missing-query", "it is stopped"),
        ({"condition": "paused"}, "missing-query", "it is paused"),
    ],
)
def test_each_kind_of_drift_is_named(seen: dict[str, Any], kind: str, detail: str) -> None:
    assert found(commit(shop())) == []
    assert found(commit(shop()), orders=seen) == [("source.orders", kind, detail)]


def test_a_starting_query_is_no_drift() -> None:
    state = commit(shop())
    for more in ({}, {"digest": "1:old"}, {"digest": "", "run_id": None}):
        assert found(state, orders={"condition": "starting", **more}) == []
    # For something else, or after a failure, it is not.
    seen = {"condition": "starting", "digest": "1:old", "wanted_digest": "1:old"}
    assert [kind for _, kind, _ in found(state, orders=seen)] == ["outdated-query"]
    seen = {"condition": "starting", "error": "boom", "error_code": "X"}
    assert found(state, orders=seen) == [("source.orders", "failed-query", "X: boom")]


def test_without_a_runner_queries_are_missing_unless_the_instance_is_dry() -> None:
    state = commit(shop())
    sink, orders = ((a, "missing-query", "no runner of instance local is alive") for a in QUERIES)
    assert found(state, {}) == [sink, orders]
    dry = dataclasses.replace(state, instances={"local": Instance(name="local", type="dry")})
    assert found(dry, {}) == []
    # A paused query must not run.
    paused = commit(shop(orders=source(paused=True)))
    assert found(paused, {"local": False}) == [sink] and found(paused) == []
    runs = ("source.orders", "outdated-query", "it runs although it is paused")
    assert found(paused, orders={"condition": "running"}) == [runs]
    assert drift_between(paused, observe(paused, orders={"quiet_since": 1000.0}), ALIVE, now=9000.0) == ()


def test_a_query_that_the_state_does_not_have_is_foreign() -> None:
    state = commit(shop())
    statuses = observe(commit(shop(more=source("more"))))
    (item,) = drift_between(state, statuses, ALIVE)
    assert (item.address, item.kind) == ("source.more", "foreign-query")
    status = dataclasses.replace(observe(state)["local"], foreign=("by_hand",))
    (item,) = drift_between(state, {"local": status}, ALIVE)
    assert (item.address, item.kind) == ("instance.local", "foreign-query")
    assert "by_hand" in item.detail


@pytest.mark.parametrize("condition", ["running", "starting"])
@pytest.mark.parametrize(
    ("quiet", "interval", "stalled"),
    [(299, "1s", False), (301, "1s", True), (301, "2m", False), (361, "2m", True), (10_900, "1h", True)],
)
def test_a_batch_that_does_not_end_is_stalled(
    quiet: float, interval: str, stalled: bool, condition: str
) -> None:
    state = commit(shop(orders=source(trigger={"interval": interval})))
    seen = observe(state, orders={"quiet_since": 1000.0, "condition": condition})
    drift = [(item.address, item.kind) for item in drift_between(state, seen, ALIVE, now=1000.0 + quiet)]
    assert drift == ([("source.orders", "stalled-query")] if stalled else [])
