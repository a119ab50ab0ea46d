"""A damaged, edited, full or read-only store: one clear error, soon, and the state is unchanged."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.store.backends.local import STATE_KEY, LocalBackend
from mzplan.store.formats import decode_status, encode_status
from mzplan.store.store import Store
from tests.support import full_disk
from tests.unit.cli_runs import apply, mzplan, write
from tests.unit.runner.test_runner import World

OUT = Address("sink", "out")
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
    before = state_file(folder).read_bytes()
    began = time.monotonic()
    ran = mzplan(folder, *arguments, "--json")
    assert time.monotonic() - began < 20
    assert ran.code == 1, ran
    found = ran.error()
    assert found["code"] == code and found["hint"], found
    assert state_file(folder).read_bytes() == before
    return found


APPLY = ("apply", "--auto-approve")


# --- content with a right checksum


def at(address: str, **values: Any) -> Edit:
    return lambda document: document["resources"][address].update(values)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (at("source.orders", id="../../../etc"), "source.orders: id is not an id"),
        (at("source.orders", body={"instance": "gone"}), "instance gone, which isn't declared"),
        (at("source.orders", references={"connection": "source.orders"}), "refer to each other in a cycle"),
        (at("source.orders", references={"connection": "connection.gone"}), "a resource that isn't there"),
        (lambda d: d["resources"].update({"table.x": {}}), "'table.x' is not an address"),
        (lambda d: d["instances"].update({"../x": {"type": "dry"}}), "is not the name of an instance"),
        (lambda d: d.update(serial=float("nan")), "NaN is not a number"),
    ],
)
def test_an_edited_state_is_an_error_that_names_the_value(folder: Path, edit: Edit, says: str) -> None:
    edit_state(folder, edit)
    assert says in refused(folder, *APPLY, code="MZ030")["detail"]


def test_a_state_of_a_newer_mzplan_is_not_read(folder: Path) -> None:
    edit_state(folder, at("source.orders", type="mysql"))
    assert "a source of type 'mysql'" in refused(folder, *APPLY, code="MZ031")["detail"]


# --- rights and space


def test_a_read_only_store_can_be_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root may write everywhere, every write below the store gets a read-only file system's answer."""
    real = os.open

    def opened(path: Any, flags: int, *more: Any, **options: Any) -> int:
        handle = options.get("dir_fd")
        whole = Path(f"/proc/self/fd/{handle}").readlink() / path if handle is not None else Path(path)
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and str(folder) in str(whole):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return real(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", opened)
    assert mzplan(folder, "plan", "--detailed-exitcode").code == 2
    assert mzplan(folder, "status").code == 0
    assert mzplan(folder, "drift").code == 0
    found = refused(folder, *APPLY, code="MZ035")
    assert "Read-only" in found["detail"] and "read-only" in found["hint"]


def test_a_full_disk_changes_nothing(folder: Path) -> None:
    with full_disk(700):
        refused(folder, *APPLY, code="MZ035")
    assert list((folder / "state").rglob("*.tmp")) == []


# --- the lock


def test_a_damaged_lock_file_still_locks_and_unlocks(folder: Path) -> None:
    lock, garbage = folder / "state" / "lock", b"[" * 70_000
    lock.write_bytes(garbage)
    assert mzplan(folder, *APPLY).code == 0
    backend = LocalBackend(folder / "state")
    with Store(backend, "shop").lock("test"):
        lock.write_bytes(garbage)
        with pytest.raises(MzplanError, match="MZ033"), Store(backend, "shop").lock("another"):
            pass


def test_apply_removes_only_temporary_files_of_killed_writers(folder: Path) -> None:
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


def seen(**values: Any) -> Edit:
    return lambda document: document["observations"]["sink.out"].update(values)


@pytest.mark.parametrize(
    ("key", "edit", "says"),
    [
        ("status/local.json", lambda d: d.update(heartbeat=float("inf")), "Infinity is not a number"),
        ("status/local.json", seen(condition="dancing"), "sink.out: condition has an unknown value"),
        ("leases/local.json", lambda d: d.update(pid=-4), "pid is out of range"),
    ],
)
def test_a_damaged_status_or_lease_is_an_error(folder: Path, key: str, edit: Edit, says: str) -> None:
    change(folder, key, edit)
    found = refused(folder, "status", code="MZ030")
    assert key in found["summary"] and says in found["detail"] and "delete it" in found["hint"]


def test_a_rate_that_spark_reports_as_nan_is_zero(folder: Path) -> None:
    status = Store(LocalBackend(folder / "state"), "shop").read_status("local")
    assert status is not None
    odd = replace(status.observations[OUT], input_rows_per_second=float("nan"))
    written = encode_status(replace(status, observations={OUT: odd}))
    assert decode_status(written, "x").observations[OUT].input_rows_per_second == 0.0


def test_status_shows_a_backlog_and_ignores_what_only_a_newer_runner_reports(folder: Path) -> None:
    backlog = {"lag_bytes": 2048, "retained_bytes": 5 << 20}
    change(folder, "status/local.json", seen(backlog=backlog, mood="good"))
    ran = mzplan(folder, "status")
    assert ran.code == 0 and "2.0 KiB of the server's log to read; its slot keeps 5.0 MiB" in ran.out


# --- a runner in such a store


@pytest.fixture
def applied(tmp_path: Path) -> Path:
    """A committed project without a runner. Request it before `world`."""
    write(tmp_path, "cluster")
    assert mzplan(tmp_path, *APPLY, "--no-live", "--wait", "0s").code == 8
    return tmp_path


def test_a_runner_removes_damaged_proposals_and_starts_its_queries(applied: Path, world: World) -> None:
    proposals = applied / "state" / "proposals"
    proposals.mkdir()
    (proposals / "garbage.json").write_bytes(b"\xff{")
    (proposals / "empty.json").write_bytes(b"")
    (proposals / "late.answer.json").write_bytes(b"{}")
    world.settle()
    assert set(map(str, world.executor.running())) == {"source.orders", "sink.out", "sink.few"}
    assert list(proposals.iterdir()) == []


def test_queries_run_on_while_the_state_is_damaged(
    applied: Path, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    def what_was_done() -> list[str]:
        world.settle()
        assert len(world.executor.running()) == 3
        return [what for what, _ in world.executor.log]

    assert what_was_done() == ["start"] * 3
    whole = state_file(applied).read_bytes()
    state_file(applied).write_bytes(whole[:-30])
    caplog.clear()
    assert what_was_done() == ["start"] * 3
    # It heals meanwhile, and says once, not each round, what is wrong.
    world.fail(OUT)
    world.runner.tick()
    world.now += 5.0
    assert what_was_done() == ["start"] * 3 + ["stop", "start"]
    said = [r.getMessage()[:25] for r in caplog.records if r.levelname == "WARNING"]
    assert said == ["the state can't be read; "]
    state_file(applied).write_bytes(whole)
    assert what_was_done()[3:] == ["stop", "start"]


def test_run_refuses_a_name_that_leads_out_of_the_store(folder: Path) -> None:
    assert mzplan(folder, "run", "--instance", "../../x").code == 64
