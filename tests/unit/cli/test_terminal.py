"""Output on a terminal: grouped changes, one live block, and the list of commands."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import click
import pytest

from mzplan.cli import progress
from mzplan.cli.main import COMMANDS, cli
from mzplan.cli.progress import ProgressLines
from mzplan.model.address import Address
from mzplan.model.resources import Configuration
from mzplan.operations.project import Outcome
from mzplan.plan import build_plan
from mzplan.plan.manual_changes import plan_destroy
from mzplan.render.plan_text import render_plan
from tests.unit.small_projects import commit, kafka, project, source


def landscape(broker: str) -> Configuration:
    return project(kafka(brokers=[broker]), *(source(f"s{number:03}") for number in range(99)))


def test_queries_with_one_cause_are_all_named_if_verbose_and_deleted_ones_always() -> None:
    state = commit(landscape("a:9092"))
    whole = render_plan(build_plan(landscape("b:9092"), state), whole=True)
    assert all(f"s{number:03}" in whole for number in range(99)) and "more" not in whole

    text = render_plan(plan_destroy(state))
    assert "- 99 queries are deleted: destroyed by hand" in text and "s098" in text and "s000" in text


def applied(number: int) -> Outcome:
    return Outcome(address=Address("source", f"s{number}"), status="applied", seconds=1.0)


@pytest.mark.parametrize("live", [True, False])
def test_progress_is_one_block_on_a_terminal_and_lines_in_a_log(
    live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "width", lambda: 80)
    said: list[str] = []
    screen: Any = SimpleNamespace(is_live=live, err=lambda line: said.append(f"{line}\n"), live=said.append)
    shown = ProgressLines(screen, clock=lambda: 100.0)
    for number in range(10):
        shown.outcome(applied(number))
    waiting = {Address("source", f"w{n}"): "starting" if n < 5 else "stopping" for n in range(7)}
    shown.waiting(waiting, 12.0)
    shown.waiting(dict(list(waiting.items())[:5]), 13.0)
    shown.outcome(replace(applied(99), status="failed", reason="no"))
    shown.close()
    text = "".join(said)
    assert "  ✗ source.s99: failed after 1.0 s: no\n" in text
    assert text.count("✓ source.") == (3 if live else 10)
    if live:
        block = "5 starting: source.w0, source.w1, source.w2 and 2 more\n    2 stopping: source.w5, source.w6"
        assert block in text and "; 10 applied" in text
        assert "\r\x1b[2A\x1b[J  … 13 s: waiting for 5 queries: 5 starting" in text
        assert text.endswith("  ✓ 7 queries more: applied\n")
    else:
        assert "\x1b" not in text


def test_the_list_of_commands_has_the_first_sentence_of_each_help() -> None:
    for name, (_, summary) in COMMANDS.items():
        command = cli.get_command(click.Context(cli), name)
        assert command is not None and command.get_short_help_str(limit=1_000) == summary, name


def test_the_list_of_commands_imports_no_command() -> None:
    code = (
        "import sys; from mzplan.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(str({'mzplan.cli.status', 'mzplan.operations.project'} & set(sys.modules) or ''))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "state" in ran.stdout and ran.stderr.strip() == ""
