"""A repository that was checked out is harmless to look at: nothing is written, nothing outside is read."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import click
import pytest

from mzplan.cli.arguments import ADDRESS
from mzplan.config import load_project
from mzplan.model.diagnostics import MzplanError
from mzplan.operations.edit_journal import Journal, digest_of, edited_file
from mzplan.runner import embedded, wake
from mzplan.secrets.policy import SecretValues
from mzplan.store.store import open_store
from tests.unit.cli_runs import apply, mzplan, write

LOOKS = ("validate", "plan", "graph", "show", "status", "drift")
SET = "ALTER CONNECTION k SET BROKERS = ('b:9092')"
YES = "--auto-approve"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project on a dry instance, applied, in a folder of its own."""
    project = write(tmp_path / "project")
    apply(project)
    return project


def everything(folder: Path, *, without_locks: bool = False) -> dict[str, tuple[bytes, int]]:
    """By path: the content (or the target of a link), and when it was written. `without_locks`: except the
    state folder and the files that any command that writes makes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            continue
        if without_locks and ("state" in path.parts or path.name in ("alter.lock", ".gitignore")):
            continue
        content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
        found[str(path.relative_to(folder))] = content, path.lstat().st_mtime_ns
    return found


def put_journal(folder: Path, file: str = "pipeline.yaml", after: str = "", /, **changed: Any) -> None:
    """Write the journal of an edit that is committed, whole but for what is `changed`: it can be of anybody
    who can read the state."""
    state = (folder / "state" / "mzplan.state.json").read_bytes()
    after = after or (folder / file).read_text().replace("a:9092", "b:9092")
    edited = asdict(edited_file(file, (folder / file).read_bytes(), after.encode()))
    serial = json.loads(state)["serial"]
    whole = Journal(**edited, statement=SET, serial=serial, digest=digest_of(state)).encode()
    path = folder / ".mzplan" / "alter.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**json.loads(whole), **changed}))


def git(folder: Path, *command: str) -> None:
    subprocess.run(["git", "-C", str(folder), *command], check=True, capture_output=True)


def test_commands_that_look_leave_an_unfinished_edit_alone_and_apply_finishes_it(folder: Path) -> None:
    put_journal(folder)
    before = everything(folder)
    for look in LOOKS:
        ran = mzplan(folder, look)
        assert ran.code == 0 and everything(folder) == before
        assert "notice: An edit of `mzplan alter` is in progress" in ran.err and "`mzplan apply`" in ran.err
    plan = mzplan(folder, "plan", "--json").json()
    assert [c["address"] for c in plan["changes"]] == ["connection.k", "source.orders"]
    assert mzplan(folder, "apply", "--auto-approve").code == 0
    assert "b:9092" in (folder / "pipeline.yaml").read_text()
    assert not (folder / ".mzplan" / "alter.json").exists()


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(".git/config", marks=pytest.mark.programs),
        *("notes.txt", "../outside.yaml", "st/x.yaml", ".hidden.yaml"),
    ],
)
def test_a_journal_writes_only_yaml_files_of_the_project(folder: Path, file: str) -> None:
    settings = folder / "mzplan.yaml"
    settings.write_text(settings.read_text() + "warehouse: ./st\n")
    target = folder / file
    target.parent.mkdir(exist_ok=True)
    if file == ".git/config":
        git(folder, "init", "-q")
    target.write_text("[core]\n\tbare = false\n")
    put_journal(folder, file, "[core]\n\tfsmonitor = touch /tmp/owned\n")
    before = everything(folder.parent, without_locks=True)
    for command in (("plan",), ("apply", "--auto-approve"), ("alter", SET)):
        ran = mzplan(folder, *command)
        assert everything(folder.parent, without_locks=True) == before
        assert ran.code == 1 and "MZ076" in ran.err and "is not a YAML file of this project" in ran.err


@pytest.mark.programs
@pytest.mark.parametrize("outside", ["../outside.yaml", ".git/x.yaml"])
def test_a_journal_writes_through_no_link_of_the_repository(folder: Path, outside: str) -> None:
    git(folder, "init", "-q")
    target = folder / outside
    target.write_text("a: 1\n")
    (folder / "evil.yaml").symlink_to(target)
    put_journal(folder, "evil.yaml", "a: 2\n")
    ran = mzplan(folder, "apply", "--auto-approve")
    assert target.read_text() == "a: 1\n"
    assert ran.code == 1 and "MZ076" in ran.err


def test_a_damaged_journal_is_refused(folder: Path) -> None:
    changes: tuple[dict[str, Any], ...] = ({"after": ""}, {"path": "mzplan.yaml"}, {"checksum": None})
    for changed in changes:  # each field is in the checksum
        put_journal(folder, **changed)
        before = everything(folder, without_locks=True)
        ran = mzplan(folder, "apply", YES, "--json")
        assert ran.code == 1 and ran.error()["code"] == "MZ076" and "damaged" in ran.error()["summary"]
        assert everything(folder, without_locks=True) == before


def _linked(folder: Path) -> None:
    (folder / ".mzplan").rename(folder / "theirs")
    (folder / ".mzplan").symlink_to("theirs")


def _tracked(folder: Path) -> None:
    git(folder, "init", "-q")
    git(folder, "add", "-f", ".mzplan/alter.json")


@pytest.mark.parametrize("bring", [_linked, pytest.param(_tracked, marks=pytest.mark.programs)])
def test_a_mzplan_folder_of_the_repository_is_not_used(folder: Path, bring: Callable[[Path], None]) -> None:
    put_journal(folder)
    bring(folder)
    before = everything(folder)
    for look in LOOKS:
        ran = mzplan(folder, look)
        assert ran.code == 0 and "warning: .mzplan is not used" in ran.err, look
    assert mzplan(folder, "plan", "--json").json()["changes"] == []
    for command in (("apply", YES), ("alter", SET, YES), ("alter", SET, "--no-apply")):
        ran = mzplan(folder, *command, "--json")
        assert ran.code == 7 and ran.error()["code"] == "MZ076"
        assert ".mzplan can't be used" in str(ran.error())
    settings = load_project(folder)
    with pytest.raises(MzplanError) as caught:
        embedded.start(settings, open_store(settings), "local")
    assert caught.value.diagnostics[0].code == "MZ076" and caught.value.exit_code == 7
    assert wake.runtime_folder(folder) is None  # a runner continues without it
    assert everything(folder) == before


def test_a_mzplan_folder_of_another_user_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_journal(folder)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert "warning: .mzplan is not used: it belongs to another user" in mzplan(folder, "validate").err
    assert mzplan(folder, "apply", "--auto-approve", "--json").error()["code"] == "MZ076"


def test_without_git_a_journal_in_a_repository_is_not_used(folder: Path) -> None:
    put_journal(folder)
    (folder / ".git").mkdir()  # a broken repository: git fails
    assert "git can't say" in mzplan(folder, "validate").err
    assert mzplan(folder, "apply", "--auto-approve", "--json").error()["code"] == "MZ076"
    (folder / ".mzplan" / "alter.json").unlink()
    assert mzplan(folder, "apply", "--auto-approve").code == 0


def test_alter_follows_no_link_and_removes_only_what_a_killed_edit_left(folder: Path) -> None:
    precious = folder.parent / ".bashrc"
    precious.write_text("mine")
    (folder / ".mzplan").mkdir(exist_ok=True)
    usual = (".pipeline.yaml.tmp", ".pipeline.yaml.mzplan-alter", ".mzplan/alter.json.tmp")
    random = (f".pipeline.yaml.{'00' * 6}.tmp", f".mzplan/.alter.json.{'00' * 6}.tmp")
    for name in (*usual, *random):
        (folder / name).symlink_to(precious)
    left = [".pipeline.yaml.0123456789ab.tmp", ".mzplan/.alter.json.0123456789ab.tmp"]
    others = [".other.yaml.0123456789ab.tmp", ".pipeline.yaml.mine.tmp", "pipeline.yaml.0123456789ab.tmp"]
    for name in [*left, *others]:
        (folder / name).write_text("x")
    assert mzplan(folder, "alter", SET, YES).code == 0
    assert precious.read_text() == "mine" and "b:9092" in (folder / "pipeline.yaml").read_text()
    assert all((folder / name).is_symlink() for name in usual)
    assert [name for name in [*left, *others] if (folder / name).exists()] == others
    with mock.patch("secrets.token_hex", lambda _: "00" * 6):  # even a guessed name only makes it fail
        ran = mzplan(folder, "alter", "ALTER CONNECTION k SET BROKER 'c:1'", "--no-apply", "--json")
    assert ran.code == 1 and ran.error()["code"] == "MZ035" and precious.read_text() == "mine"


def test_data_may_lie_behind_a_link_out_of_the_project(folder: Path) -> None:
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "x.yaml").write_text("not: [ours")
    (folder / "linked").symlink_to(elsewhere)
    assert mzplan(folder, "validate").code == 1
    settings = folder / "mzplan.yaml"
    settings.write_text(settings.read_text() + "warehouse: ./linked\n")
    assert mzplan(folder, "validate").code == 0


def test_links_that_stay_in_the_project_are_read(folder: Path) -> None:
    """Also those of a mounted ConfigMap, whose files lie in a hidden folder, and the project's own folder."""
    hidden = folder / "..2026"
    hidden.mkdir()
    (folder / "pipeline.yaml").rename(hidden / "pipeline.yaml")
    (folder / "mzplan.yaml").rename(hidden / "mzplan.yaml")
    (folder / "..data").symlink_to("..2026")
    for name in ("pipeline.yaml", "mzplan.yaml"):
        (folder / name).symlink_to(f"..data/{name}")
    (folder.parent / "other").symlink_to(folder)
    assert mzplan(folder, "plan", "--json").json()["changes"] == []
    assert mzplan(folder.parent / "other", "plan", "--json").json()["changes"] == []


