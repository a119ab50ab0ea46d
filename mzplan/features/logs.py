"""The `logs` command: the logs of the runners on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mzplan.cli.arguments import SINCE, selecting
from mzplan.cli.context import Invocation, command
from mzplan.operations.logs import read_logs
from mzplan.operations.status import select
from mzplan.render.text import safe

if TYPE_CHECKING:
    from mzplan.operations.selection import Selection


@command("logs")
@selecting()
@click.option(
    "--since", metavar="T", type=SINCE, help="Only entries since this time: 10m (ago), or 2026-01-31T10:00."
)
def command_logs(invocation: Invocation, selection: Selection, since: float | None) -> None:
    """Show the logs of the runners on this machine."""
    project = invocation.project()
    state = project.store.read_state()
    chosen = None if selection.is_everything else select(project, state, selection)
    if chosen == []:
        invocation.note(selection.chose_nothing)
    entries = read_logs(project, state, chosen, since)
    if invocation.json:
        invocation.document(
            {
                "entries": [
                    {
                        "instance": entry.instance,
                        "time": entry.at,
                        "level": entry.level,
                        "logger": entry.logger,
                        "message": entry.message,
                        "text": entry.text,
                    }
                    for entry in entries
                ]
            }
        )
        return
    for entry in entries:
        for line in entry.text.split("\n"):
            invocation.out(safe(line) or " ")
        if invocation.output.reader_gone:
            break
