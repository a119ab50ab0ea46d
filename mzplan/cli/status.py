"""status: what every query does now."""

from __future__ import annotations

import time

import click

from mzplan.cli.context import Invocation, command
from mzplan.model.diagnostics import ExitCode

WATCH_EVERY = 1.0  # seconds
_REDRAW = "\x1b[H\x1b[J"  # to the top, and clear from there: no flicker


@command("status")
@click.option("--watch", is_flag=True, help="Again each second, until interrupted.")
def command_status(invocation: Invocation, watch: bool) -> int:
    """Show how each query does: condition, rates, lag, last error."""
    from mzplan.operations.status import read_project_status
    from mzplan.render.status import render_status, status_to_json

    if watch and invocation.json:
        raise click.UsageError("--watch and --json don't go together: --json is one document.")
    project = invocation.project()
    while True:
        with invocation.progress.working("reading the status"):
            status = read_project_status(project)
        if invocation.json:
            invocation.document(status_to_json(status))
        else:
            text = render_status(status, color=invocation.color)
            redraw = _REDRAW if watch and invocation.output.is_screen else ""
            invocation.output.raw(redraw + text)
        if not watch or invocation.output.reader_gone:
            return ExitCode.OK
        time.sleep(WATCH_EVERY)
