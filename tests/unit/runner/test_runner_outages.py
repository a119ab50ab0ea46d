"""A runner with an unreachable store or unreadable files repairs its queries, and ends in time."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mzplan.config import load_project
from mzplan.controller.executor import ExecutorGoneError
from mzplan.controller.memory import InMemoryExecutor
from mzplan.controller.terms import NotAttachedError
from mzplan.host.local_folder import runtime_file
from mzplan.model.diagnostics import MzplanError, error
from mzplan.runner import embedded, main
from mzplan.runner.loop import RoundsFailedError
from mzplan.runner.secret_values import ReceivedSecretValues
from mzplan.runner.wake import WakeListener, send_wake
from mzplan.secrets.policy import NO_SECRET_VALUES
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store, open_store
from tests.unit.runner.test_runner import ORDERS, SINK, World, make_state
from tests.unit.runner.test_runner_handover import Worlds

T = TypeVar("T")


def away(*_: object, **__: object) -> Any:
    raise error("MZ095", "The state can't be reached")


def test_a_dead_query_is_restarted_while_proposals_are_unreadable(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.commit(make_state(1))
    world.settle()
    monkeypatch.setattr(world.store.proposals, "open", away)
    world.executor.fail_query(world.executor.running()[SINK].name, "boom")
    world.settle()
    world.now += 10.0
    assert world.settle().observations[SINK].condition == "running"
    told = [r.getMessage() for r in caplog.records if "proposals" in r.getMessage()]
    assert len(told) == 1 and "[MZ095]" in told[0]  # not each round
    monkeypatch.undo()
    state = make_state(1)
    asked = world.store.proposals.make(
        "local", (world.runner.controller.queries.desired()[ORDERS].description,)
    )
    assert state.resources[ORDERS].digest == asked.descriptions[0].digest
    world.settle()
    assert world.store.proposals.read_answer(asked) is not None


def test_a_defect_in_one_round_does_not_end_the_runner(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Foreign files in a warehouse may raise any exception. The queries continue, and each round retries."""
    world.commit(make_state(1))
    world.settle()
    stopping, rounds = threading.Event(), [0]
    controller = world.runner.controller
    process = controller.process

    def broken() -> None:
        rounds[0] += 1
        if rounds[0] <= 2:
            raise RecursionError("maximum recursion depth exceeded")
        process()
        stopping.set()

    def ready() -> None: ...

    monkeypatch.setattr(controller, "process", broken)
    monkeypatch.setattr(controller, "ready", ready)
    world.runner.serve(stopping)
    assert rounds[0] == 3
    told = [r for r in caplog.records if "failed unexpectedly: RecursionError" in r.getMessage()]
    assert len(told) == 1 and told[0].exc_info  # not each round


def test_a_runner_without_its_engine_ends_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can't open another engine. If it kept renewing its lease, no runner would run its queries."""
    world.commit(make_state(1))
    world.settle()

    def gone() -> Any:
        raise ExecutorGoneError("Java has ended.")

    monkeypatch.setattr(world.executor, "reports", gone)
    stopping = threading.Event()
    limit = threading.Timer(10.0, stopping.set)
    limit.start()
    with pytest.raises(ExecutorGoneError):
        world.runner.serve(stopping)
    limit.cancel()


