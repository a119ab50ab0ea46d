"""`status` shows why the queries of a runner make no progress: too few cores, or no live runner."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from mzplan.controller.executor import QueryName
from mzplan.operations.status import read_project_status
from mzplan.render.status import render_status, status_to_json
from tests.unit.runner.test_runner import ORDERS, SINK, World, make_state


def slowest(world: World, **seen: float) -> float | None:
    name: QueryName = world.executor.running()[ORDERS].name
    world.executor.progress(name, **seen)
    return world.settle().slowest


def test_the_slowest_query_counts_the_longer_of_wait_and_last_step(world: World) -> None:
    world.commit(make_state(1))
    status = world.settle()
    assert (status.cores, status.slowest) == (0, None)
    now = time.time()
    assert slowest(world, last_progress_at=now - 40.0) is None  # its input may be slow, while cores suffice
    world.executor.cores = 2
    status = world.settle()
    assert status.cores == 2 and status.slowest == pytest.approx(39.0, abs=5.0)  # a trigger of 1 s
    world.now += 10.0
    assert slowest(world, last_progress_at=time.time(), batch_seconds=61.0) == pytest.approx(60.0, abs=5.0)
    world.executor.cores = 0
    status = world.settle()
    assert (status.cores, status.slowest) == (0, None)
    assert SINK in status.observations


@pytest.mark.parametrize(
    ("slow", "text"),
    [(40.0, "2 queries share 1 core; the slowest waits 39 s: give the runner more cores"), (9.0, "")],
)
def test_status_says_how_many_queries_share_the_cores(world: World, slow: float, text: str) -> None:
    world.commit(make_state(1))
    world.settle()
    world.executor.cores = 1
    world.now += 10.0
    slowest(world, last_progress_at=time.time(), batch_seconds=slow)
    project = SimpleNamespace(store=world.store, settings=SimpleNamespace(instances={}, environment=""))
    status = read_project_status(project)  # type: ignore[arg-type]
    shown = render_status(status)
    assert text in shown and ("share" in shown) == bool(text)
    (instance,) = status_to_json(status)["instances"]
    assert (instance["cores"], instance["slowest"]) == (1, slow - 1)


def test_status_says_why_no_runner_is_alive(world: World) -> None:
    world.commit(make_state(1))
    world.settle()
    project = SimpleNamespace(store=world.store, settings=SimpleNamespace(instances={}, environment=""))

    def shown() -> str:
        return render_status(read_project_status(project))  # type: ignore[arg-type]

    assert "no runner is alive" not in shown()
    world.store.leases.renew(replace(world.lease, released=True), released=True)
    assert "\n  Java" not in shown() and "no runner is alive" in shown()  # it was stopped
    world.runner.status.write_end("Java has ended.")
    assert "\n  Java has ended.\n" in shown()
