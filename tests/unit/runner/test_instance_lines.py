"""`status` shows why the queries of a runner make no progress: too few cores, or no live runner."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from mzplan.operations.status import read_project_status
from mzplan.render.status import render_status, status_to_json
from tests.unit.runner.test_runner import ORDERS, SINK, World, make_state
from tests.unit.runner.test_status import project_of, status_text


def test_the_slowest_query_counts_the_longer_of_wait_and_last_step(world: World) -> None:
    status = world.apply(make_state(1))
    assert (status.cores, status.slowest) == (0, None)
    world.progress(ORDERS, last_progress_at=time.time() - 40.0)
    assert world.settle().slowest is None  # its input may be slow, while cores suffice
    world.executor.cores = 2
    status = world.settle()
    assert status.cores == 2 and status.slowest == pytest.approx(39.0, abs=5.0)  # a trigger of 1 s
    world.now += 10.0
    world.progress(ORDERS, last_progress_at=time.time(), batch_seconds=61.0)
    assert world.settle().slowest == pytest.approx(60.0, abs=5.0)
    world.executor.cores = 0
    status = world.settle()
    assert (status.cores, status.slowest) == (0, None)
    assert SINK in status.observations


@pytest.mark.parametrize(
    ("slow", "text"),
    [(40.0, "2 queries share 1 core; the slowest waits 39 s: give the runner more cores"), (9.0, "")],
)
def test_status_says_how_many_queries_share_the_cores(world: World, slow: float, text: str) -> None:
    world.apply(make_state(1))
    world.executor.cores = 1
    world.now += 10.0
    world.progress(ORDERS, last_progress_at=time.time(), batch_seconds=slow)
    world.settle()
    status = read_project_status(project_of(world))
    shown = render_status(status)
    assert text in shown and ("share" in shown) == bool(text)
    (instance,) = status_to_json(status)["instances"]
    assert (instance["cores"], instance["slowest"]) == (1, slow - 1)


def test_status_says_why_no_runner_is_alive(world: World) -> None:
    world.apply(make_state(1))
    assert "no runner is alive" not in status_text(world)
    world.store.leases.renew(replace(world.lease, released=True), released=True)
    assert "\n  Java" not in status_text(world) and "no runner is alive" in status_text(world)  # stopped
    world.runner.status.write_end("Java has ended.")
    assert "\n  Java has ended.\n" in status_text(world)
