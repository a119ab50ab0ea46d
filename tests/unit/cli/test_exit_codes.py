"""The documented exit codes, with each of their meanings."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from mzplan.controller.executor import CheckResult
from mzplan.model.diagnostics import Diagnostic, ExitCode
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store
from tests.unit.cli_runner import following
from tests.unit.cli_runs import STATE, Ran, edit, mzplan, write

YES = ("apply", "--auto-approve")
Scenario = Callable[[Path], Ran]


def lose_status(folder: Path) -> None:
    """Remove the runner's status, so that every query is missing."""
    (folder / "state" / "status" / "local.json").unlink()


def done(folder: Path) -> Ran:
    edit(folder, "a:9092", "b:9092")
    return mzplan(folder, *YES)


def nothing(folder: Path) -> Ran:
    again = mzplan(folder, *YES)
    assert again.code == 0 and "No changes: serial 1" in again.out
    assert mzplan(folder, "drift", "--detailed-exitcode").code == 0
    return mzplan(folder, "plan", "--detailed-exitcode")


def not_detailed(folder: Path) -> Ran:
    """Changes and drift, without --detailed-exitcode."""
    edit(folder, "a:9092", "b:9092")
    lose_status(folder)
    assert mzplan(folder, "drift").code == 0
    return mzplan(folder, "plan")


def wrong(folder: Path) -> Ran:
    edit(folder, "connection: k", "connection: none")
    for command in (("validate",), ("plan",), YES):
        ran = mzplan(folder, *command)
        assert ran.code == 1 and "error[MZ012]" in ran.err and ran.out == ""
    return ran


def changes(folder: Path) -> Ran:
    edit(folder, "a:9092", "b:9092")
    return mzplan(folder, "plan", "--detailed-exitcode")


def drift(folder: Path) -> Ran:
    lose_status(folder)
    ran = mzplan(folder, "plan", "--detailed-exitcode", "--json")
    assert ran.code == 3 and {d["kind"] for d in ran.json()["drift"]} == {"missing-query"}
    return mzplan(folder, "drift", "--detailed-exitcode")


def both(folder: Path) -> Ran:
    edit(folder, "a:9092", "b:9092")
    lose_status(folder)
    return mzplan(folder, "plan", "--detailed-exitcode")


def stale(folder: Path) -> Ran:
    """The plan is stale."""
    edit(folder, "a:9092", "b:9092")
    assert mzplan(folder, "plan", "--out", str(folder / "p.plan")).code == 0
    assert mzplan(folder, *YES).code == 0
    return mzplan(folder, "apply", str(folder / "p.plan"))


def locked(folder: Path) -> Ran:
    """The state is locked."""
    with Store(LocalBackend(folder / "state"), "shop").lock("apply"):
        assert mzplan(folder, "plan").code == 0  # reading needs no lock
        ran = mzplan(folder, "pause", "sink.out")
    assert f"pid {os.getpid()}" in ran.err
    return ran


def replaced(folder: Path) -> Ran:
    """Refused: a replacement that nobody allowed."""
    edit(folder, "topic: orders", "topic: other")
    ran = mzplan(folder, *YES)
    assert "error[MZ040]" in ran.err
    assert mzplan(folder, *YES, "--allow-replace").code == 0
    edit(folder, "rows: 3", "rows: 4")
    assert mzplan(folder, *YES, "--replace", "sink.few").code == 7
    return ran


def prevented(folder: Path) -> Ran:
    """Refused: prevent_destroy."""
    edit(folder, "rows: 3", "lifecycle: {prevent_destroy: true}")
    assert mzplan(folder, *YES).code == 0
    destroyed = mzplan(folder, "destroy", "--auto-approve")
    edit(folder, "  few: {type: console, from: orders, lifecycle: {prevent_destroy: true}}\n", "")
    ran = mzplan(folder, *YES)
    assert "error[MZ041]" in ran.err and (destroyed.code, "error[MZ041]" in destroyed.err) == (7, True)
    return ran


def upstream(folder: Path) -> Ran:
    """Refused: another upstream."""
    return led(folder, Diagnostic(code="MZ043", summary="another cluster", exit_code=ExitCode.REFUSED))


def no_runner(folder: Path) -> Ran:
    """Committed, and no runner is alive."""
    write(folder, "cluster", broker="b")
    ran = mzplan(folder, *YES, "--no-live", "--wait", "0s", "--json")
    document = ran.json()
    assert document["serial"] == 2
    pending = {(p["condition"], p["reason"]) for p in document["pending"]}
    assert pending == {("pending", "MZ060: no runner of instance local is alive")}
    assert "3 queries have not converged" in mzplan(folder, *YES, "--wait", "0s").out
    return ran


def rejected(folder: Path) -> Ran:
    """Committed, and rejected."""
    ran = led(folder, Diagnostic(code="MZ050", summary="it is not reached"), "--no-live")
    assert "rejected" in ran.err
    return ran


def failed(folder: Path) -> Ran:
    """Committed, and failed."""
    write(folder, "cluster", broker="b")
    with following(folder) as executor:
        executor.fail_start = lambda description: "it does not start"
        ran = mzplan(folder, *YES, "--wait", "20s")
    assert "failed" in ran.err and "it does not start" in ran.err
    return ran


def usage(folder: Path) -> Ran:
    edit(folder, "a:9092", "b:9092")
    assert mzplan(folder, "apply").code == 64  # nobody can be asked
    return mzplan(folder, "plan", "--fast")


def led(folder: Path, problem: Diagnostic, *more: str) -> Ran:
    """Apply a change while a runner leads whose validation finds this problem."""
    write(folder, "cluster")
    with following(folder) as executor:
        assert mzplan(folder, *YES).code == 0
        executor.check_result = lambda description: CheckResult(diagnostics=(problem,))
        write(folder, "cluster", broker="b")
        before = (folder / STATE).read_bytes()
        ran = mzplan(folder, *YES, "--wait", "30s", *more)
        assert ((folder / STATE).read_bytes() == before) == (ran.code != 8)
    return ran


# Each scenario starts in an applied project, and returns how the tested command ends.
SCENARIOS: dict[int, list[Scenario]] = {
    0: [done, nothing, not_detailed],
    1: [wrong],
    2: [changes],
    3: [drift],
    4: [both],
    5: [stale],
    6: [locked],
    7: [replaced, prevented, upstream],
    8: [no_runner, rejected, failed],
    64: [usage],
}


@pytest.mark.parametrize(
    ("code", "scenario"),
    [pytest.param(c, one, id=f"{c} {one.__name__}") for c, found in SCENARIOS.items() for one in found],
)
def test_a_command_ends_with_the_documented_code(code: int, scenario: Scenario, tmp_path: Path) -> None:
    write(tmp_path)
    assert mzplan(tmp_path, *YES).code == 0
    ran = scenario(tmp_path)
    assert ran.code == code, ran


def test_every_code_of_the_contract_has_a_scenario() -> None:
    """Except for 130, the code of an interrupted command (test_cli_ending.py)."""
    assert set(SCENARIOS) == {int(code) for code in ExitCode}
