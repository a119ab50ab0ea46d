"""The contract of every store: one suite, with the backend as a parameter."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mzplan.model.address import Address
from mzplan.model.codec import decode, encode
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError, error
from mzplan.model.event import Event
from mzplan.model.history import CommitOutcome, CommitRecord
from mzplan.model.observed import Status
from mzplan.model.state import State
from mzplan.model.times import instant_text
from mzplan.store.backends.backend import ConflictError, LockInfo
from mzplan.store.backends.local import STATE_KEY, LocalBackend
from mzplan.store.event_log import EventLog, EventReader
from mzplan.store.formats import encode_state
from mzplan.store.store import Store
from tests.contract import stores
from tests.contract.stores import Case, Make, ObjectServer, lock_refusal, opened
from tests.support import eventually, execute, full_disk, refusal
from tests.unit import small_projects as small

A = Address("connection", "k")
# Spawn instead of fork: the object store library has threads, which don't survive a fork.
processes = multiprocessing.get_context("spawn")


def state(serial: int, **body: Any) -> State:
    return replace(small.commit(small.project(small.kafka("k", **body))), serial=serial)


EMPTY = State(project="shop")


def test_commits_are_read_back_and_each_serial_is_archived_once(make: Make) -> None:
    store = make()
    assert (store.read_state(), store.state_version(), store.serials()) == (EMPTY, None, [])
    store.commit(state(1), EMPTY)
    there, version = store.backend.read(STATE_KEY), store.state_version()
    assert there is not None
    archived = store.backend.write("history/00000001.json", there.data)  # as before a crash
    store.commit(state(2, brokers=["ü:1"]), state(1))
    assert make().read_state() == state(2, brokers=["ü:1"])
    assert make().state_version() != version
    assert make().read_serial(1) == state(1)
    assert store.backend.version("history/00000001.json") == archived
    store.commit(state(3), state(2, brokers=["ü:1"]))
    commits(store, 11, first=4)
    assert store.serials() == list(range(1, 11))  # in order
    assert make().read_serial(10) == state(10)
    assert store.backend.list("") == [STATE_KEY]  # neither folders nor files below them


def test_compare_and_swap(make: Make) -> None:
    backend, other = make().backend, make().backend
    version = backend.write("a/b", b"1", expected=None)
    for wrong in (None, "other"):
        with pytest.raises(ConflictError):
            backend.write("a/b", b"2", expected=wrong)
    assert backend.write("a/b", b"2", expected=version) != version
    with pytest.raises(ConflictError):  # each epoch is handed out once, although its file has only a number
        other.write("a/b", b"2", expected=version)
    assert backend.list("a/") == ["a/b"]
    backend.delete("a/b")
    backend.delete("a/b")
    assert backend.read("a/b") is None
    assert backend.list("a/") == []


def test_a_lock_that_cannot_be_written_is_an_error_and_stays_free(tmp_path: Path) -> None:
    store = opened(str(tmp_path), {"backend": "local", "path": "state"})
    with full_disk(0):
        assert refusal(store.lock("apply").__enter__).code == "MZ035"
    with store.lock("apply"):
        pass


def test_a_writer_that_waits_for_its_disk_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped writer (Ctrl-Z) delays no other writer, even if a command sweeps its temporary file."""
    backend, sync = LocalBackend(tmp_path), os.fsync
    goes_on, waiting = threading.Event(), threading.Semaphore(0)
    version = backend.write("leases/local.json", b"1")

    def slow(handle: int) -> None:
        if threading.current_thread() is not threading.main_thread() and not goes_on.is_set():
            waiting.release()
            goes_on.wait(60)
        sync(handle)

    monkeypatch.setattr(os, "fsync", slow)
    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(backend.write, "leases/local.json", b"late", expected=version)
        other = pool.submit(backend.write, "leases/other.json", b"other")
        try:
            assert waiting.acquire(timeout=60) and waiting.acquire(timeout=60)
            newer = LocalBackend(tmp_path).write("leases/local.json", b"2", expected=version)
            with Store(LocalBackend(tmp_path), "shop").lock("apply"):
                pass
        finally:
            goes_on.set()
        with pytest.raises(ConflictError):
            late.result(60)
        assert other.result(60) == backend.version("leases/other.json")
    assert backend.version("leases/local.json") == newer
    assert not list(tmp_path.rglob("*.tmp"))


def commits(store: Store, last: int, first: int = 1) -> None:
    """Commit these serials, one after the other."""
    for serial in range(first, last + 1):
        store.commit(state(serial), state(serial - 1) if serial > 1 else EMPTY)