def test_secret_values_are_sent_only_to_a_socket_of_this_user(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`append`, `apply` and `restart` wake runners."""
    settings, theirs = load_project(folder), folder.parent / "theirs"
    values = SecretValues(values={"A": "secret"})
    ours = folder / ".mzplan"
    theirs.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(theirs / "local.sock"))
        listener.listen()
        listener.setblocking(False)
        shutil.rmtree(ours, ignore_errors=True)
        ours.symlink_to(theirs)
        assert wake.send_wake(settings, "local", values) is None
        ours.unlink()
        ours.mkdir()
        (ours / "local.sock").symlink_to(theirs / "local.sock")
        assert wake.send_wake(settings, "local", values) is None
        (ours / "local.sock").unlink()
        os.link(theirs / "local.sock", ours / "local.sock")
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert wake.send_wake(settings, "local", values) is None
        with pytest.raises(BlockingIOError):
            listener.accept()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["mzplan.yaml", "state/mzplan.state.json"])
def test_completion_does_not_wait_for_a_pipe(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    context = click.Context(click.Command("x"))
    context.params = {"directory": str(folder)}
    assert ADDRESS.shell_complete(context, click.Argument(["address"]), "") == []


def test_the_log_of_a_runner_follows_no_link(folder: Path) -> None:
    there = folder.parent / "created"
    (folder / ".mzplan").mkdir(exist_ok=True)
    (folder / ".mzplan" / "local.log").symlink_to(there)
    settings = load_project(folder)
    with pytest.raises(OSError, match=r"local\.log"):
        embedded.start(settings, open_store(settings), "local")
    assert not there.exists()


def test_a_variable_that_is_not_text_is_one_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = folder / "mzplan.yaml"
    settings.write_text(settings.read_text() + "variables: {x: {}}\nwarehouse: ${var.x}\n")
    bad = os.fsdecode(b"\xff")
    by_option = mzplan(folder, "plan", "--json", "--var", f"x={bad}")
    monkeypatch.setenv("MZPLAN_VAR_X", bad)
    for ran in (by_option, mzplan(folder, "plan", "--json")):
        assert ran.code == 1 and ran.error()["code"] == "MZ015"
