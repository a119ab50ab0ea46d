"""`mzplan alter` on an applied project."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mzplan.controller.executor import CheckResult
from mzplan.model.diagnostics import Diagnostic
from mzplan.schema.description import Description
from tests.unit.cli_runs import Ran, mzplan

SET = "ALTER CONNECTION k SET BROKERS = ('b:9092')"


def alter(folder: Path, statement: str, *options: str) -> Ran:
    return mzplan(folder, "alter", statement, *options)


def altered(folder: Path, statement: str, *options: str, code: int = 0) -> Ran:
    """`mzplan alter --auto-approve --json`"""
    ran = alter(folder, statement, "--auto-approve", "--json", *options)
    assert ran.code == code, ran
    return ran


def actions(ran: Ran) -> dict[str, str]:
    return {change["address"]: change["action"] for change in ran.json()["changes"]}


def planned(folder: Path) -> dict[str, str]:
    """Return the actions that a plan still has to do."""
    return actions(mzplan(folder, "plan", "--json"))


def failing(*names: str) -> Callable[[Description], CheckResult]:
    """Return a runner's check that doesn't reach the connections of these queries."""

    def check(description: Description) -> CheckResult:
        if str(description.address) not in names:
            return CheckResult()
        found = Diagnostic(code="MZ050", summary="not reached", address=description.address)
        return CheckResult(diagnostics=(found,))

    return check
