"""status: what every query does now."""

from __future__ import annotations

import time
from typing import Any

import click

from mzplan.cli.context import Invocation, command
from mzplan.model.diagnostics import ExitCode

WATCH_EVERY = 1.0  # seconds


@command("status")
@click.option("--watch", is_flag=True, help="Again each second, until interrupted.")
def command_status(invocation: Invocation, watch: bool) -> int:
    """Show each query: condition, step, rows per second, lag, last error."""
    from mzplan.operations import read_project_status
    from mzplan.render.status import render_status, status_to_json

    project = invocation.project()
    while True:
        status = read_project_status(project)
        if invocation.json:
            invocation.document(status_to_json(status))
        else:
            if watch:
                click.clear()
            invocation.out(render_status(status, color=invocation.color))
        if not watch:
            return ExitCode.OK
        time.sleep(WATCH_EVERY)


__all__: list[Any] = []
