"""Output on a terminal: grouped changes, the status by condition, and one live block."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import click
import pytest

from mzplan.cli import progress
from mzplan.cli.main import COMMANDS, cli
from mzplan.cli.progress import ProgressLines
from mzplan.cli.streams import Streams, redrawn
from mzplan.model.address import Address
from mzplan.model.plan import Plan
from mzplan.model.resources import Configuration
from mzplan.model.state import ProjectStatus, QueryStatus
from mzplan.operations.project import Outcome
from mzplan.plan import build_plan
from mzplan.plan.manual_changes import plan_destroy
from mzplan.render.plan_text import render_plan
from mzplan.render.status import render_status
from tests.unit.runner.test_status import seen_of
from tests.unit.small_projects import commit, kafka, project, source

CAUSE = "because connection.k changed: brokers[0] a:9092 → b:9092"


def landscape(number: int, broker: str) -> Configuration:
    return project(kafka(brokers=[broker]), *(source(f"s{n:03}") for n in range(number)))


def planned(number: int) -> Plan:
    return build_plan(landscape(number, "b:9092"), commit(landscape(number, "a:9092")))


def test_few_changes_are_shown_one_by_one() -> None:
    text = render_plan(planned(3))
    assert text.count(f"    {CAUSE}\n") == 3 and "queries restart" not in text


def test_many_changes_with_one_cause_are_one_paragraph_unless_verbose() -> None:
    plan = planned(99)
    text, whole = (render_plan(plan, whole=whole) for whole in (False, True))
    assert f"⟳ 99 queries restart from their checkpoints {CAUSE}\n    99 sources:\n" in text
    assert text.count("because") == 1 and "more: -v lists them all" in text and "s098" not in text
    assert all(f"s{n:03}" in whole for n in range(99)) and "more" not in whole
    assert max(map(len, text.splitlines()[:8])) <= 110


def test_deleted_queries_are_always_named() -> None:
    text = render_plan(plan_destroy(commit(landscape(99, "a:9092"))))
    assert "- 99 queries are deleted: destroyed by hand" in text and "s098" in text and "s000" in text


def test_a_status_is_sorted_by_condition_and_one_error_is_shown_once() -> None:
    (resource,) = (r for a, r in commit(landscape(1, "a:9092")).resources.items() if a.kind == "source")
    queries = []
    for number, condition in enumerate(["running", "failed", "running", "paused", "failed", "rejected"]):
        address = Address("source", f"s{number}")
        error = "the broker is gone" if condition == "failed" else None
        seen = seen_of(address, condition=condition, error=error, error_code="MZ050" if error else None)
        queries.append(QueryStatus(resource=replace(resource, address=address), observation=seen))
    text = render_status(ProjectStatus(serial=1, instances=(), queries=tuple(queries)))
    assert "Queries: 2 failed, 1 rejected, 1 paused, 2 running\n" in text
    rows = [line.split()[0] for line in text.splitlines() if line.startswith("source.s")]
    assert rows[:6] == [f"source.s{n}" for n in (1, 4, 5, 3, 0, 2)]
    assert "\nsource.s1, source.s4: [MZ050] the broker is gone\n" in text


def test_a_watched_status_replaces_the_former_one() -> None:
    first, drawn = redrawn("a\nb\nc\n", 0, 24)
    assert (first, drawn) == ("\x1b[?7la\x1b[K\nb\x1b[K\nc\x1b[K\n\x1b[J\x1b[?7h", 3)
    second, drawn = redrawn("a\n", drawn, 24)
    assert second.startswith("\x1b[?7l\x1b[3Fa\x1b[K\n\x1b[J") and drawn == 1
    cut, drawn = redrawn("\n".join("abcdefgh"), drawn, 6)
    assert "… 4 more lines" in cut and drawn == 5 and "\x1b[1F" in cut


class Screen(Streams):
    """A terminal or a log that records its output."""

    def __init__(self, live: bool) -> None:
        super().__init__()
        self.lives, self.text = live, ""

    @property
    def is_live(self) -> bool:
        return self.lives

    def err(self, text: str) -> None:
        self.text += f"{text}\n"

    def live(self, text: str) -> None:
        self.text += text


def applied(number: int) -> Outcome:
    return Outcome(address=Address("source", f"s{number}"), status="applied", seconds=1.0)


@pytest.mark.parametrize("live", [True, False])
def test_progress_is_one_block_on_a_terminal_and_lines_in_a_log(
    live: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "width", lambda: 80)
    screen = Screen(live)
    shown = ProgressLines(screen, clock=lambda: 100.0)
    for number in range(10):
        shown.outcome(applied(number))
    waiting = {Address("source", f"w{n}"): "starting" if n < 5 else "stopping" for n in range(7)}
    shown.waiting(waiting, 12.0)
    shown.waiting(dict(list(waiting.items())[:5]), 13.0)
    shown.outcome(replace(applied(99), status="failed", reason="no"))
    shown.close()
    assert "  ✗ source.s99: failed after 1.0 s: no\n" in screen.text
    assert screen.text.count("✓ source.") == (3 if live else 10)
    if live:
        block = "5 starting: source.w0, source.w1, source.w2 and 2 more\n    2 stopping: source.w5, source.w6"
        assert block in screen.text and "; 10 applied" in screen.text
        assert "\r\x1b[2A\x1b[J  … 13 s: waiting for 5 queries: 5 starting" in screen.text
        assert screen.text.endswith("  ✓ 7 queries more: applied\n")
    else:
        assert "\x1b" not in screen.text


def test_progress_shows_a_whole_fix() -> None:
    screen = Screen(live=False)
    shown = ProgressLines(screen, clock=lambda: 100.0)
    fix = "Refused. Fix: widen the table:\nALTER TABLE t\n  ALTER COLUMN a TYPE bigint;"
    shown.outcome(replace(applied(1), status="rejected", reason=fix))
    long = "x" * 700
    shown.outcome(replace(applied(2), warning=f"[MZ045] {long}. Fix: run\nSQL;"))
    shown.close()
    assert f"rejected after 1.0 s: {fix}".replace("\n", "\n    ") in screen.text
    assert f"warning[MZ045] {long}. Fix: run\n    SQL;\n" in screen.text


def test_the_list_of_commands_has_the_first_sentence_of_each_help() -> None:
    for name, (_, summary) in COMMANDS.items():
        command = cli.get_command(click.Context(cli), name)
        assert command is not None and command.get_short_help_str(limit=1_000) == summary, name


@pytest.mark.parametrize("environment", [{}, {"_MZPLAN_COMPLETE": "bash_complete", "COMP_WORDS": "mzplan s"}])
def test_the_list_of_commands_imports_no_command(environment: dict[str, str]) -> None:
    code = (
        "import sys; from mzplan.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(str({'mzplan.cli.status', 'mzplan.operations.project'} & set(sys.modules) or ''))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "COMP_CWORD": "1", **environment},
        capture_output=True,
        text=True,
    )
    assert "state" in ran.stdout and ran.stderr.strip() == ""
