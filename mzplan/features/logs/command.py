"""logs: what the runners of this machine have logged."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING

import click

from mzplan.cli.arguments import ParsedType, selecting
from mzplan.cli.context import Invocation, command
from mzplan.model.times import DURATION_FORM, seconds
from mzplan.render.text import safe

if TYPE_CHECKING:
    from mzplan.operations.selection import Selection


def _since(text: str) -> float:
    """`10m` (that long ago), or a time such as `2026-01-31T10:00`: seconds since the epoch."""
    if DURATION_FORM.fullmatch(text):
        return time.time() - seconds(text)
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ValueError(f"{text!r} is neither a duration (10m) nor a time (2026-01-31T10:00).") from None


@command("logs")
@selecting()
@click.option(
    "--since", metavar="T", type=ParsedType("time", _since), help="Not before: 10m ago, or 2026-01-31T10:00."
)
def command_logs(invocation: Invocation, selection: Selection, since: float | None) -> None:
    """Show what the runners of this machine have logged: all of it, or of some queries."""
    from mzplan.operations.logs import read_logs
    from mzplan.operations.status import select

    project = invocation.project()
    state = project.store.read_state()
    chosen = None if selection.is_everything else select(project, state, selection)
    if chosen == []:
        invocation.note(selection.chose_nothing)
    found = read_logs(project, state, chosen, since)
    if invocation.json:
        invocation.document(
            {
                "entries": [
                    {
                        "instance": one.instance,
                        "time": one.at,
                        "level": one.level,
                        "logger": one.logger,
                        "message": one.message,
                        "text": one.text,
                    }
                    for one in found
                ]
            }
        )
        return
    for one in found:
        for line in one.text.split("\n"):
            invocation.out(safe(line) or " ")
        if invocation.output.reader_gone:
            break
