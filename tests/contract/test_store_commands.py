"""The commands of a team on each backend: two checkouts, one state, moved from one backend to the next."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from mzplan.model.address import Address
from mzplan.store.backends.local import STATE_KEY
from mzplan.store.epochs import next_epoch
from mzplan.store.journal import Dropped, Prepared, encode_journal
from tests.contract import stores
from tests.contract.stores import ObjectServer, opened
from tests.unit.cli_runs import apply, mzplan, write


@pytest.fixture
def object_server() -> Iterator[ObjectServer]:
    server = ObjectServer()
    server.start()
    yield server
    server.stop()


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
# Where the tests run in the background, these are ignored; in a terminal they are not.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
import mzplan.operations.validation as validation
from mzplan.cli.main import main

def reach(*_, **__):
    print("locked", flush=True)
    time.sleep(60)

validation.reach = reach
main(sys.argv[1:])
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
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


@pytest.mark.parametrize("kind", ["local", "postgres", "object-store"])
def test_the_fix_of_a_lost_state_restores_it(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path
) -> None:
    if kind == "postgres":
        database = request.getfixturevalue("database")("lost_state")
        case = stores.postgres(tmp_path, request.getfixturevalue("postgres"), database)
    elif kind == "object-store":
        case = stores.object_store(tmp_path, request.getfixturevalue("object_server"), "lost")
    else:
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


def test_two_checkouts_share_a_state_that_moves_twice(
    postgres: Any, database: Callable[..., str], object_server: ObjectServer, tmp_path: Path
) -> None:
    folders = {}
    for name in ("local", "postgres", "objects"):
        folders[name] = tmp_path / name
        folders[name].mkdir()
    cases = {
        "local": stores.local(folders["local"]),
        "postgres": stores.postgres(folders["postgres"], postgres, database("team")),
        "objects": stores.object_store(folders["objects"], object_server, "team"),
    }
    pulled = b""
    for number, (name, case) in enumerate(cases.items()):
        folder = checkout(folders[name], settings_of(case))
        if number == 0:
            apply(folder)
        else:
            copy = tmp_path / "state.json"
            copy.write_bytes(pulled)
            assert mzplan(folder, "state", "pull").code == 1  # nothing there yet
            assert mzplan(folder, "state", "push", str(copy)).code == 0
        serial = mzplan(folder, "state", "list", "--json").json()["serial"]
        assert mzplan(folder, "plan", "--detailed-exitcode").code == 0
        assert mzplan(folder, "pause", "sink.few", "--json").json()["serial"] == serial + 1
        assert mzplan(folder, "drift", "--detailed-exitcode").code == 0

        id_ = mzplan(folder, "state", "lock", "--json").json()["lock"]["id"]
        assert mzplan(folder, "restart", "sink.out").code == 6
        assert mzplan(folder, "state", "unlock", id_).code == 0
        full_or_refusing(folder, case)
        killed_with_the_lock(folder, case)
        damaged_and_repaired(folder, case)
        ran = mzplan(folder, "state", "rollback", str(serial), "--auto-approve", "--json")
        assert ran.code == 0 and ran.json()["serial"] == serial + 5
        pulled = mzplan(folder, "state", "pull").out.encode()
        assert b"a-secret-key" not in pulled and b"pw-state" not in pulled
    assert json.loads(pulled)["serial"] == 16


def full_or_refusing(folder: Path, case: stores.Case) -> None:
    """A full disk, or a server that refuses writes, is an error, and the old state stays."""
    before = mzplan(folder, "state", "pull").out
    wide = {"description": "x" * 3000}
    text = (folder / "pipeline.yaml").read_text()
    (folder / "pipeline.yaml").write_text(text.replace("rows: 3", f"rows: 3, {json.dumps(wide)[1:-1]}"))
    with case.refusing():
        ran = mzplan(folder, "apply", "--auto-approve", "--json")
    assert ran.code == 1 and ran.error()["code"] == "MZ035", ran
    assert mzplan(folder, "state", "pull").out == before
    (folder / "pipeline.yaml").write_text(text)


def killed_with_the_lock(folder: Path, case: stores.Case) -> None:
    """A command dies with the lock. If the lock stays, the error explains how to release it by its id."""
    command = [sys.executable, "-m", "mzplan", "-C", str(folder), "restart", "sink.out"]
    stopped = {**os.environ, "MZPLAN_FAILPOINT": "apply.locked"}
    killed = subprocess.Popen(command, env=stopped)
    assert killed.wait(60) == -signal.SIGKILL
    ran = mzplan(folder, "restart", "sink.few", "--json")
    if case.frees:
        assert ran.code == 0
    else:
        (found,) = ran.json()["diagnostics"]
        assert ran.code == 6 and f"pid {killed.pid}, no longer alive" in found["detail"]
        assert socket.gethostname() in found["detail"] and " (" in found["detail"].partition("since")[2]
        id_ = found["hint"].rpartition(" ")[2]
        assert mzplan(folder, "state", "unlock", id_).code == 0
        assert mzplan(folder, "restart", "sink.few").code == 0


def damaged_and_repaired(folder: Path, case: stores.Case) -> None:
    """Commands alone restore an unreadable state from the history, on every backend."""
    backend = case.make().backend
    whole = mzplan(folder, "state", "pull").out
    serial, broken = json.loads(whole)["serial"], whole[: len(whole) // 2].encode()
    backend.write("mzplan.state.json", broken)
    copy = folder.parent / f"{folder.name}-earlier.json"
    for command in (("plan",), ("state", "pull"), ("apply", "--auto-approve"), ("state", "rollback")):
        ran = mzplan(folder, *command, "--json")
        assert ran.code in (1, 64) and "MZ079" not in ran.out, ran
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


def test_records_of_runners_move_with_the_state(
    postgres: Any, database: Callable[..., str], object_server: ObjectServer, tmp_path: Path
) -> None:
    """Journals and accepted descriptions move from one backend to the next, and to a third."""
    for name in ("local", "postgres", "objects"):
        (tmp_path / name).mkdir()
    cases = [
        stores.local(tmp_path / "local"),
        stores.postgres(tmp_path / "postgres", postgres, database("moving")),
        stores.object_store(tmp_path / "objects", object_server, "moving"),
    ]
    copy, carried = tmp_path / "state.json", tmp_path / "state.json.runners"
    dropped = Dropped.of(Address("sink", "gone"), "gone-id", 1, float(int(time.time())))
    prepared = Prepared(id="coming", from_id="some-id", step=3)
    folders = [
        checkout(tmp_path / name, settings_of(case))
        for name, case in zip(("local", "postgres", "objects"), cases, strict=True)
    ]
    apply(folders[0])
    first = cases[0].make()
    first.write_journal("local", [dropped])
    first.write_past_runs("local", [("removed-id", 2)])
    epochs = [next_epoch(first.backend) for _ in range(7)]
    accepted = first.read_accepted("local")
    assert len(accepted) == 3
    for before, after in itertools.pairwise(zip(folders, cases, strict=True)):
        before[1].make().write_prepared("local", [prepared])
        assert mzplan(before[0], "state", "pull", "--out", str(copy)).code == 0
        keys = json.loads(carried.read_text())["keys"]
        assert keys["journal/local.prepared.jsonl"].encode() == encode_journal([prepared])
        assert mzplan(after[0], "state", "push", str(copy)).code == 0
        store = after[1].make()
        assert store.read_journal("local") == [dropped]
        # No sink of the state was prepared, so the runner there has cancelled the token.
        assert store.read_prepared("local") == []
        assert store.read_past_runs("local") == {("removed-id", 2)}
        assert store.read_accepted("local") == accepted
        # Targets refuse a runner whose epoch is lower than what they know.
        epochs.append(next_epoch(store.backend))
        assert epochs == sorted(set(epochs)), epochs
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
GRANTS = "GRANT USAGE ON SCHEMA mzplan TO {role}; GRANT SELECT ON mzplan.blobs TO {role}"


def looks_and_commits_nothing(folder: Path) -> None:
    """Read-only commands need only the right to read. Commands that commit are refused with an error."""
    for command in LOOKING:
        ran = mzplan(folder, *command.split())
        assert ran.code == 0, f"{command}: {ran.err}"
    ran = mzplan(folder, "pause", "sink.few", "--json")
    assert ran.code == 1 and ran.error()["code"] == "MZ035", ran


def test_read_only_commands_need_only_read_rights_in_postgres(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    server = request.getfixturevalue("postgres")
    database = request.getfixturevalue("database")("looking")
    case = stores.postgres(tmp_path, server, database)
    state = settings_of(case)
    with psycopg.connect(server.dsn(database), autocommit=True) as admin:
        admin.execute(b"CREATE ROLE looking_reader LOGIN PASSWORD 'reads'")
    try:
        (tmp_path / "reader").write_text("reads\n")
        reading = {**state, "user": "looking_reader", "password": "${file:../reader}"}
        reader = checkout(tmp_path / "reader-job", reading)
        assert mzplan(reader, "plan").code == 0  # of a project without a commit
        assert apply(checkout(tmp_path / "writer", {**state, "password": "${file:../pw}"})).code == 0
        with psycopg.connect(server.dsn(database), autocommit=True) as admin:
            admin.execute(GRANTS.format(role="looking_reader").encode())
            before = admin.execute("SELECT * FROM mzplan.blobs ORDER BY key").fetchall()
        looks_and_commits_nothing(reader)
        assert "No changes" in mzplan(reader, "plan").out
        with psycopg.connect(server.dsn(database), autocommit=True) as admin:
            assert admin.execute("SELECT * FROM mzplan.blobs ORDER BY key").fetchall() == before
    finally:
        with psycopg.connect(server.dsn(database), autocommit=True) as admin:
            admin.execute(b"DROP OWNED BY looking_reader")
            admin.execute(b"DROP ROLE looking_reader")


def test_read_only_commands_need_only_read_keys_in_an_object_store(
    object_server: ObjectServer, tmp_path: Path
) -> None:
    case = stores.object_store(tmp_path, object_server, "looking")
    folder = checkout(tmp_path, settings_of(case))
    object_server.read_only = True
    assert mzplan(folder, "plan").code == 0
    object_server.read_only = False
    assert apply(folder).code == 0
    object_server.read_only = True
    object_server.requests.clear()
    looks = [mzplan(folder, *command.split()) for command in LOOKING]
    assert {ran.code for ran in looks} == {0} and "No changes" in looks[0].out
    assert set(object_server.requests) <= {"GET", "HEAD"}  # not even tried
    ran = mzplan(folder, "pause", "sink.few", "--json")
    assert ran.code == 1 and ran.error()["code"] == "MZ035"
