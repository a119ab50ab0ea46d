"""What every store must do. One suite; each backend is a parameter."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode, MzplanError
from mzplan.model.resources import Instance
from mzplan.model.state import ResourceState, State, Status
from mzplan.state.backend import ConflictError
from mzplan.state.formats import decode_state, encode_state
from mzplan.state.local import STATE_KEY, LocalBackend
from mzplan.state.store import Store

Make = Callable[[], Store]
A = Address("connection", "k")


@pytest.fixture(params=["local"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Opens the same store again and again, as separate processes would."""
    match request.param:
        case "local":
            return lambda: Store(LocalBackend(tmp_path / "state"), "shop")
        case other:
            raise AssertionError(other)


def state(serial: int, **body: Any) -> State:
    resource_ = ResourceState(address=A, id="c1", type="kafka", body={"type": "kafka", **body})
    return State(
        project="shop",
        lineage="l1",
        serial=serial,
        warehouse="w",
        instances={"local": Instance(name="local", type="embedded")},
        resources={A: resource_},
    )


EMPTY = State(project="shop")


def test_nothing_yet_is_serial_zero(make: Make) -> None:
    assert make().read_state() == EMPTY
    assert make().state_version() is None


def test_a_commit_is_read_back_and_the_earlier_serial_is_kept(make: Make) -> None:
    store = make()
    store.commit(state(1), EMPTY)
    version = store.state_version()
    store.commit(state(2, brokers=["ü:1"]), state(1))
    assert make().read_state() == state(2, brokers=["ü:1"])
    assert make().state_version() != version
    earlier = store.backend.read("history/00000001.json")
    assert earlier is not None and decode_state(earlier.data, "x") == state(1)


def test_equal_states_are_equal_bytes() -> None:
    assert encode_state(state(1, b=1, a=2)) == encode_state(state(1, a=2, b=1))
    assert json.loads(encode_state(state(1)))["serial"] == 1


def test_compare_and_swap(make: Make) -> None:
    backend = make().backend
    version = backend.write("a/b", b"1", expected=None)
    with pytest.raises(ConflictError):
        backend.write("a/b", b"2", expected=None)
    with pytest.raises(ConflictError):
        backend.write("a/b", b"2", expected="other")
    assert backend.write("a/b", b"2", expected=version) != version
    assert backend.list("a/") == ["a/b"]
    backend.delete("a/b")
    backend.delete("a/b")
    assert backend.read("a/b") is None
    assert backend.list("a/") == []


def _increment(make_: Make, times: int) -> None:
    for _ in range(times):
        while True:
            store = make_()
            try:
                with store.lock("test", wait=60.0):
                    now = store.read_state()
                    store.commit(state(now.serial + 1), now)
                break
            except MzplanError as problem:
                if problem.exit_code not in (ExitCode.STALE, ExitCode.LOCKED):
                    raise


def test_many_writers_lose_nothing(make: Make) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_increment, args=(make, 3)) for _ in range(20)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0
    assert make().read_state().serial == 60


def _hold(make_: Make, ready: Any) -> None:
    with make_().lock("apply"):
        ready.set()
        time.sleep(60)


def test_a_held_lock_names_its_owner_and_ends_with_its_process(make: Make) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    holder = context.Process(target=_hold, args=(make, ready))
    holder.start()
    assert ready.wait(20)
    with pytest.raises(MzplanError) as caught, make().lock("destroy", wait=0.2):
        pass
    assert caught.value.exit_code == ExitCode.LOCKED
    text = caught.value.diagnostics[0].detail
    assert "mzplan apply" in text and str(holder.pid) in text and "alive" in text
    assert holder.pid is not None
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(10)
    with make().lock("destroy", wait=5.0):
        pass


def test_a_lock_goes_on_after_an_error_inside_it(make: Make) -> None:
    with pytest.raises(ZeroDivisionError), make().lock("x"):
        raise ZeroDivisionError
    with make().lock("y"):
        pass


def _damage(make_: Make, change: Callable[[bytes], bytes]) -> MzplanError:
    store = make_()
    store.commit(state(1, brokers=["a:1"]), EMPTY)
    blob = store.backend.read(STATE_KEY)
    assert blob is not None
    broken = change(blob.data)
    store.backend.write(STATE_KEY, broken)
    with pytest.raises(MzplanError) as caught:
        store.read_state()
    with pytest.raises(MzplanError):
        store.commit(state(2), state(1))
    after = store.backend.read(STATE_KEY)
    assert after is not None and after.data == broken
    return caught.value


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda data: data[: len(data) // 2], "MZ030"),
        (lambda data: b"", "MZ030"),
        (lambda data: b"null", "MZ030"),
        (lambda data: b"[" * 100_000, "MZ030"),
        (lambda data: b"\xff\xfe" + data, "MZ030"),
        (lambda data: data.replace(b"a:1", b"b:1"), "MZ032"),
        (lambda data: data.replace(b'"format_version": 1', b'"format_version": 2'), "MZ031"),
        (lambda data: data.replace(b'"serial": 1,', b""), "MZ032"),
    ],
)
def test_a_damaged_state_is_refused_and_left_alone(
    make: Make, change: Callable[[bytes], bytes], code: str
) -> None:
    assert _damage(make, change).diagnostics[0].code == code


def test_a_full_disk_leaves_the_old_state(make: Make) -> None:
    store = make()
    store.commit(state(1), EMPTY)
    before = store.backend.read(STATE_KEY)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limit[1]))
        with pytest.raises(MzplanError) as caught:
            store.commit(state(2, brokers=["x" * 10_000]), state(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.diagnostics[0].code == "MZ035"
    assert store.backend.read(STATE_KEY) == before
    assert store.read_state() == state(1)


def test_a_path_that_cannot_be_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = Store(LocalBackend(tmp_path / "file"), "shop")
    with pytest.raises(MzplanError) as caught, store.lock("apply"):
        pass
    assert caught.value.diagnostics[0].code == "MZ035"
    with pytest.raises(MzplanError):
        store.read_state()


def test_the_state_being_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / STATE_KEY).mkdir()
    with pytest.raises(MzplanError) as caught:
        Store(LocalBackend(tmp_path), "shop").read_state()
    assert caught.value.diagnostics[0].code == "MZ030"


def test_statuses_round_trip_and_damage_is_said(make: Make) -> None:
    store = make()
    status = Status(instance="local", epoch=3, heartbeat=1.5, serial=7)
    store.write_status(status)
    store.write_accepted("local", {})
    assert store.read_statuses() == {"local": status}
    store.backend.write("status/local.json", b"{")
    with pytest.raises(MzplanError) as caught:
        store.read_statuses()
    assert "status/local.json" in caught.value.diagnostics[0].summary


def test_expired_proposals_are_removed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make()
    proposal = store.propose("local", ())
    assert [p.id for p in store.open_proposals("local")] == [proposal.id]
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 1000)
    assert store.open_proposals("local") == []
    monkeypatch.undo()
    assert store.backend.list("proposals/") == []
