"""The documented exit codes, with each of their meanings, from a real process.

The runner, where one is needed, is in this process and on the in-memory executor; the command never is.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from mzplan.controller.executor import CheckResult
from mzplan.model.diagnostics import Diagnostic, ExitCode
from mzplan.schema.description import Description
from mzplan.store import leases
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store
from tests.unit.cli_runner import following
from tests.unit.cli_runs import write

YES = ("apply", "--auto-approve")
STATE = Path("state") / "mzplan.state.json"
Scenario = Callable[[Path], tuple[int, str]]
SCENARIOS: list[tuple[int, str, Scenario]] = []


def process(folder: Path, *arguments: str, **more: Any) -> tuple[int, str]:
    """The exit code and the output of a command."""
    command = [sys.executable, "-m", "mzplan", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **more)
    said = done.stdout + done.stderr
    assert "Traceback" not in said and "MZ079" not in said, said
    return done.returncode, said


def means(code: int, meaning: str) -> Callable[[Scenario], Scenario]:
    """The result of a scenario, which starts in an applied project and ends with the tested command."""

    def keep(scenario: Scenario) -> Scenario:
        SCENARIOS.append((code, meaning, scenario))
        return scenario

    return keep


def edit(folder: Path, before: str, after: str) -> None:
    path = folder / "pipeline.yaml"
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def runs_no_more(folder: Path) -> None:
    (folder / "state" / "status" / "local.json").unlink()


@means(0, "done")
def done(folder: Path) -> tuple[int, str]:
    edit(folder, "a:9092", "b:9092")
    return process(folder, *YES)


@means(0, "nothing to do")
def nothing(folder: Path) -> tuple[int, str]:
    assert process(folder, *YES)[0] == process(folder, "drift", "--detailed-exitcode")[0] == 0
    return process(folder, "plan", "--detailed-exitcode")


@means(0, "changes and drift, without --detailed-exitcode")
def not_detailed(folder: Path) -> tuple[int, str]:
    edit(folder, "a:9092", "b:9092")
    runs_no_more(folder)
    assert process(folder, "drift")[0] == 0
    return process(folder, "plan")


@means(1, "an error")
def wrong(folder: Path) -> tuple[int, str]:
    edit(folder, "connection: k", "connection: none")
    return process(folder, "validate")


@means(1, "a failed validation: nothing was committed")
def invalid(folder: Path) -> tuple[int, str]:
    edit(folder, "a:9092", "b:9092")
    bad = Diagnostic(code="MZ050", summary="it is not reached")
    return led(folder, lambda description: CheckResult(diagnostics=(bad,)))


@means(2, "changes pending")
def changes(folder: Path) -> tuple[int, str]:
    edit(folder, "a:9092", "b:9092")
    return process(folder, "plan", "--detailed-exitcode")


@means(3, "drift")
def drift(folder: Path) -> tuple[int, str]:
    runs_no_more(folder)
    assert process(folder, "plan", "--detailed-exitcode")[0] == 3
    return process(folder, "drift", "--detailed-exitcode")


@means(4, "changes and drift")
def both(folder: Path) -> tuple[int, str]:
    edit(folder, "a:9092", "b:9092")
    runs_no_more(folder)
    return process(folder, "plan", "--detailed-exitcode")


@means(5, "the plan is stale")
def stale(folder: Path) -> tuple[int, str]:
    edit(folder, "a:9092", "b:9092")
    assert process(folder, "plan", "--out", str(folder / "p.plan"))[0] == 0
    assert process(folder, *YES)[0] == 0
    return process(folder, "apply", str(folder / "p.plan"))


@means(6, "the state is locked")
def locked(folder: Path) -> tuple[int, str]:
    with Store(LocalBackend(folder / "state"), "shop").lock("apply"):
        code, said = process(folder, "pause", "sink.out")
    assert f"pid {os.getpid()}" in said
    return code, said


@means(7, "refused: a replacement that nobody allowed")
def replaced(folder: Path) -> tuple[int, str]:
    edit(folder, "topic: orders", "topic: other")
    code, said = process(folder, *YES)
    assert "MZ040" in said
    assert process(folder, *YES, "--allow-replace")[0] == 0
    edit(folder, "rows: 3", "rows: 4")
    assert process(folder, *YES, "--replace", "sink.few")[0] == 7
    return code, said


@means(7, "refused: prevent_destroy")
def prevented(folder: Path) -> tuple[int, str]:
    edit(folder, "rows: 3", "lifecycle: {prevent_destroy: true}")
    assert process(folder, *YES)[0] == 0
    edit(folder, "  few: {type: console, from: orders, lifecycle: {prevent_destroy: true}}\n", "")
    code, said = process(folder, *YES)
    assert "MZ041" in said
    return code, said


@means(7, "refused: another upstream")
def upstream(folder: Path) -> tuple[int, str]:
    edit(folder, "a:9092", "b:9092")
    other = Diagnostic(code="MZ043", summary="another cluster", exit_code=ExitCode.REFUSED)
    return led(folder, lambda description: CheckResult(diagnostics=(other,)))


@means(7, "refused: no runner is alive to validate it")
def unvalidated(folder: Path) -> tuple[int, str]:
    write(folder, "cluster", broker="b")
    code, said = process(folder, *YES)
    assert "MZ149" in said
    return code, said


@means(8, "committed, and no runner is alive")
def no_runner(folder: Path) -> tuple[int, str]:
    write(folder, "cluster", broker="b")
    return process(folder, *YES, "--no-live", "--wait", "1s")


@means(8, "committed, and rejected")
def rejected(folder: Path) -> tuple[int, str]:
    edit(folder, "a:9092", "b:9092")
    bad = Diagnostic(code="MZ050", summary="it is not reached")
    code, said = led(folder, lambda description: CheckResult(diagnostics=(bad,)), "--no-live")
    assert "rejected" in said
    return code, said


@means(8, "committed, and failed")
def failed(folder: Path) -> tuple[int, str]:
    write(folder, "cluster", broker="b")
    with following(folder) as executor:
        executor.fail_start = lambda description: "it does not start"
        code, said = process(folder, *YES, "--wait", "20s")
    assert "failed" in said and "it does not start" in said
    return code, said


@means(64, "usage")
def usage(folder: Path) -> tuple[int, str]:
    edit(folder, "a:9092", "b:9092")
    assert process(folder, "apply")[0] == 64  # nobody can be asked
    return process(folder, "plan", "--fast")


@means(130, "interrupted")
def interrupted(folder: Path) -> tuple[int, str]:
    write(folder, "cluster", broker="b")
    with patch.object(leases, "LEASE_TTL", 120.0):  # however long the command takes to start
        lease = Store(LocalBackend(folder / "state"), "shop").leases.acquire("local", "test")
    assert lease is not None  # a runner that is alive, and does nothing
    command = [sys.executable, "-m", "mzplan", "-C", str(folder), *YES, "--no-live"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        for line in running.stderr:
            if "Committed" in line:
                running.send_signal(signal.SIGINT)
                break
        return running.wait(60), ""


def led(folder: Path, check: Callable[[Description], CheckResult], *more: str) -> tuple[int, str]:
    """Apply a change while a runner leads whose validation gives the result of `check`."""
    write(folder, "cluster")
    with following(folder) as executor:
        assert process(folder, *YES)[0] == 0
        executor.check_result = check
        write(folder, "cluster", broker="b")
        before = (folder / STATE).read_bytes()
        found = process(folder, *YES, "--wait", "30s", *more)
        assert ((folder / STATE).read_bytes() == before) == (found[0] != 8)
    return found


@pytest.mark.parametrize(
    ("code", "scenario"),
    [pytest.param(code, one, id=f"{code} {meaning}") for code, meaning, one in SCENARIOS],
)
def test_the_process_ends_with(code: int, scenario: Scenario, tmp_path: Path) -> None:
    write(tmp_path)
    assert process(tmp_path, *YES)[0] == 0
    found, said = scenario(tmp_path)
    assert found == code, said


def test_every_code_of_the_contract_is_shown() -> None:
    assert {code for code, *_ in SCENARIOS} == {int(code) for code in ExitCode} | {130}


def test_errors_are_one_json_document_too(tmp_path: Path) -> None:
    write(tmp_path, broker='"')
    code, said = process(tmp_path, "plan", "--json")
    assert code == 1 and json.loads(said)["diagnostics"][0]["severity"] == "error"
