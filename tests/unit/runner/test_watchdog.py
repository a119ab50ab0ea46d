"""A runner that can't continue ends by itself, whatever hangs, and reports why."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from mzplan.plan.drift import drift_between
from mzplan.runner import shutdown, watchdog
from mzplan.runner.watchdog import Watchdog
from tests.unit.runner.test_runner import SINK, World, make_state
from tests.unit.runner.test_status import status_text

HANGS = """
import threading, time, sys
from mzplan.runner.shutdown import exit_within
threading.Thread(target=time.sleep, args=(60,)).start()  # Python waits for it
exit_within(0.2, lambda: print("why", flush=True))
sys.exit(0)
"""


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Run the checks without pauses, and record when the process would exit."""
    ends: list[float] = []
    monkeypatch.setattr(watchdog, "CHECK_INTERVAL", 0.001)
    monkeypatch.setattr(watchdog, "exit_within", lambda seconds, last: ends.append(seconds))
    return ends


def reason(world: World, at_once: list[float], when: Callable[[], None]) -> str:
    """Return why a watchdog ends the runner, once `when` has happened."""
    reasons: list[str] = []
    failed = threading.Event()

    def fail(why: str) -> None:
        reasons.append(why)
        failed.set()

    watching = Watchdog(world.runner, fail, lambda why: None)
    watching.start()
    assert not failed.wait(0.05)
    when()
    assert failed.wait(10)
    watching.close()
    assert at_once == [shutdown.DEAD_ENGINE_SECONDS]
    return reasons[0]


def test_a_dead_engine_ends_the_runner_even_if_its_loop_hangs(world: World, at_once: list[float]) -> None:
    world.apply(make_state(1))

    def die() -> None:
        world.executor.failure = "Java has ended."

    assert reason(world, at_once, die) == "Java has ended."
    assert ("kill", "") in world.executor.log  # hanging calls return


def test_a_loop_without_finished_rounds_ends_the_runner(
    world: World, at_once: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "MAX_CHECKS", 1_000_000)

    def hang() -> None:
        monkeypatch.setattr(watchdog, "MAX_CHECKS", 20)

    assert reason(world, at_once, hang).startswith("No round of the runner has ended for")


def test_a_finished_round_resets_the_count(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "MAX_CHECKS", 3)
    watching = Watchdog(world.runner, lambda why: None, lambda why: None)
    for number in range(1, 30):
        world.now = world.runner.round_ended_at = world.now + 100.0 * (number % 3 == 0)
        assert watching.check() is None
    assert [watching.check() is None for _ in range(4)][-1] is False


def test_a_process_ends_despite_a_hanging_thread() -> None:
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stdout) == (1, "why\n")
    assert time.monotonic() - began < 40


def test_status_and_drift_show_why_the_runner_ended(world: World) -> None:
    state = make_state(1)
    seen = world.apply(state).observations
    assert "no runner is alive" not in status_text(world)
    world.store.leases.renew(world.lease, released=True)
    assert "no runner is alive" in status_text(world) and "\n  Java" not in status_text(world)  # stopped
    world.runner.status.write_end("Java has ended.")
    world.runner.status.write_end("another reason")  # the first reason counts
    status = world.status()
    assert status.ended == "Java has ended." and "\n  Java has ended.\n" in status_text(world)
    assert status.observations[SINK].step == seen[SINK].step  # its last observations stay
    drift = drift_between(state, {"local": status}, {"local": False})
    why = "no runner of instance local is alive: Java has ended."
    assert {(item.kind, item.detail) for item in drift} == {("missing-query", why)}
    assert not any("Java" in item.detail for item in drift_between(state, {"local": status}, {"local": True}))
