"""After a repair, apply waits until the new rows are counted and the backlog is read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from mzplan.model.address import Address
from mzplan.model.observed import Observation, Status
from mzplan.model.plan import Change, Plan
from mzplan.model.state import ResourceState, State
from mzplan.operations import follower
from mzplan.operations.follower import resumed_observations
from mzplan.operations.project import Outcome
from mzplan.render.resumption import render_resumed

SINK = Address("sink", "o")
CONNECTION = Address("connection", "k")
SEEN = Observation(
    address=SINK,
    generation=1,
    digest="1:a",
    wanted_digest="1:a",
    wanted_generation=1,
    condition="running",
    run_id="new",
    resumed={"step": 3},
)


def proof(*seen: Observation) -> str:
    """Return the text that apply shows if a runner reports these in turn, and then repeats the last."""

    def statuses() -> Iterator[Status]:
        for one in (*seen, *[seen[-1]] * 1000):
            yield Status(instance="local", epoch=1, serial=2, heartbeat=0.0, observations={SINK: one})

    given, versions = statuses(), count()
    store: Any = SimpleNamespace(
        backend=SimpleNamespace(poll_interval=0.001),
        read_status=lambda name: next(given),
        status_version=lambda name: str(next(versions)),
    )
    record = ResourceState(address=SINK, id="o", type="postgres", body={}, digest="1:a")
    state = State(project="p", serial=2, resources={SINK: record})
    change = Change(address=CONNECTION, action="update", effect="restart", reason="host changed")
    plan = Plan(project="p", lineage="l", serial=1, warehouse="w", changes=(change,))
    outcome = Outcome(address=SINK, status="applied", seconds=1.0, run_id="new")
    found = resumed_observations(store, state, plan, {SINK: outcome}, {SINK: "old"}, math.inf)
    return render_resumed(SINK, found[SINK])


def test_rows_that_were_read_are_not_shown_as_waiting() -> None:
    """The lag and the number of rows are measured at different times."""
    counted = replace(SEEN, run_rows=5, lag=5, lag_unit="rows")
    assert proof(SEEN, counted, replace(counted, lag=0)) == (
        "sink.o: resumed after step 3; 5 rows from the outage written"
    )


def test_rows_that_still_wait_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "PATIENCE", 0.02)
    assert proof(SEEN) == "sink.o: resumed after step 3; the rows since then aren't counted yet"
    counted = replace(SEEN, run_rows=5, lag=7, lag_unit="rows")
    assert proof(counted) == "sink.o: resumed after step 3; 5 rows written since, 7 rows wait"
