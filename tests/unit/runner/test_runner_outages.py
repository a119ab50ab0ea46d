"""A runner with an unreachable store or unreadable files repairs its queries, ends in time, and says why."""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from queue import Queue
from typing import Any
from unittest import mock

import pytest

from mzplan.config import load_project
from mzplan.controller.executor import ExecutorGoneError
from mzplan.controller.memory import InMemoryExecutor
from mzplan.controller.terms import LagDuration, NotAttachedError, StorageError
from mzplan.host.checkout import runtime_file
from mzplan.model.diagnostics import MzplanError, error
from mzplan.plan.drift import drift_between
from mzplan.runner import embedded, main, shutdown, wake, watchdog
from mzplan.runner.loop import RoundsFailedError
from mzplan.runner.secret_values import ReceivedSecretValues
from mzplan.runner.wake import WakeListener, send_wake
from mzplan.runner.watchdog import Watchdog
from mzplan.secrets.policy import NO_SECRET_VALUES
from mzplan.store.leases import new_lease
from mzplan.store.store import open_store
from tests.unit.runner.test_runner import ORDERS, SINK, World, make_state
from tests.unit.runner.test_runner_handover import Worlds
from tests.unit.runner.test_status import status_text


def away(*_: object, **__: object) -> Any:
    raise error("MZ095", "The state can't be reached")


def serve(world: World) -> None:
    """Do rounds until the runner ends by itself, which must not take ten seconds."""
    stopping = threading.Event()
    limit = threading.Timer(10.0, stopping.set)
    limit.start()
    try:
        world.runner.serve(stopping)
    finally:
        limit.cancel()


