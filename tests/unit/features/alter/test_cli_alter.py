"""`mzplan alter`: the file, the state and the queries, all or nothing."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from mzplan.controller.executor import CheckResult
from mzplan.model.diagnostics import Diagnostic
from mzplan.operations import alter_journal
from mzplan.schema.description import Description
from tests.unit.cli_runner import following
from tests.unit.cli_runs import Ran, applied_with_another, run, write

SET = "ALTER CONNECTION k SET BROKERS = ('b:9092')"
REPOINT = "ALTER SOURCE orders SET CONNECTION k2"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return applied_with_another(tmp_path)


def alter(folder: Path, statement: str, *options: str) -> Ran:
    return run("-C", str(folder), "alter", statement, *options)


def contents(folder: Path) -> dict[str, bytes]:
    """Return everything that a failing statement must not change."""
    files = [*folder.glob("*.yaml"), folder / "state" / "mzplan.state.json"]
    return {file.name: file.read_bytes() for file in files}


def serial(folder: Path) -> int:
    return int(json.loads((folder / "state" / "mzplan.state.json").read_text())["serial"])


def test_the_file_and_the_state_change_together(folder: Path) -> None:
    before = contents(folder)
    ran = alter(folder, SET, "--auto-approve", "--json")
    assert ran.code == 0, ran.err
    document = ran.json()
    actions = {change["address"]: change["action"] for change in document["changes"]}
    assert actions == {"connection.k": "update", "source.orders": "restart", "source.second": "restart"}
    reasons = {change["address"]: change["reason"] for change in document["changes"]}
    assert reasons["source.orders"] == "connection.k changed"
    assert document["edit"]["path"] == "pipeline.yaml" and "+" in document["edit"]["diff"]
    after = contents(folder)
    assert after.pop("pipeline.yaml") == before.pop("pipeline.yaml").replace(b"a:9092", b"b:9092")
    del before["mzplan.state.json"], after["mzplan.state.json"]
    assert after == before and serial(folder) == 2
    assert run("-C", str(folder), "plan", "--json").json()["changes"] == []


def test_the_same_again_changes_nothing(folder: Path) -> None:
    assert alter(folder, SET, "--auto-approve").code == 0
    before = contents(folder)
    again = alter(folder, SET, "--auto-approve", "--json")
    assert again.code == 0 and again.json()["changes"] == [] and again.json()["edit"] is None
    assert contents(folder) == before


def test_a_source_gets_another_connection_and_the_old_one_can_go(folder: Path) -> None:
    assert alter(folder, REPOINT, "--auto-approve").code == 0
    assert alter(folder, "ALTER SOURCE second SET CONNECTION k2", "--auto-approve").code == 0
    text = (folder / "pipeline.yaml").read_text()
    (folder / "pipeline.yaml").write_text(text.replace('  k: {type: kafka, brokers: ["a:9092"]}', "  {}"))
    ran = run("-C", str(folder), "apply", "--auto-approve", "--json")
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
    assert ran.code == 0 and "Edited pipeline.yaml" in ran.out and serial(folder) == 1
    assert b"b:9092" in (folder / "pipeline.yaml").read_bytes()
    assert run("-C", str(folder), "apply", "--auto-approve").code == 0
    assert serial(folder) == 2


def test_an_edit_that_means_nothing_is_written_and_nothing_is_committed(folder: Path) -> None:
    file = folder / "pipeline.yaml"
    file.write_text(file.read_text().replace("brokers:", "security: {protocol: PLAINTEXT}, brokers:"))
    ran = alter(folder, "ALTER CONNECTION k DROP SECURITY PROTOCOL", "--auto-approve")
    assert ran.code == 0 and "security" not in file.read_text() and serial(folder) == 1


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
def test_what_fails_changes_nothing(
    folder: Path, statement: str, options: tuple[str, ...], code: int
) -> None:
    before = contents(folder)
    approved = () if options else ("--auto-approve",)
    assert alter(folder, statement, *options, *approved).code == code
    assert contents(folder) == before and not (folder / ".mzplan" / "alter.json").exists()


def test_declined(folder: Path) -> None:
    before = contents(folder)
    ran = run("-C", str(folder), "alter", SET, stdin="no\n", terminal=True)
    assert ran.code == 1 and "Not approved" in ran.err and contents(folder) == before


def failing(*names: str) -> Callable[[Description], CheckResult]:
    def check(description: Description) -> CheckResult:
        if str(description.address) not in names:
            return CheckResult()
        found = Diagnostic(code="MZ050", summary="not reached", address=description.address)
        return CheckResult(diagnostics=(found,))

    return check


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
        assert run("-C", str(running), "apply", "--auto-approve").code == 0
        before, asked = contents(running), list[str]()
        refuse = failing("source.orders", "source.second")

        def check(description: Description) -> CheckResult:
            asked.append(description.connections["connection"].body["brokers"][0])
            return refuse(description)

        executor.check_result = check
        refused = alter(running, SET, "--auto-approve", "--json")
        assert refused.code == 1
        assert refused.error()["addresses"] == ["source.orders", "source.second"]
        assert refused.error()["detail"] == "Reached by 2 queries: source.orders, source.second."
        assert set(asked) == {"b:9092"}
        assert contents(running) == before

        # VALIDATE = false skips reaching out; the runner checks before it stops anything, and rejects.
        ran = alter(running, f"{SET} WITH (VALIDATE = false)", "--auto-approve", "--json", "--wait", "20s")
        assert ran.code == 8 and {p["condition"] for p in ran.json()["pending"]} == {"rejected"}
        assert serial(running) == 2 and b"b:9092" in (running / "pipeline.yaml").read_bytes()


def test_validate_connection_names_every_dependent(running: Path) -> None:
    with following(running) as executor:
        assert run("-C", str(running), "apply", "--auto-approve").code == 0
        good = alter(running, "VALIDATE CONNECTION k", "--json")
        assert good.code == 0
        assert good.json()["connections"] == [
            {"address": "connection.k", "queries": ["source.orders", "source.second"]}
        ]
        executor.check_result = failing("source.second")
        bad = alter(running, "VALIDATE CONNECTION k", "--json")
        assert bad.code == 1 and [d["address"] for d in bad.json()["diagnostics"]] == ["source.second"]


def test_a_connection_that_nothing_uses_is_reached_by_itself(folder: Path) -> None:
    before = contents(folder)
    ran = alter(folder, "VALIDATE CONNECTION k2", "--json")
    assert ran.code == 1 and ran.error()["code"] == "MZ050" and ran.error()["address"] == "connection.k2"
    live = alter(folder, "ALTER CONNECTION k2 SET BROKER '127.0.0.1:1'", "--auto-approve", "--live", "--json")
    assert live.code == 1 and live.error()["code"] == "MZ050" and contents(folder) == before


def test_two_alters_at_once_are_serialised_or_refused_and_none_is_lost(folder: Path) -> None:
    statements = [
        "ALTER CONNECTION k SET BROKER 'x:1'",
        "ALTER CONNECTION k2 SET BROKER 'y:1'",
        "ALTER CONNECTION k SET SECURITY PROTOCOL 'SSL'",
    ]
    command = [sys.executable, "-m", "mzplan", "-C", str(folder), "alter", "--auto-approve"]
    started = [
        subprocess.Popen([*command, s], stdout=subprocess.PIPE, stderr=subprocess.PIPE) for s in statements
    ]
    codes = [process.wait(60) for process in started]
    for process in started:
        process.communicate()
    # 8: committed, and a later one of these superseded it before its queries had converged.
    assert set(codes) <= {0, 6, 8} and codes != [6, 6, 6]
    text = (folder / "pipeline.yaml").read_text() + (folder / "more.yaml").read_text()
    for code, trace in zip(codes, ["x:1", "y:1", "SSL"], strict=True):
        assert (trace in text) == (code != 6)
    assert serial(folder) == 4 - codes.count(6)
    assert run("-C", str(folder), "plan", "--json").json()["changes"] == []


def test_while_somebody_edits_others_are_told(folder: Path) -> None:
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with alter_journal.editing(str(folder)):
            held.set()
            release.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(10)
    try:
        with mock.patch.object(alter_journal, "LOCK_WAIT", 0.1):
            refused = alter(folder, SET, "--no-apply", "--json")
    finally:
        release.set()
        holder.join()
    assert refused.code == 6 and refused.error()["code"] == "MZ033"


def full(*_: Any) -> Path:
    raise OSError(28, "No space left on device")


def test_a_full_disk_leaves_everything_as_it_was(folder: Path) -> None:
    before = contents(folder)
    with mock.patch.object(alter_journal, "_write_beside", full):
        ran = alter(folder, SET, "--auto-approve", "--json")
    assert ran.code == 1 and ran.error()["code"] == "MZ035" and contents(folder) == before
    with mock.patch.object(alter_journal, "write_durably", full):
        ran = alter(folder, SET, "--auto-approve", "--json")
    assert ran.code == 1 and ran.error()["code"] == "MZ035" and contents(folder) == before
    assert sorted(p.name for p in folder.glob(".*.mzplan-alter")) == []


def test_a_commit_that_fails_leaves_everything_as_it_was(folder: Path) -> None:
    before = contents(folder)
    with mock.patch("mzplan.store.store.encode_state", full):
        ran = alter(folder, SET, "--auto-approve", "--json")
    assert ran.code == 1 and contents(folder) == before
    assert not (folder / ".mzplan" / "alter.json").exists()
    assert alter(folder, SET, "--auto-approve").code == 0


def test_a_file_that_can_not_be_written_after_the_commit_is_written_by_the_next_command(
    folder: Path,
) -> None:
    whole = alter_journal._write_beside
    calls: list[int] = []

    def once(file: Path, content: bytes) -> Path:
        calls.append(1)
        return whole(file, content) if len(calls) == 1 else full()

    with mock.patch.object(alter_journal, "_write_beside", once):
        ran = alter(folder, SET, "--auto-approve", "--json")
    assert ran.code == 8 and ran.error()["code"] == "MZ035" and serial(folder) == 2
    assert b"a:9092" in (folder / "pipeline.yaml").read_bytes()
    assert run("-C", str(folder), "plan", "--json").json()["changes"] == []
    assert b"a:9092" in (folder / "pipeline.yaml").read_bytes()  # looking writes nothing
    assert run("-C", str(folder), "apply", "--auto-approve", "--json").json()["changes"] == []
    assert b"b:9092" in (folder / "pipeline.yaml").read_bytes()


def test_a_file_that_somebody_changed_meanwhile_is_left_alone_and_told(folder: Path) -> None:
    file = folder / "pipeline.yaml"
    with mock.patch.object(alter_journal, "settle", lambda *_: None):
        assert alter(folder, SET, "--auto-approve").code == 0  # as if it died after the commit
    file.write_text(file.read_text() + "# mine\n")
    told = run("-C", str(folder), "plan", "--json")
    assert told.code == 1 and told.error()["code"] == "MZ076" and SET in told.error()["detail"]
    assert file.read_text().endswith("# mine\n") and "a:9092" in file.read_text()


def test_a_link_stays_one_and_rights_stay(folder: Path) -> None:
    file, real = folder / "pipeline.yaml", folder / "real.yml"
    file.rename(real)
    real.chmod(0o640)
    file.symlink_to("real.yml")
    assert alter(folder, SET, "--auto-approve").code == 0
    assert file.is_symlink() and "b:9092" in real.read_text() and real.stat().st_mode & 0o777 == 0o640


def test_a_value_from_a_variable_is_told(tmp_path: Path) -> None:
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
        assert run("-C", str(tmp_path), "--env", environment, "apply", "--auto-approve").code == 0
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


@pytest.mark.parametrize("statement", [SET, REPOINT, f"{SET}; {REPOINT}"])
def test_a_disk_that_fails_at_any_read_of_a_file(tmp_path: Path, statement: str) -> None:
    """Either the command fails and changes nothing, or it commits and the next apply writes the file."""
    folder = applied_with_another(tmp_path / "shop")
    before, opened, codes = contents(folder), os.open, set[str]()
    for number in range(200):
        reads, copy = 0, shutil.copytree(folder, tmp_path / str(number))

        def failing(path: Any, *arguments: Any, at: int = number, **more: Any) -> int:
            nonlocal reads
            reads += str(path).endswith(".yaml")
            if reads == at + 1 and str(path).endswith(".yaml"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return opened(path, *arguments, **more)

        with mock.patch.object(os, "open", failing):
            ran = alter(copy, statement, "--auto-approve", "--json")
        if ran.code:
            codes |= {found["code"] for found in ran.json()["diagnostics"]}
            assert (serial(copy) == 2) == (ran.code == 8), ran
            if ran.code == 8:  # the next apply writes what is committed
                assert run("-C", str(copy), "apply", "--auto-approve").code == 0
            else:
                assert contents(copy) == before, (number, ran)
        if reads <= number:
            break
    assert ran.code == 0 and number > 20 and codes == {"MZ001", "MZ035"}
