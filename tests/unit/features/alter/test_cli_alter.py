"""`mzplan alter`: the file, the state and the queries, all or nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mzplan.operations import alter_journal
from tests.unit.cli_runner import following, rejecting
from tests.unit.cli_runs import applied_with_another, apply, edit, failed, mzplan, state, with_another
from tests.unit.features.alter.alter_runs import SET, actions, alter, altered, planned
from tests.warm_commands import warm_mzplan


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return applied_with_another(tmp_path)


def contents(folder: Path) -> dict[str, bytes]:
    """Return everything that a failing statement must not change."""
    files = [*folder.glob("*.yaml"), folder / "state" / "mzplan.state.json"]
    return {file.name: file.read_bytes() for file in files}


def test_the_file_and_the_state_change_together_and_once(folder: Path) -> None:
    before = contents(folder)
    shown = alter(folder, SET, "--dry-run")
    assert shown.code == 0 and contents(folder) == before
    assert '-  k: {type: kafka, brokers: ["a:9092"]}' in shown.out and "⟳ source.orders" in shown.out
    ran = altered(folder, SET)
    document = ran.json()
    assert actions(ran) == {"connection.k": "update", "source.orders": "restart", "source.second": "restart"}
    reasons = {change["address"]: change["reason"] for change in document["changes"]}
    assert reasons["source.orders"] == "connection.k changed"
    assert document["edit"]["path"] == "pipeline.yaml" and "+" in document["edit"]["diff"]
    after = contents(folder)
    assert after.pop("pipeline.yaml") == before.pop("pipeline.yaml").replace(b"a:9092", b"b:9092")
    del before["mzplan.state.json"], after["mzplan.state.json"]
    assert after == before and state(folder)["serial"] == 2
    assert planned(folder) == {}
    before = contents(folder)
    again = altered(folder, SET)
    assert again.json()["changes"] == [] and again.json()["edit"] is None
    assert contents(folder) == before


def test_a_statement_that_fails_changes_nothing(folder: Path) -> None:
    before = contents(folder)
    for statement, options, code in (
        ("ALTER CONNECTION k SET BROKERS = ('b'", ("--auto-approve",), 64),
        ("ALTER CONNECTION k DROP BROKERS", ("--auto-approve",), 1),
        (f"{SET} WITH (VALIDATE = false)", ("--live",), 64),
        (SET, ("--dry-run", "--no-apply"), 64),
        (SET, ("--json",), 64),
        ("VALIDATE CONNECTION k", ("--no-apply",), 64),
    ):
        assert alter(folder, statement, *options).code == code, statement
    ran = mzplan(folder, "alter", SET, stdin="no\n", terminal=True)
    assert ran.code == 1 and "Not approved" in ran.err
    assert contents(folder) == before and not (folder / ".mzplan" / "alter.json").exists()


def test_a_runner_validates_a_connection_that_no_query_uses(tmp_path: Path) -> None:
    """The runner is on another machine.

    tests/integration/test_alter.py: it validates every dependent, before anything is committed.
    """
    folder = with_another(tmp_path, "cluster")
    with following(folder) as executor:
        executor.check_result, _ = rejecting("connection.k2")
        assert failed(folder, "apply", "--auto-approve", code=1)["address"] == "connection.k2"
        executor.check_result, _ = rejecting()
        apply(folder)
        executor.check_result, _ = rejecting("source.second")
        assert failed(folder, "alter", "VALIDATE CONNECTION k", code=1)["address"] == "source.second"
        before = contents(folder)
        executor.check_result, asked = rejecting("connection.k2")
        unused = altered(folder, "ALTER CONNECTION k2 SET BROKER 'y:1'", code=1)
        assert unused.error()["address"] == "connection.k2" and contents(folder) == before
        assert asked == ["connection.k2"]


def test_without_a_runner_a_connection_is_validated_on_request(folder: Path) -> None:
    server = "{type: postgres, host: 127.0.0.1, port: 1, database: d, user: u}"
    edit(folder, "{type: kafka, brokers: ['z:9092']}", server, "more.yaml")
    apply(folder)
    before, statement = contents(folder), "ALTER CONNECTION k2 SET PORT 2"
    assert alter(folder, statement, "--dry-run").code == 0
    for asked in (
        ("VALIDATE CONNECTION k2",),
        (statement, "--auto-approve", "--live"),
        (f"{statement} WITH (VALIDATE)", "--dry-run"),
    ):
        found = failed(folder, "alter", *asked, code=1)
        assert (found["code"], found["address"]) == ("MZ050", "connection.k2") and contents(folder) == before
    dry = failed(folder, "alter", "VALIDATE CONNECTION k", code=7)
    assert dry["code"] == "MZ143" and "source.orders: its instance local is dry" in dry["detail"]
    statement = f"{SET} WITH (VALIDATE)"
    (notice,) = alter(folder, statement, "--dry-run", "--json").json()["diagnostics"]
    assert notice["code"] == "MZ143"
    assert alter(folder, SET, "--dry-run", "--json").json()["diagnostics"] == []
    ran = alter(folder, statement, "--auto-approve")
    assert ran.code == 0 and "Instance local is dry, so its queries were not validated" in ran.err


def test_of_concurrent_alters_each_is_committed_or_refused(folder: Path) -> None:
    statements = [
        "ALTER CONNECTION k SET BROKER 'x:1'",
        "ALTER CONNECTION k2 SET BROKER 'y:1'",
        "ALTER CONNECTION k SET SECURITY PROTOCOL 'SSL'",
    ]
    command = [warm_mzplan(), "-C", str(folder), "alter", "--auto-approve"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [subprocess.Popen([*command, s], **quiet) for s in statements]  # type: ignore[call-overload]
    codes = [process.wait(300) for process in started]
    # 8: committed, and a later one of these superseded it before its queries had converged.
    assert set(codes) <= {0, 6, 8} and codes != [6, 6, 6]
    text = (folder / "pipeline.yaml").read_text() + (folder / "more.yaml").read_text()
    for code, trace in zip(codes, ["x:1", "y:1", "SSL"], strict=True):
        assert (trace in text) == (code != 6)
    assert state(folder)["serial"] == 4 - codes.count(6)
    assert planned(folder) == {}


def test_an_alter_is_refused_while_another_one_edits(folder: Path) -> None:
    function = alter_journal.editing.__wrapped__  # type: ignore[attr-defined]
    with alter_journal.editing(str(folder)), mock.patch.object(function, "__defaults__", (0.1, None)):
        assert failed(folder, "alter", SET, "--no-apply", code=6)["code"] == "MZ033"


@contextlib.contextmanager
def full_disk(part: str) -> Iterator[None]:
    """There is no space for files whose path contains `part`."""
    opened, replaced = os.open, os.replace

    def create(path: Any, flags: int, *arguments: Any, **more: Any) -> int:
        if flags & os.O_CREAT and part in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opened(path, flags, *arguments, **more)

    def move(source: Any, target: Any, **more: Any) -> None:
        if str(target).endswith(part):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replaced(source, target, **more)

    with mock.patch.object(os, "open", create), mock.patch.object(os, "replace", move):
        yield


@pytest.mark.parametrize("part", [".pipeline.yaml.", ".alter.json.", ".mzplan.state.json."])
def test_a_full_disk_leaves_everything_as_it_was(folder: Path, part: str) -> None:
    before = contents(folder)
    with full_disk(part):
        ran = altered(folder, SET, code=1)
    assert ran.error()["code"] == "MZ035" and contents(folder) == before
    assert not (folder / ".mzplan" / "alter.json").exists() and not list(folder.rglob("*.tmp"))
    assert alter(folder, SET, "--auto-approve").code == 0


def test_a_file_that_cannot_be_written_after_the_commit_is_written_by_the_next_apply(folder: Path) -> None:
    file = folder / "pipeline.yaml"
    with full_disk("/pipeline.yaml"):
        ran = altered(folder, SET, code=8)
    assert ran.error()["code"] == "MZ035" and state(folder)["serial"] == 2
    assert planned(folder) == {}
    left = file.read_text()
    assert "a:9092" in left, "a plan writes nothing"
    file.write_text(left + "# mine\n")
    changed = failed(folder, "plan", code=1)
    assert changed["code"] == "MZ076" and SET in changed["detail"]
    assert file.read_text() == left + "# mine\n", "somebody else's edit stays"
    file.write_text(left)
    assert actions(apply(folder)) == {}
    assert "b:9092" in file.read_text()


def test_a_link_stays_a_link_and_file_modes_stay(folder: Path) -> None:
    file, real = folder / "pipeline.yaml", folder / "real.yml"
    file.rename(real)
    real.chmod(0o640)
    file.symlink_to("real.yml")
    assert alter(folder, SET, "--auto-approve").code == 0
    assert file.is_symlink() and "b:9092" in real.read_text() and real.stat().st_mode & 0o777 == 0o640