def test_a_failed_query_is_restarted_while_proposals_are_unreadable(
    alive: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as outage:
        outage.setattr(alive.store.proposals, "open", away)
        alive.fail(SINK)
        assert alive.later(10.0).observations[SINK].condition == "running"
    messages = [r.getMessage() for r in caplog.records if "proposals" in r.getMessage()]
    assert len(messages) == 1 and "[MZ095]" in messages[0]  # not each round
    assert alive.answer(alive.committed, ORDERS).diagnostics == ()


def test_a_failed_command_is_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    controller = world.runner.controller
    with monkeypatch.context() as broken:
        broken.setattr(controller, "follow", mock.Mock(side_effect=StorageError("not now")))
        world.commit(make_state(1))
        world.runner.tick()
        assert (world.runner.serial, world.executor.running()) == (-1, {})
    assert world.settle().serial == 1
    assert ORDERS in world.executor.running()
    assert isinstance(controller.frontiers.by_id["s"].policy, LagDuration)


def test_a_runner_without_its_engine_ends_at_once(alive: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can't open another engine. If it kept renewing its lease, no runner would run its queries."""
    gone = mock.Mock(side_effect=ExecutorGoneError("Java has ended."))
    monkeypatch.setattr(alive.executor, "reports", gone)
    with pytest.raises(ExecutorGoneError):
        serve(alive)


def test_a_runner_survives_failed_rounds_but_ends_if_they_fail_for_minutes(
    alive: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Foreign files in a warehouse may raise any exception. The queries continue, and each round retries.

    A successful round resets the count. So does an outage of the store, which costs the lease anyway.
    """
    controller = alive.runner.controller
    process, rounds = controller.process, 0

    def broken() -> None:
        nonlocal rounds
        rounds, alive.now = rounds + 1, alive.now + 100.0
        if rounds == 4:
            return process()
        if rounds == 7:
            away()
        raise RecursionError("maximum recursion depth exceeded")

    monkeypatch.setattr(controller, "process", broken)
    monkeypatch.setattr(controller, "ready", lambda: None)
    with pytest.raises(RoundsFailedError, match="for 300 s: RecursionError: maximum"):
        alive.runner.serve(threading.Event())
    assert rounds == 11
    logged = [r for r in caplog.records if "failed unexpectedly: RecursionError" in r.getMessage()]
    assert len(logged) == 3 and logged[0].exc_info  # once for rounds 1–3, 5–6 and 8–10


def test_an_engine_that_fails_to_open_ends_the_runner_whatever_it_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = InMemoryExecutor("shop")
    refused = mock.Mock(side_effect=ConnectionRefusedError("Java is not there any more"))
    monkeypatch.setattr(executor, "open", refused)
    problem: list[MzplanError] = []
    stopping, woken = threading.Event(), threading.Event()
    main._open_engine(executor, problem, stopping, woken)
    assert stopping.is_set() and woken.is_set()
    found = problem[0].diagnostics[0]
    assert found.code == "MZ062" and "not there any more" in found.detail


def test_an_unreadable_status_of_another_instance_delays_only_new_queries(worlds: Worlds) -> None:
    worlds.start(sink="big")
    assert worlds.runs("local") == [str(ORDERS)]
    worlds.store.backend.write("status/big.json", b"{")
    worlds.commit(2)  # the sink moves here
    executor = worlds.executors["local"]
    executor.fail_query(executor.running()[ORDERS].name, "boom")
    seen = worlds.settle("local")
    assert seen[str(ORDERS)].condition == "running", "other queries are repaired"
    held = seen[str(SINK)].held or ""
    assert held.startswith("waits for instance big") and worlds.runs("local") == [str(ORDERS)]
    assert "status/big.json is truncated or damaged" in held
    worlds.settle("big", "local")  # its runner writes it again
    assert worlds.runs("local") == [str(SINK), str(ORDERS)]


def test_an_empty_lease_of_another_instance_is_waited_for(worlds: Worlds) -> None:
    """Its runner may still work on another host, which has not lost power."""
    worlds.runner("local")
    worlds.commit(1)
    worlds.settle("local")
    worlds.store.backend.write("leases/local.json", b"")
    worlds.commit(2, sink="big")
    worlds.runner("big")
    assert (worlds.settle("big")[str(SINK)].held or "").startswith("waits for instance local")
    assert worlds.runs("big") == []


def test_a_runner_without_its_lease_ends_during_an_outage_of_the_store(
    alive: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("state_version", "read_state", "write_status"):
        monkeypatch.setattr(alive.store, name, away)
    monkeypatch.setattr(alive.store.proposals, "open", away)
    alive.runner.controller.instances.loss = "the store has not answered for 10 s"
    with pytest.raises(NotAttachedError):
        serve(alive)
    assert alive.executor.running() == {}


def lead(*answers: object, stand_by: bool = True, led: bool = True) -> object:
    """Lead the instance, or stand by for it. The store answers each attempt to lead, or can't be reached."""
    leases = mock.Mock()
    leases.acquire.side_effect = answers
    leases.leader.return_value = object() if led else None
    return main._acquire_lease(mock.Mock(leases=leases), "local", threading.Event(), stand_by)


def test_a_standby_survives_an_outage_of_the_store(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(main, "STANDBY_INTERVAL", 0.0)
    caplog.set_level(logging.INFO)
    lease, outage = new_lease("local", "o", 2), error("MZ095", "The state can't be reached")
    assert lead(None, outage, outage, None, outage, lease) == lease
    messages = [r.getMessage() for r in caplog.records if "standing by" in r.getMessage()]
    assert ["can't be reached" in text for text in messages] == [False, True, False, True]
    with pytest.raises(MzplanError):  # a runner that starts during the outage gets an error
        lead(outage)
    # Without standby, only a live leader ends the process.
    assert lead(None, stand_by=False) is None
    assert lead(None, None, lease, stand_by=False, led=False) is lease


def test_a_runner_follows_the_state_that_variables_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds the same state, and receives no message for the runner of another state."""
    (tmp_path / "mzplan.yaml").write_text(
        'version: 1\nproject: shop\nstate: {path: "state-${var.stage}"}\nwarehouse: "w-${var.n}"\n'
        "variables: {stage: {default: dev}, n: {default: 1}, unused: {default: 1}}\n"
    )
    given = {"stage": "'5'", "n": "2", "unused": "x"}
    prod, dev = load_project(tmp_path, given), load_project(tmp_path)
    given_env: dict[str, str] = {}

    def start_process(command: list[str], *, env: dict[str, str], **_: object) -> None:
        assert "stage" not in str(command)
        given_env.update(env)
        raise OSError

    monkeypatch.setattr(embedded.subprocess, "Popen", start_process)
    with pytest.raises(OSError):
        embedded.start(prod, open_store(prod), "local")
    for name in ("MZPLAN_VAR_STAGE", "MZPLAN_VAR_N"):
        monkeypatch.setenv(name, given_env[name])
    assert "MZPLAN_VAR_UNUSED" not in given_env
    assert load_project(tmp_path) == prod and prod.state["path"] == "state-5"
    names = [runtime_file(settings, "local", "sock").name for settings in (prod, dev)]
    assert names[0] != names[1] == "local.sock"


@pytest.mark.parametrize("message", [b"[]", b"\xff"])
def test_an_unreadable_message_does_not_end_the_wake_socket(tmp_path: Path, message: bytes) -> None:
    (tmp_path / ".mzplan").mkdir()
    (tmp_path / "mzplan.yaml").write_text("version: 1\nproject: shop\n")
    woken = threading.Event()
    path = tmp_path / ".mzplan" / "local.sock"
    with contextlib.closing(WakeListener(path, ReceivedSecretValues().receive, woken)) as listener:
        listener.start()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(message + b"\n")
            client.settimeout(60.0)
            assert client.recv(16) == b"" and not woken.is_set()  # refused at once
        assert send_wake(load_project(tmp_path), "local", NO_SECRET_VALUES) == 0 and woken.is_set()


def test_a_failed_accept_does_not_end_the_wake_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as with too many open files. The socket is only for its user from its first moment on."""
    (tmp_path / ".mzplan").mkdir()
    (tmp_path / "mzplan.yaml").write_text("version: 1\nproject: shop\n")
    path, accept, failures = tmp_path / ".mzplan" / "local.sock", socket.socket.accept, [errno.EMFILE] * 2

    def accept_or_fail(self: socket.socket) -> Any:
        if failures:
            raise OSError(failures.pop(), "too many open files")
        return accept(self)

    monkeypatch.setattr(wake, "_PAUSE", 0.001)
    monkeypatch.setattr(socket.socket, "accept", accept_or_fail)
    woken = threading.Event()
    with contextlib.closing(WakeListener(path, ReceivedSecretValues().receive, woken)) as listener:
        listener.start()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert send_wake(load_project(tmp_path), "local", NO_SECRET_VALUES) == 0
    assert not failures


# --- a runner that can't continue ends by itself

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
    reasons = Queue[str]()
    watching = Watchdog(world.runner, reasons.put, lambda why: None)
    watching.start()
    time.sleep(0.05)
    assert reasons.empty()
    when()
    why = reasons.get(timeout=10)
    watching.close()
    assert at_once == [shutdown.DEAD_ENGINE_SECONDS]
    return why


def test_a_dead_engine_ends_the_runner_even_if_its_loop_hangs(alive: World, at_once: list[float]) -> None:
    die = partial(setattr, alive.executor, "failure", "Java has ended.")
    assert reason(alive, at_once, die) == "Java has ended."
    assert ("kill", "") in alive.executor.log  # hanging calls return


def test_a_loop_without_finished_rounds_ends_the_runner(
    world: World, at_once: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "MAX_CHECKS", 1_000_000)
    hang = partial(monkeypatch.setattr, watchdog, "MAX_CHECKS", 20)
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
