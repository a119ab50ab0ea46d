"""The commands of a team on each backend: two checkouts, one state, moved from one backend to the next.
Also read-only logins, and PostgreSQL's lock."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

from mzplan.model.address import Address
from mzplan.store.backends.local import STATE_KEY
from mzplan.store.journal import Dropped, Prepared, encode_journal
from mzplan.store.leases import next_epoch
from tests.contract import stores
from tests.contract.stores import ObjectServer, lock_refusal, opened
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


def test_the_fix_of_a_lost_state_restores_it(tmp_path: Path) -> None:
    case = stores.local(tmp_path)
    folder = checkout(tmp_path, settings_of(case))
    assert apply(folder).code == 0
    assert mzplan(folder, "pause", "sink.few").code == 0
    assert mzplan(folder, "resume", "sink.few").code == 0
    store = case.make()
    first, last = store.read_serial(1), store.read_state()
    history = {key: store.backend.read(key) for key in store.backend.list("history/")}
    older = history["history/00000001.json"]
    assert first is not None and older is not None and last.serial == 3
    ids = {a: r.id for a, r in first.resources.items()}
    for serial in (4, 5):
        if serial == 4:
            store.backend.delete(STATE_KEY)
        else:
            store.backend.write(STATE_KEY, older.data)
        for command in (("plan",), ("apply", "--auto-approve"), ("status",), ("state", "pull")):
            ran = mzplan(folder, *command, "--json")
            assert ran.code == 1 and ran.error()["code"] == "MZ030", command
        _, _, without_backup = ran.error()["hint"].partition("; or ")
        fix = re.findall(r"mzplan (state (?:pull|push)[^,;:]*)", without_backup)
        copy = str(tmp_path / "copy.json")
        for command in fix:
            ran = mzplan(folder, *command.replace("FILE", copy).split())
            assert ran.code == 0, ran
        found = store.read_state()
        assert (found.serial, found.lineage) == (serial, last.lineage)
        assert {a: r.id for a, r in found.resources.items()} == ids
    assert {key: store.backend.read(key) for key in history} == history


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
    folders = [tmp_path / name for name in ("local", "postgres", "objects")]
    for one in folders:
        one.mkdir()
    cases = (
        stores.local(folders[0]),
        stores.postgres(folders[1], postgres, database("moving")),
        stores.object_store(folders[2], object_server, "moving"),
    )
    checkouts = [(checkout(one, settings_of(case)), case) for one, case in zip(folders, cases, strict=True)]
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


@pytest.fixture
def dsn(postgres_store: tuple[stores.Case, str]) -> Iterator[str]:
    """The address of a store's database. Login `reader` may become one that reads it, as for CI."""
    execute(postgres_store[1], "CREATE ROLE reader LOGIN PASSWORD 'reads'")
    yield postgres_store[1]
    execute(postgres_store[1], "DROP OWNED BY reader; DROP ROLE reader")


def grant(dsn: str) -> None:
    execute(dsn, "GRANT USAGE ON SCHEMA mzplan TO reader; GRANT SELECT ON mzplan.blobs TO reader")


def test_read_only_commands_need_only_read_rights_in_postgres(
    postgres_store: tuple[stores.Case, str], dsn: str, tmp_path: Path
) -> None:
    state, blobs = settings_of(postgres_store[0]), "SELECT * FROM mzplan.blobs ORDER BY key"
    (tmp_path / "login").write_text("reads\n")
    reading = {**state, "user": "reader", "password": "${file:../login}"}
    reader = checkout(tmp_path / "reader-job", reading)
    assert mzplan(reader, "plan").code == 0  # of a project without a commit
    (tmp_path / "pw").write_text(f"pw-{state['user']}\n")
    assert apply(checkout(tmp_path / "writer", {**state, "password": "${file:../pw}"})).code == 0
    grant(dsn)
    before = rows_of(dsn, blobs)
    looks_and_commits_nothing(reader)
    assert rows_of(dsn, blobs) == before


def test_a_read_only_login_blocks_no_commit(postgres_store: tuple[stores.Case, str], dsn: str) -> None:
    make = postgres_store[0].make
    with psycopg.connect(dsn, user="reader", password="reads", autocommit=True) as reader:
        with make().lock("apply") as info:
            assert make().holder() == info
        grant(dsn)
        with make().lock("apply"):
            pass
        assert make().holder() is None
        for statement in (
            "SELECT 1 FROM mzplan.blobs FOR UPDATE",
            "SELECT 1 FROM mzplan.blobs FOR KEY SHARE",
            "LOCK TABLE mzplan.blobs IN ROW SHARE MODE",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), reader.transaction():
                reader.execute(statement.encode())
        with reader.transaction():
            reader.execute("LOCK TABLE mzplan.blobs IN ACCESS SHARE MODE")
            with make().lock("apply"):
                pass


def test_a_session_without_a_command_is_named_and_an_idle_one_keeps_the_lock(
    postgres_store: tuple[stores.Case, str], dsn: str
) -> None:
    make, writer = postgres_store[0].make, settings_of(postgres_store[0])["user"]
    with make().lock("apply") as before:
        pass
    login = {"user": writer, "password": f"pw-{writer}", "application_name": "psql"}
    with contextlib.closing(psycopg.connect(dsn, autocommit=True, **login)) as other:
        other.execute("BEGIN")
        other.execute("SELECT 1 FROM mzplan.blobs WHERE key = 'lock.held' FOR UPDATE")
        problem = lock_refusal(make())
        pid = other.info.backend_pid
        assert problem.code == "MZ033" and before.id not in problem.detail
        assert f"login {writer} (pid {pid} of the database, application 'psql')" in problem.detail
        assert f"mzplan state unlock session-{pid}" in problem.hint
        ended = make().release(f"session-{pid}")
        assert ended is not None and ended.pid == pid
        with make().lock("apply", wait=5.0):
            pass
    # The server ends idle transactions.
    execute(dsn, f"ALTER ROLE {writer} SET idle_in_transaction_session_timeout = '300ms'")
    with make().lock("apply") as info:
        time.sleep(1.0)
        assert make().holder() == info


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
