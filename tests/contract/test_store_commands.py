"""The commands of a team on each backend: two checkouts, one state, moved from one backend to the next."""

from __future__ import annotations

import itertools
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from mzplan.model.address import Address
from mzplan.store.backends.local import STATE_KEY
from mzplan.store.epochs import next_epoch
from mzplan.store.journal import Dropped, Prepared, encode_journal
from tests.contract import stores
from tests.contract.stores import ObjectServer, opened
from tests.support import execute, rows_of
from tests.unit.cli_runs import apply, mzplan, write


def checkout(folder: Path, state: dict[str, Any]) -> Path:
    """Return a checkout of the project with these settings of `state`."""
    write(folder)
    settings = folder / "mzplan.yaml"
    settings.write_text(settings.read_text() + f"state: {json.dumps(state)}\n")
    return folder


def settings_of(case: stores.Case) -> dict[str, Any]:
    """Return the settings of this backend for mzplan.yaml."""
    return dict(case.make.args[1])  # type: ignore[attr-defined]


_SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if the tests run in the background
import mzplan.operations.validation as validation
from mzplan.cli.main import main

def reach(*_, **__):
    print("locked", flush=True)
    time.sleep(60)

validation.reach = reach
main(sys.argv[1:])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_command_ended_by_a_signal_leaves_no_lock(
    object_server: ObjectServer, tmp_path: Path, number: signal.Signals
) -> None:
    case = stores.object_store(tmp_path, object_server, f"ended-{number}")
    folder = checkout(tmp_path, settings_of(case))
    command = [sys.executable, "-c", _SLOW, "-C", str(folder), "apply", "--auto-approve"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "locked\n" in iter(process.stdout.readline, "")
    assert case.make().holder() is not None
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and err.endswith("Interrupted: nothing was changed.\n"), err
    assert case.make().holder() is None


def test_the_fix_of_a_lost_state_restores_it(tmp_path: Path) -> None:
    case = stores.local(tmp_path)
    folder = checkout(tmp_path, settings_of(case))
    assert apply(folder).code == 0
    assert mzplan(folder, "pause", "sink.few").code == 0
    assert mzplan(folder, "resume", "sink.few").code == 0
    store = case.make()
    first, last = store.read_serial(1), store.read_state()
    history = {key: store.backend.read(key) for key in store.backend.list("history/")}
    assert first is not None and last.serial == 3

    def older() -> None:
        blob = history["history/00000001.json"]
        assert blob is not None
        store.backend.write(STATE_KEY, blob.data)

    for serial, lose in ((4, lambda: store.backend.delete(STATE_KEY)), (5, older)):
        lose()
        ran = None
        for command in (("plan",), ("apply", "--auto-approve"), ("status",), ("state", "pull")):
            ran = mzplan(folder, *command, "--json")
            assert ran.code == 1 and ran.error()["code"] == "MZ030", command
        assert ran is not None
        _, _, without_backup = ran.error()["hint"].partition("; or ")
        fix = re.findall(r"mzplan (state (?:pull|push)[^,;:]*)", without_backup)
        copy = str(tmp_path / "copy.json")
        for command in fix:
            ran = mzplan(folder, *command.replace("FILE", copy).split())
            assert ran.code == 0, ran
        assert store.read_state().serial == serial
        assert store.read_state().lineage == last.lineage
        assert {a: r.id for a, r in store.read_state().resources.items()} == {
            a: r.id for a, r in first.resources.items()
        }
    kept = {key: store.backend.read(key) for key in history}
    assert kept == history


def on_each_backend(
    folder: Path, server: Any, database: str, object_server: ObjectServer, bucket: str
) -> list[tuple[Path, stores.Case]]:
    """Return a checkout with each backend."""
    folders = [folder / name for name in ("local", "postgres", "objects")]
    for one in folders:
        one.mkdir()
    cases = (
        stores.local(folders[0]),
        stores.postgres(folders[1], server, database),
        stores.object_store(folders[2], object_server, bucket),
    )
    return [(checkout(one, settings_of(case)), case) for one, case in zip(folders, cases, strict=True)]


def damaged_and_repaired(folder: Path, case: stores.Case) -> None:
    """Commands alone restore an unreadable state from the history."""
    backend = case.make().backend
    assert mzplan(folder, "pause", "sink.few").code == 0
    whole = mzplan(folder, "state", "pull").out
    serial, broken = json.loads(whole)["serial"], whole[: len(whole) // 2].encode()
    backend.write("mzplan.state.json", broken)
    copy = folder.parent / f"{folder.name}-earlier.json"
    for command in (("plan",), ("apply", "--auto-approve")):
        assert mzplan(folder, *command, "--json").error()["code"] == "MZ030"
    assert mzplan(folder, "state", "pull", "--serial", "9999", "--json").error()["code"] == "MZ038"
    assert mzplan(folder, "state", "pull", "--serial", str(serial - 1), "--out", str(copy)).code == 0
    assert mzplan(folder, "state", "push", str(copy), "--json").error()["code"] == "MZ030"
    ran = mzplan(folder, "state", "push", str(copy), "--force", "--json")
    assert ran.code == 0 and ran.json() == {"serial": serial + 1, "written": True}
    kept = backend.read(f"history/damaged-before-{serial + 1:08d}.json")
    assert kept is not None and kept.data == broken
    assert mzplan(folder, "plan").code == 0
    copy.write_text(whole)  # what was lost with it
    ran = mzplan(folder, "state", "push", str(copy), "--force", "--json")
    assert ran.code == 0 and ran.json()["serial"] == serial + 2


def test_a_state_and_the_records_of_its_runners_move_between_backends(
    postgres: Any, database: Callable[..., str], object_server: ObjectServer, tmp_path: Path
) -> None:
    """Journals and accepted descriptions move from one backend to the next, and to a third."""
    copy, carried = tmp_path / "state.json", tmp_path / "state.json.runners"
    dropped = Dropped.of(Address("sink", "gone"), "gone-id", 1, float(int(time.time())))
    prepared = Prepared(id="coming", from_id="some-id", step=3)
    checkouts = on_each_backend(tmp_path, postgres, database("moving"), object_server, "moving")
    apply(checkouts[0][0])
    first = checkouts[0][1].make()
    first.write_journal("local", [dropped])
    first.write_past_runs("local", [("removed-id", 2)])
    epochs = [next_epoch(first.backend) for _ in range(7)]
    accepted = first.read_accepted("local")
    assert len(accepted) == 3
    for before, after in itertools.pairwise(checkouts):
        before[1].make().write_prepared("local", [prepared])
        assert mzplan(before[0], "state", "pull", "--out", str(copy)).code == 0
        assert "a-secret-key" not in copy.read_text() and "pw-state" not in copy.read_text()
        keys = json.loads(carried.read_text())["keys"]
        assert keys["journal/local.prepared.jsonl"].encode() == encode_journal([prepared])
        assert mzplan(after[0], "state", "pull").code == 1  # the store is empty
        assert mzplan(after[0], "state", "push", str(copy)).code == 0
        assert mzplan(after[0], "plan", "--detailed-exitcode").code == 0
        store = after[1].make()
        assert store.read_journal("local") == [dropped]
        # No sink of the state was prepared, so the runner there has cancelled the token.
        assert store.read_prepared("local") == []
        assert store.read_past_runs("local") == {("removed-id", 2)}
        assert store.read_accepted("local") == accepted
        # Targets refuse a runner whose epoch is lower than what they know.
        epochs.append(next_epoch(store.backend))
        assert epochs == sorted(set(epochs)), epochs
    damaged_and_repaired(*checkouts[-1])
    # A damaged file, or one of another state, is refused before anything is written.
    whole = carried.read_text()
    other = checkout(tmp_path / "other", {"path": "state"})
    for broken in ("{", whole.replace(dropped.id, "../x"), whole.replace('"lineage": "', '"lineage": "x')):
        carried.write_text(broken)
        ran = mzplan(other, "state", "push", str(copy), "--json")
        assert ran.code == 1 and ran.error()["code"] == "MZ038", ran
        assert mzplan(other, "state", "pull").code == 1
    carried.write_text(whole)
    journal = other / ".mzplan" / "alter.json"
    journal.parent.mkdir(exist_ok=True)
    journal.write_text("{}")
    ran = mzplan(other, "state", "push", str(copy), "--json")
    assert ran.code == 7 and ran.error()["code"] == "MZ038"
    journal.unlink()
    noted = json.loads(whole)
    assert mzplan(other, "state", "push", str(copy)).code == 0
    carried.write_text(json.dumps({**noted, "epoch": 50}))  # pushed again to the same store
    assert mzplan(other, "state", "push", str(copy)).code == 0
    assert next_epoch(opened(str(other), {"backend": "local", "path": "state"}).backend) == 51


LOOKING = ("plan", "drift", "show", "status", "graph", "state list", "state pull", "validate")


def looks_and_commits_nothing(folder: Path, requests: Sequence[str] = ()) -> None:
    """Read-only commands need only the right to read. Commands that commit are refused with an error."""
    for command in LOOKING:
        ran = mzplan(folder, *command.split())
        assert ran.code == 0, f"{command}: {ran.err}"
        assert command != "plan" or "No changes" in ran.out
    assert set(requests) <= {"GET", "HEAD"}  # they don't even try to write
    ran = mzplan(folder, "pause", "sink.few", "--json")
    assert ran.code == 1 and ran.error()["code"] == "MZ035", ran


def test_read_only_commands_need_only_read_rights_in_postgres(
    postgres: Any, database: Callable[..., str], tmp_path: Path
) -> None:
    name = database("looking")
    dsn, blobs = postgres.dsn(name), "SELECT * FROM mzplan.blobs ORDER BY key"
    state = settings_of(stores.postgres(tmp_path, postgres, name))
    execute(dsn, "CREATE ROLE looking_reader LOGIN PASSWORD 'reads'")
    try:
        (tmp_path / "reader").write_text("reads\n")
        reading = {**state, "user": "looking_reader", "password": "${file:../reader}"}
        reader = checkout(tmp_path / "reader-job", reading)
        assert mzplan(reader, "plan").code == 0  # of a project without a commit
        assert apply(checkout(tmp_path / "writer", {**state, "password": "${file:../pw}"})).code == 0
        execute(dsn, "GRANT USAGE ON SCHEMA mzplan TO looking_reader")
        execute(dsn, "GRANT SELECT ON mzplan.blobs TO looking_reader")
        before = rows_of(dsn, blobs)
        looks_and_commits_nothing(reader)
        assert rows_of(dsn, blobs) == before
    finally:
        execute(dsn, "DROP OWNED BY looking_reader; DROP ROLE looking_reader")


def test_read_only_commands_need_only_read_keys_in_an_object_store(
    object_server: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = stores.object_store(tmp_path, object_server, "looking")
    folder = checkout(tmp_path, settings_of(case))
    with monkeypatch.context() as limited:
        limited.setattr(object_server, "read_only", True)
        assert mzplan(folder, "plan").code == 0
    assert apply(folder).code == 0
    monkeypatch.setattr(object_server, "read_only", True)
    object_server.requests.clear()
    looks_and_commits_nothing(folder, object_server.requests)