def test_a_runner_whose_rounds_fail_for_minutes_ends(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A successful round resets the count. So does an outage of the store, which costs the lease anyway."""
    world.commit(make_state(1))
    world.settle()
    controller = world.runner.controller
    process, rounds = controller.process, 0

    def broken() -> None:
        nonlocal rounds
        rounds, world.now = rounds + 1, world.now + 100.0
        if rounds == 4:
            return process()
        if rounds == 7:
            away()
        raise RecursionError("maximum recursion depth exceeded")

    def ready() -> None: ...

    monkeypatch.setattr(controller, "process", broken)
    monkeypatch.setattr(controller, "ready", ready)
    with pytest.raises(RoundsFailedError, match="for 300 s: RecursionError: maximum"):
        world.runner.serve(threading.Event())
    assert rounds == 11


def test_an_engine_that_fails_to_open_ends_the_runner_whatever_it_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor = InMemoryExecutor("shop")

    def refused() -> None:
        raise ConnectionRefusedError("Java is not there any more")

    monkeypatch.setattr(executor, "open", refused)
    problem: list[MzplanError] = []
    stopping, woken = threading.Event(), threading.Event()
    main._open_engine(executor, problem, stopping, woken)
    assert stopping.is_set() and woken.is_set()
    told = problem[0].diagnostics[0]
    assert told.code == "MZ062" and "not there any more" in told.detail


@pytest.mark.parametrize("content", [b"", b"{"])
def test_an_unreadable_status_of_another_instance_delays_only_new_queries(
    worlds: Worlds, content: bytes
) -> None:
    worlds.runner("big")
    worlds.runner("local")
    worlds.commit(1, sink="big")
    worlds.settle("big")
    worlds.settle("local")
    assert worlds.runs("local") == [str(ORDERS)]
    worlds.store.backend.write("status/big.json", content)
    worlds.commit(2)  # the sink moves here
    executor = worlds.executors["local"]
    executor.fail_query(executor.running()[ORDERS].name, "boom")
    seen = worlds.settle("local")
    assert seen[str(ORDERS)].condition == "running", "what has no part in it is healed"
    held = seen[str(SINK)].held or ""
    assert held.startswith("waits for instance big") and worlds.runs("local") == [str(ORDERS)]
    assert ("status/big.json is truncated or damaged" in held) == bool(content)
    worlds.settle("big")  # its runner writes it again
    worlds.settle("local")
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
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.commit(make_state(1))
    world.settle()
    for name in ("state_version", "read_state", "write_status"):
        monkeypatch.setattr(world.store, name, away)
    monkeypatch.setattr(world.store.proposals, "open", away)
    world.runner.controller.instances.loss = "the store has not answered for 10 s"
    stopping = threading.Event()
    limit = threading.Timer(10.0, stopping.set)
    limit.start()
    with pytest.raises(NotAttachedError):
        world.runner.serve(stopping)
    limit.cancel()
    assert not stopping.is_set() and world.executor.running() == {}


class Answers:
    """A store whose leases give the next answer to each attempt to lead."""

    def __init__(self, *answers: Callable[[], Any], led: bool = True):
        self.answers = list(answers)
        self.led = led
        self.leases = self

    def acquire(self, instance: str, owner: str) -> Any:
        return self.answers.pop(0)()

    def leader(self, instance: str) -> Any:
        return object() if self.led else None


def lead(store: Any, *, stand_by: bool = True) -> Any:
    return main._acquire_lease(store, "local", threading.Event(), stand_by)


def test_a_standby_survives_an_outage_of_the_store(
    monkeypatch: pytest.MonkeyPatch, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(main, "STANDBY_INTERVAL", 0.0)
    caplog.set_level(logging.INFO)
    none = lambda: None  # noqa: E731
    assert lead(Answers(none, away, away, none, away, lambda: world.lease)) == world.lease
    told = [r.getMessage() for r in caplog.records]
    assert [("can't be reached" in text) for text in told if "standing by" in text] == [
        False, True, False, True,
    ]  # fmt: skip
    with pytest.raises(MzplanError):  # a runner that starts during the outage gets an error
        lead(Answers(away))


def test_without_standby_only_a_live_leader_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    monkeypatch.setattr(main, "STANDBY_INTERVAL", 0.0)
    none = lambda: None  # noqa: E731
    assert lead(Answers(none), stand_by=False) is None
    lease = replace(world.lease)
    assert lead(Answers(none, none, lambda: lease, led=False), stand_by=False) is lease


def test_a_runner_starts_with_an_empty_status(tmp_path: Path) -> None:
    store = Store(LocalBackend(tmp_path / "state"), "shop")
    store.backend.write("status/local.json", b"")
    made = World(tmp_path / "state")
    made.commit(make_state(1))
    assert made.settle().serial == 1
    made.pool.shutdown()
    made.runner.proposals.close()


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
    started: dict[str, dict[str, str]] = {}

    class Started:
        def __init__(self, command: list[str], *, env: dict[str, str], **_: object):
            assert "stage" not in str(command)
            started["env"] = env
            raise OSError

    monkeypatch.setattr(embedded.subprocess, "Popen", Started)
    with pytest.raises(OSError):
        embedded.start(prod, open_store(prod), "local")
    for name in ("MZPLAN_VAR_STAGE", "MZPLAN_VAR_N"):
        monkeypatch.setenv(name, started["env"][name])
    assert "MZPLAN_VAR_UNUSED" not in started["env"]
    assert load_project(tmp_path) == prod and prod.state["path"] == "state-5"
    names = [runtime_file(settings, "local", "sock").name for settings in (prod, dev)]
    assert names[0] != names[1] == "local.sock"


def test_no_message_ends_the_wake_socket(tmp_path: Path) -> None:
    (tmp_path / ".mzplan").mkdir()
    path = tmp_path / ".mzplan" / "local.sock"
    (tmp_path / "mzplan.yaml").write_text("version: 1\nproject: shop\n")
    settings = load_project(tmp_path)
    woken = threading.Event()
    listener = WakeListener(path, ReceivedSecretValues().receive, woken)
    listener.start()
    try:
        for data in (b"[" * 200_000, b"\xff", b"[]", json.dumps({"env": [1]}).encode()):
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
                client.sendall(data + b"\n")
                client.settimeout(5.0)
                assert client.recv(16) == b""  # refused at once
        assert not woken.is_set()
        assert send_wake(settings, "local", NO_SECRET_VALUES) == 0 and woken.is_set()
    finally:
        listener.close()
