"""`mzplan alter` on an applied project."""

from __future__ import annotations

from pathlib import Path

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
