"""`mzplan alter`: the file, the state and the queries, all or nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mzplan.controller.executor import CheckResult
from mzplan.operations import alter_journal
from mzplan.schema.description import Description
from tests.unit.cli_runner import following
from tests.unit.cli_runs import applied_with_another, apply, mzplan, write
from tests.unit.features.alter.alter_runs import SET, actions, alter, altered, failing, planned, state

REPOINT = "ALTER SOURCE orders SET CONNECTION k2"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return applied_with_another(tmp_path)


def contents(folder: Path) -> dict[str, bytes]:
    """Return everything that a failing statement must not change."""
    files = [*folder.glob("*.yaml"), folder / "state" / "mzplan.state.json"]
    return {file.name: file.read_bytes() for file in files}


def test_the_file_and_the_state_change_together_and_once(folder: Path) -> None:
    before = contents(folder)
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


def test_a_source_gets_another_connection_and_the_old_one_can_go(folder: Path) -> None:
    assert alter(folder, REPOINT, "--auto-approve").code == 0
    assert alter(folder, "ALTER SOURCE second SET CONNECTION k2", "--auto-approve").code == 0
    text = (folder / "pipeline.yaml").read_text()
    (folder / "pipeline.yaml").write_text(text.replace('  k: {type: kafka, brokers: ["a:9092"]}', "  {}"))
    ran = mzplan(folder, "apply", "--auto-approve", "--json")
    assert ran.code == 0, ran.out
    assert [(c["address"], c["action"]) for c in ran.json()["changes"]] == [("connection.k", "delete")]


def test_a_dry_run_shows_the_edit_and_the_plan(folder: Path) -> None:
    before = contents(folder)
    shown = alter(folder, SET, "--dry-run")
    assert shown.code == 0
    assert '-  k: {type: kafka, brokers: ["a:9092"]}' in shown.out and "⟳ source.orders" in shown.out
    document = alter(folder, SET, "--dry-run", "--json").json()
    assert document["summary"]["restart"] == 2 and document["edit"]["path"] == "pipeline.yaml"
    assert contents(folder) == before


def test_an_edit_alone_is_committed_by_the_next_apply(folder: Path) -> None:
    ran = alter(folder, SET, "--no-apply")
    assert ran.code == 0 and "Edited pipeline.yaml" in ran.out and state(folder)["serial"] == 1
    assert b"b:9092" in (folder / "pipeline.yaml").read_bytes()
    apply(folder)
    assert state(folder)["serial"] == 2


def test_an_edit_without_effect_is_written_and_not_committed(folder: Path) -> None:
    file = folder / "pipeline.yaml"
    file.write_text(file.read_text().replace("brokers:", "security: {protocol: PLAINTEXT}, brokers:"))
    ran = alter(folder, "ALTER CONNECTION k DROP SECURITY PROTOCOL", "--auto-approve")
    assert ran.code == 0 and "security" not in file.read_text() and state(folder)["serial"] == 1


@pytest.mark.parametrize(
    ("statement", "options", "code"),
    [
        ("ALTER CONNECTION k SET BROKERS = ('b'", (), 64),
        ("ALTER CONNECTION k SET HOST = 'b'", (), 1),
        ("ALTER CONNECTION k DROP BROKERS", (), 1),
        ("ALTER CONNECTION k SET SECURITY PROTOCOL 'SSL', SET SSL KEY = 'secret'", (), 1),
        (f"{SET} WITH (VALIDATE = false)", ("--live",), 64),
        (SET, ("--dry-run", "--no-apply"), 64),
        (SET, ("--json",), 64),
        ("VALIDATE CONNECTION k", ("--no-apply",), 64),
    ],
)
def test_a_statement_that_fails_changes_nothing(
    folder: Path, statement: str, options: tuple[str, ...], code: int
) -> None:
    before = contents(folder)
    approved = () if options else ("--auto-approve",)
    assert alter(folder, statement, *options, *approved).code == code
    assert contents(folder) == before and not (folder / ".mzplan" / "alter.json").exists()


def test_a_declined_plan_changes_nothing(folder: Path) -> None:
    before = contents(folder)
    ran = mzplan(folder, "alter", SET, stdin="no\n", terminal=True)
    assert ran.code == 1 and "Not approved" in ran.err and contents(folder) == before


@pytest.fixture
def running(tmp_path: Path) -> Path:
    """A project on an instance whose runner is on another machine."""
    folder = write(tmp_path, "cluster")
    (folder / "more.yaml").write_text(
        "connections:\n  k2: {type: kafka, brokers: ['z:9092']}\n"
        "sources:\n  second: {connection: k, topic: second, format: {type: json, schema: 'id BIGINT'}}\n"
    )
    return folder


def test_every_dependent_is_validated_before_anything_is_committed(running: Path) -> None:
    with following(running) as executor:
        apply(running)
        before, asked = contents(running), list[str]()
        refuse = failing("source.orders", "source.second")

        def check(description: Description) -> CheckResult:
            asked.append(description.connections["connection"].body["brokers"][0])
            return refuse(description)

        executor.check_result = check
        refused = altered(running, SET, code=1)
        assert refused.error()["addresses"] == ["source.orders", "source.second"]
        assert refused.error()["detail"] == "Reached by 2 queries: source.orders, source.second."
        assert set(asked) == {"b:9092"}
        assert contents(running) == before

        # VALIDATE = false skips reaching out; the runner checks before it stops anything, and rejects.
        ran = alter(running, f"{SET} WITH (VALIDATE = false)", "--auto-approve", "--json", "--wait", "20s")
        assert ran.code == 8 and {p["condition"] for p in ran.json()["pending"]} == {"rejected"}
        assert state(running)["serial"] == 2 and b"b:9092" in (running / "pipeline.yaml").read_bytes()


def test_validate_connection_names_every_dependent(running: Path) -> None:
    with following(running) as executor:
        apply(running)
        good = alter(running, "VALIDATE CONNECTION k", "--json")
        assert good.code == 0
        assert good.json()["connections"] == [
            {"address": "connection.k", "queries": ["source.orders", "source.second"]}
        ]
        executor.check_result = failing("source.second")
        bad = alter(running, "VALIDATE CONNECTION k", "--json")
        assert bad.code == 1 and [d["address"] for d in bad.json()["diagnostics"]] == ["source.second"]


def test_an_unused_connection_is_validated_by_itself(folder: Path) -> None:
    before = contents(folder)
    ran = alter(folder, "VALIDATE CONNECTION k2", "--json")
    assert ran.code == 1 and ran.error()["code"] == "MZ050" and ran.error()["address"] == "connection.k2"
    live = alter(folder, "ALTER CONNECTION k2 SET BROKER '127.0.0.1:1'", "--auto-approve", "--live", "--json")
    assert live.code == 1 and live.error()["code"] == "MZ050" and contents(folder) == before


def test_of_concurrent_alters_each_is_committed_or_refused(folder: Path) -> None:
    statements = [
        "ALTER CONNECTION k SET BROKER 'x:1'",
        "ALTER CONNECTION k2 SET BROKER 'y:1'",
        "ALTER CONNECTION k SET SECURITY PROTOCOL 'SSL'",
    ]
    command = [sys.executable, "-m", "mzplan", "-C", str(folder), "alter", "--auto-approve"]
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
    with alter_journal.editing(str(folder)), mock.patch.object(alter_journal, "LOCK_WAIT", 0.1):
        refused = alter(folder, SET, "--no-apply", "--json")
    assert refused.code == 6 and refused.error()["code"] == "MZ033"


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
    changed = mzplan(folder, "plan", "--json")
    assert changed.code == 1 and changed.error()["code"] == "MZ076" and SET in changed.error()["detail"]
    assert file.read_text() == left + "# mine\n", "somebody else's edit stays"
    file.write_text(left)
    assert mzplan(folder, "apply", "--auto-approve", "--json").json()["changes"] == []
    assert "b:9092" in file.read_text()


def test_a_link_stays_a_link_and_file_modes_stay(folder: Path) -> None:
    file, real = folder / "pipeline.yaml", folder / "real.yml"
    file.rename(real)
    real.chmod(0o640)
    file.symlink_to("real.yml")
    assert alter(folder, SET, "--auto-approve").code == 0
    assert file.is_symlink() and "b:9092" in real.read_text() and real.stat().st_mode & 0o777 == 0o640


def test_a_replaced_variable_is_a_notice(tmp_path: Path) -> None:
    write(tmp_path)
    settings = tmp_path / "mzplan.yaml"
    settings.write_text(settings.read_text() + "variables: {broker: {default: 'v:9092'}}\n")
    pipeline = tmp_path / "pipeline.yaml"
    pipeline.write_text(pipeline.read_text().replace('"a:9092"', '"${var.broker}"'))
    same = alter(tmp_path, "ALTER CONNECTION k SET BROKER 'v:9092'", "--no-apply", "--json").json()
    assert same == {"diagnostics": [], "edit": None}
    found = alter(tmp_path, SET, "--no-apply", "--json").json()["diagnostics"]
    assert [(d["code"], d["severity"], d["range"]["line"]) for d in found] == [("MZ077", "notice", 2)]


def test_a_variable_that_environments_share_is_not_replaced(tmp_path: Path) -> None:
    write(tmp_path)
    settings = tmp_path / "mzplan.yaml"
    settings.write_text(
        settings.read_text() + "variables: {broker: {}, text: {default: x}}\nenvironments:\n"
        "  dev: {variables: {broker: 'v:9092'}, state: {path: state/dev}, warehouse: ./dev}\n"
        "  prod: {variables: {broker: 'p:9092'}, state: {path: state/prod}, warehouse: ./prod}\n"
    )
    pipeline = tmp_path / "pipeline.yaml"
    connection = '{type: kafka, description: "${var.text}", brokers: ["${var.broker}"]}'
    pipeline.write_text(pipeline.read_text().replace('{type: kafka, brokers: ["a:9092"]}', connection))
    for environment in ("dev", "prod"):
        assert mzplan(tmp_path, "--env", environment, "apply", "--auto-approve").code == 0
    files = (settings, pipeline, tmp_path / "state" / "dev" / "mzplan.state.json")
    before = [file.read_bytes() for file in files]
    for statement, name in ((SET, "broker"), ("ALTER CONNECTION k DROP DESCRIPTION", "text")):
        for more in (("--auto-approve",), ("--no-apply",), ("--dry-run",)):
            found = alter(tmp_path, statement, *more, "--env", "dev", "--json")
            assert found.code == 1 and found.error()["code"] == "MZ077", found
            assert found.error()["hint"].startswith(f"set {name} under `environments: {{dev:")
            assert [file.read_bytes() for file in files] == before
    # An item that stays is still written as the variable.
    added = alter(
        tmp_path, "ALTER CONNECTION k SET BROKERS = ('v:9092', 'b:9092')", "--auto-approve", "--env", "dev"
    )
    assert added.code == 0 and '["${var.broker}", "b:9092"]' in pipeline.read_text()