def _hold(make_: Make, ready: Any) -> None:
    with make_().lock("apply"):
        ready.set()
        time.sleep(60)


@contextmanager
def lock_of_another_process(make_: Make) -> Iterator[Any]:
    """Yield a process that holds the lock."""
    ready = processes.Event()
    holder = processes.Process(target=_hold, args=(make_, ready))
    holder.start()
    try:
        assert ready.wait(60)
        yield holder
    finally:
        holder.kill()
        holder.join(10)


def refused(ask: Callable[[], object], code: str = "MZ030") -> Diagnostic:
    """Return the error with this code with which a question or a command is refused."""
    found = refusal(ask)
    assert found.code == code
    return found


def test_a_held_lock_names_its_owner_and_a_dead_owners_lock_can_be_taken(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = case.make
    with lock_of_another_process(make) as holder:
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr(socket, "gethostname", lambda: "elsewhere")
            found = lock_refusal(make())
            assert "alive" not in found.detail and "If that process is gone for certain" in found.hint
        text = lock_refusal(make()).detail
        assert "mzplan apply" in text and f"pid {holder.pid}, alive" in text
        assert re.search(r"has held it since 2\d{3}-\S+ \((\d+ s ago|just now)\)", text)
        there = make().holder()
        assert there is not None and there.pid == holder.pid
        alive = refusal(partial(make().release, there.id))
        assert alive.exit_code == ExitCode.LOCKED
        assert make().release("another") is None
        os.kill(holder.pid, signal.SIGKILL)
        holder.join(10)
        if not case.frees:
            found = lock_refusal(make(), wait=5.0)
            assert f"pid {holder.pid}, no longer alive" in found.detail
            assert f"mzplan state unlock {there.id}" in found.hint
            assert make().release(there.id) == there
    with make().lock("destroy", wait=5.0):
        monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
        there = make().holder()
        assert there is not None and make().release(there.id) == there  # a person says that its owner is gone
        with make().lock("apply", wait=5.0):
            pass


def test_a_waiting_command_respects_the_lock_taken_after_an_unlock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`state unlock` replaces the lock file, so a command that waits must not take the former file's lock."""
    make = stores.local(tmp_path).make
    sleep, waiting = time.sleep, threading.Semaphore(0)

    def note_and_sleep(seconds: float) -> None:
        waiting.release()
        sleep(seconds)

    def wait_for_the_lock() -> bool:
        with make().lock("late", wait=60.0):
            return ended.is_set()

    ended = threading.Event()
    first, second = make().lock("first"), make().lock("second")
    with ThreadPoolExecutor(1) as pool:
        info = first.__enter__()
        monkeypatch.setattr(time, "sleep", note_and_sleep)
        late = pool.submit(wait_for_the_lock)
        assert waiting.acquire(timeout=60)
        monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")  # so `release` is allowed
        assert make().release(info.id) == info
        second.__enter__()
        first.__exit__(None, None, None)  # the former file's lock is free now
        for _ in range(3):
            assert waiting.acquire(timeout=60)  # still waiting
        ended.set()
        second.__exit__(None, None, None)
        assert late.result(60)


def test_the_pid_of_a_lock_identifies_only_its_own_process(make: Make) -> None:
    with make().lock("apply") as info:
        assert info.is_alive and make().holder() == info
    assert decode(LockInfo, encode(info)) == info
    assert replace(info, pid_started=info.pid_started - 1).is_alive is False  # another process has its pid
    assert replace(info, pid_space="another boot or container").is_alive is None
    old = {k: v for k, v in encode(info).items() if k not in ("pid_started", "pid_space")}
    assert decode(LockInfo, old).is_alive is None


@pytest.mark.parametrize("method", ["write", "holder", "delete"])
def test_an_interrupted_command_leaves_no_lock(
    make: Make, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The interruption comes while it takes the lock (`write`), releases it, or works."""
    store = make()
    as_it_is = getattr(store.backend, method)
    interruptions = iter([True])

    def interrupted(*given: Any, **more: Any) -> Any:
        done = as_it_is(*given, **more)
        if next(interruptions, False):
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(store.backend, method, interrupted)
    with contextlib.suppress(KeyboardInterrupt), store.lock("apply"):
        pass
    assert make().holder() is None
    with contextlib.suppress(KeyboardInterrupt), make().lock("y"):
        raise KeyboardInterrupt
    assert make().holder() is None


def test_a_lock_taken_by_hand_refuses_every_command(make: Make) -> None:
    with make().lock("moving") as info:
        make().hold(info)
    assert "locked it by hand (moving)" in lock_refusal(make()).detail
    assert make().holder() == info
    assert make().release(info.id) == info
    with make().lock("apply"):
        pass


def test_a_damaged_state_is_refused_and_left_alone(make: Make) -> None:
    store = make()
    store.commit(state(1, brokers=["a:1"]), EMPTY)
    blob = store.backend.read(STATE_KEY)
    assert blob is not None
    newer = blob.data.replace(b'"format_version": 1', b'"format_version": 2')
    edited = blob.data.replace(b"a:1", b"b:1")
    for broken, code in ((blob.data[:99], "MZ030"), (edited, "MZ030"), (newer, "MZ031")):
        store.backend.write(STATE_KEY, broken)
        for ask in (store.read_state, lambda: store.commit(state(2), state(1))):
            refused(ask, code)
        after = store.backend.read(STATE_KEY)
        assert after is not None and after.data == broken


def test_a_refused_write_leaves_the_old_state(case: Case) -> None:
    store = case.make()
    store.commit(state(1), EMPTY)
    before = store.backend.read(STATE_KEY)
    with case.refusing():
        found = refused(lambda: store.commit(state(2, brokers=["x" * 10_000]), state(1)), "MZ035")
    assert found.exit_code == ExitCode.ERROR
    assert store.backend.read(STATE_KEY) == before
    assert case.make().read_state() == state(1)
    store.commit(state(2), state(1))


def test_a_lost_or_replaced_state_is_not_a_new_project(make: Make) -> None:
    store = make()
    store.write_status(Status(instance="local", epoch=1, heartbeat=1.0, serial=0))
    assert store.read_state() == EMPTY  # its runner started before the first commit
    commits(store, 3)
    first = store.backend.read("history/00000001.json")
    assert first is not None
    store.backend.write(STATE_KEY, first.data)
    assert "has serial 1" in refused(make().read_state).summary
    history = {key: store.backend.read(key) for key in store.backend.list("history/")}
    store.backend.write(STATE_KEY, encode_state(state(2, brokers=["another:1"])))
    for ask in (make().read_state, lambda: make().commit(state(3), state(2, brokers=["another:1"]))):
        assert "differs from serial 2" in refused(ask).summary
    store.backend.delete(STATE_KEY)
    planned_before = refusal(lambda: make().commit(state(4), state(3)))
    assert planned_before.exit_code == ExitCode.STALE
    assert {key: store.backend.read(key) for key in history} == history
    assert store.backend.read(STATE_KEY) is None
    for key in history:
        store.backend.delete(key)
    store.write_status(Status(instance="local", epoch=1, heartbeat=1.0, serial=1))
    assert "version control" in refused(make().read_state).hint  # the status alone proves the loss


def test_the_history_has_each_serial_and_its_outcome_once(make: Make) -> None:
    store, before = make(), EMPTY
    for serial in (1, 2, 3):
        who = CommitRecord(time="2026-01-01T00:00:00+00:00", command="apply", user="u", host="h")
        now = replace(state(serial), commit=who)
        make().commit(now, before)
        before = now
    ended = CommitOutcome(lineage="lineage-1", serial=3, time="2026-01-01T00:00:00+00:00", status="applied")
    store.write_outcome(ended)
    make().write_outcome(replace(ended, status="failed"))
    found = make().read_history()
    assert [(e.serial, e.current) for e in found] == [(3, True), (2, False), (1, False)]
    assert [e.outcome for e in found] == [ended, None, None]
    assert make().read_history(2) == found[:2] and make().serials() == [1, 2]
    assert make().read_outcome("another", 3) is None


def test_a_read_of_the_state_lists_no_earlier_serials(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The history grows with each commit, and each poll reads the state."""
    store, listed = make(), list[str]()
    for serial in range(1, 5):
        store.commit(state(serial), state(serial - 1) if serial > 1 else EMPTY)
    list_keys = store.backend.list

    def listing(prefix: str, after: str = "") -> list[str]:
        keys = list_keys(prefix, after)
        listed.extend(keys if prefix == "history/" else ())
        return keys

    monkeypatch.setattr(store.backend, "list", listing)
    assert store.read_state().serial == 4 and listed == []
    assert store.serials() == [1, 2, 3] and store.serials(3) == [3] and store.serials(4) == []


def test_leases_have_one_owner(make: Make) -> None:
    one, other = make(), make()
    lease = one.leases.acquire("local", "a")
    assert lease is not None and other.leases.acquire("local", "b") is None
    renewed = one.leases.renew(lease)
    assert renewed is not None and renewed.heartbeat >= lease.heartbeat
    assert one.leases.renew(renewed, released=True) is not None
    taken = other.leases.acquire("local", "b")
    assert taken is not None and taken.epoch == lease.epoch + 1
    assert one.leases.renew(renewed) is None


def test_a_path_of_the_wrong_kind_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    store = Store(LocalBackend(tmp_path / "file"), "shop")
    refused(store.lock("apply").__enter__, "MZ035")
    refusal(store.read_state)
    (tmp_path / STATE_KEY).mkdir()
    refused(Store(LocalBackend(tmp_path), "shop").read_state)


def test_a_proposal_expires_by_the_time_since_a_runner_first_saw_it(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock of a runner may differ from the clock of the command by any time."""
    store, other = make(), make()
    proposal = store.proposals.make("local", ())
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert [p.id for p in store.proposals.open("local")] == [proposal.id]
    assert other.proposals.open("elsewhere") == []
    assert len(store.backend.list("proposals/")) == 1
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 1000)
    assert store.proposals.open("local") == []
    assert store.backend.list("proposals/") == []


def test_a_failed_read_removes_no_proposal(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    store = make()
    proposal = store.proposals.make("local", ())

    def fail(key: str) -> None:
        raise error("MZ095", "away", "", "")

    with monkeypatch.context() as broken:
        broken.setattr(store.backend, "read", fail)
        assert store.proposals.open("local") == []
    assert [p.id for p in store.proposals.open("local")] == [proposal.id]
    store.backend.write(f"proposals/{proposal.id}.json", b"not a proposal")
    assert store.proposals.open("local") == store.backend.list("proposals/") == []


# --- single backends


NOWHERE = {"host": "127.0.0.1", "port": 1, "database": "d", "user": "u", "password": "${file:pw}"}
KEYS = {"access_key_id": "an-id", "secret_access_key": "${file:pw}"}
S3 = {"backend": "object-store", "region": "us-east-1", **KEYS}


@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        ({**S3, "url": "s3://gone/shop", "endpoint": "http://127.0.0.1:1"}, "MZ095", "s3://gone/shop"),
        ({"backend": "postgres", **NOWHERE}, "MZ095", ""),
        ({**S3, "url": "gopher://x/y"}, "MZ005", ""),
    ],
    ids=["unreachable-s3", "unreachable-postgres", "invalid-url"],
)
def test_a_store_that_cannot_be_reached_is_an_error_without_its_secret(
    tmp_path: Path, settings: dict[str, Any], code: str, says: str
) -> None:
    (tmp_path / "pw").write_text("hunter2")
    store = stores.opened(str(tmp_path), settings)
    for ask in (store.read_state, lambda: store.commit(state(1), EMPTY)):
        found = refused(ask, code)
        assert says in found.summary and "hunter2" not in str(found)


def test_a_missing_bucket_is_an_error(object_server: ObjectServer, tmp_path: Path) -> None:
    case = stores.object_store(tmp_path, object_server, "there")
    store = stores.opened(str(tmp_path), {**case.make.args[1], "url": "s3://not-there/x"})  # type: ignore[attr-defined]
    refused(lambda: store.commit(state(1), EMPTY), "MZ035")


def test_the_declared_endpoint_wins_over_the_environment(
    object_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    case = stores.object_store(tmp_path, object_server, "declared")
    case.make().commit(state(1), EMPTY)
    assert case.make().read_state() == state(1)
    assert os.environ["AWS_ENDPOINT_URL_S3"] == "http://127.0.0.1:9"  # because other code may need it


def test_a_lost_connection_is_reopened(postgres: Any, database: Callable[..., str], tmp_path: Path) -> None:
    name = database("lost")
    store = stores.postgres(tmp_path, postgres, name).make()
    for serial in (1, 2):
        commits(store, serial, first=serial)
        end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'state_{name}'"
        execute(postgres.dsn(name), end)
        assert store.read_state() == state(serial)
        execute(postgres.dsn(name), end)


def test_a_lost_answer_of_the_object_store_is_no_conflict(
    object_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library retries, and the condition doesn't hold because of its own first write."""
    store = stores.object_store(tmp_path, object_server, "lost-answers").make()
    store.commit(state(1), EMPTY)
    monkeypatch.setattr(object_server, "late", True)
    for serial in (2, 3, 4):
        monkeypatch.setattr(object_server, "fails_at", len(object_server.requests) + serial - 2)
        store.commit(state(serial), state(serial - 1))
    assert object_server.requests[object_server.fails_at] == "PUT"
    assert store.read_state() == state(4) and store.serials() == [1, 2, 3]


# --- the event log


def happened(number: int, detail: str = "") -> Event:
    at = instant_text(1_764_000_000_000 + number * 1000)
    return Event(at=at, kind="failed", address=A, code="MZ050", detail=detail or str(number))


def logged(make: Make) -> list[str]:
    return [one.event.detail for one in EventReader(make().backend).newest_first(lambda line: True)][::-1]


def test_events_of_every_runner_are_read_back(make: Make) -> None:
    """Each runner continues in one key while it is small, and leaves out a line that a crash cut off."""
    follower = EventReader(make().backend)
    assert list(follower.fresh()) == []
    for epoch in (1, 2, 3):
        log = EventLog(make().backend, "local", epoch, clock=lambda epoch=epoch: 1_764_000_000.0 + epoch)
        log.flush()  # nothing is queued
        for number in range(2):
            log.add([happened(epoch * 10 + number)], serial=epoch)
            log.flush()
            fresh = [one.event.detail for one in follower.fresh()]
            assert fresh == [str(epoch * 10 + number)]  # also if the runner has merged a segment
            assert list(follower.fresh()) == []
        (key,) = make().backend.list("events/")
        blob = make().backend.read(key)
        assert blob is not None and key == f"events/local.{1_764_000_000_000 + epoch * 1000}-{epoch}.jsonl"
        make().backend.write(key, blob.data + b'{"at":"2026-')
    reader = EventReader(make().backend)
    found = list(reader.newest_first(lambda line: True))
    assert [(one.event.epoch, one.event.serial, one.event.detail) for one in found] == [
        (epoch, epoch, str(epoch * 10 + number)) for epoch in (3, 2, 1) for number in (1, 0)
    ]
    assert reader.unreadable == 1 and {one.instance for one in found} == {"local"}
    other = EventLog(make().backend, "big", 4)
    other.add([happened(40)], serial=1)
    other.flush()
    assert sorted(logged(make)) == ["10", "11", "20", "21", "30", "31", "40"]


def test_the_log_is_bounded_by_time_and_by_size(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mzplan.store.event_log.SEGMENT_BYTES", 1000)
    monkeypatch.setattr("mzplan.store.event_log.RETENTION_BYTES", 5000)
    now = [1_764_000_000.0]
    log = EventLog(make().backend, "local", 1, clock=lambda: now[0])
    for number in range(9):
        log.add([happened(number, f"{number}{'x' * 900}")], serial=1)
        log.flush()
        now[0] += 1.0
    assert [text[0] for text in logged(make)] == ["4", "5", "6", "7", "8"]
    now[0] += 91 * 86_400.0
    log.add([happened(9, "y" * 900)], serial=1)
    log.flush()
    # The time of a segment's last event is unknown, so it expires with the next segment.
    assert [text[0] for text in logged(make)] == ["8", "y"]


def test_unwritten_events_stay_queued(case: Case) -> None:
    log = EventLog(case.make().backend, "local", 1)
    log.add([happened(1, "z" * 900)], serial=1)
    log.add([happened(n, "z" * 900) for n in range(2, 6)], serial=1)
    with case.refusing(), pytest.raises(MzplanError):
        log.flush()

    def written() -> bool:
        with contextlib.suppress(MzplanError):  # a session takes time to end
            log.flush()
        return log.queued_seconds() == -1

    eventually("all events are written", written, 30)
    assert len(logged(case.make)) == 5


def test_a_crash_during_a_merge_shows_no_event_twice(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for epoch in (1, 2):
        backend = make().backend
        if epoch == 2:
            monkeypatch.setattr(backend, "delete", lambda key: None)  # this line isn't reached
        log = EventLog(backend, "local", epoch)
        log.add([happened(epoch)], serial=1)
        log.flush()
    assert len(make().backend.list("events/")) == 2 and logged(make) == ["1", "2"]


def test_a_commit_wakes_a_waiting_runner(postgres: Any, database: Callable[..., str], tmp_path: Path) -> None:
    store = stores.postgres(tmp_path, postgres, database("notified")).make()
    woken = threading.Event()
    unwatch = store.backend.watch(woken.set)
    try:
        eventually("it listens", woken.is_set)
        for serial in (1, 2, 3):
            woken.clear()
            commits(store, serial, first=serial)
            eventually(f"serial {serial} wakes it", woken.is_set)
    finally:
        unwatch()
