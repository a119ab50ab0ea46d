"""status and drift: the running queries, and their differences from the state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mzplan.cli.arguments import (
    selecting,
)
from mzplan.cli.context import STDOUT, Invocation, command
from mzplan.cli.streams import height, redrawn
from mzplan.model.diagnostics import ExitCode
from mzplan.operations.status import find_all_drift, read_project_status
from mzplan.render.cause_text import drift_lines, drift_to_json
from mzplan.render.markdown import render_drift_markdown
from mzplan.render.resumption import render_jobs
from mzplan.render.status import has_failed, render_status
from mzplan.render.status_json import status_to_json

if TYPE_CHECKING:
    from mzplan.operations.selection import Selection

WATCH_EVERY = 1.0  # seconds


@command("drift")
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 3 if there is drift.")
@click.option(
    "--markdown",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write a Markdown comment or issue (- for stdout).",
)
def command_drift(invocation: Invocation, detailed_exitcode: bool, markdown: str | None) -> int:
    """Report where reality differs from the state."""
    project = invocation.project()
    serial, drift = find_all_drift(project)
    if markdown is not None:
        settings = project.settings
        text = render_drift_markdown(settings.project, serial, drift, settings.environment)
        invocation.write_markdown(markdown, text)
    if markdown == STDOUT:
        pass
    elif invocation.json:
        invocation.document({"drift": drift_to_json(drift)})
    elif not drift:
        invocation.out("No drift: the running queries match the state.")
    else:
        invocation.out("\n".join(drift_lines(drift, 600)))
    return ExitCode.DRIFT if drift and detailed_exitcode else ExitCode.OK


@command("status")
@selecting()
@click.option(
    "--sort",
    type=click.Choice(["lag", "rows", "name"]),
    help="Sort by highest lag, by most rows, or by name.",
)
@click.option("--watch", is_flag=True, help="Refresh every second until interrupted.")
@click.option("--jobs", is_flag=True, help="Show the background jobs of runners instead of queries.")
@click.option(
    "--exit-code",
    is_flag=True,
    help="Exit with 8 if a query is failed, rejected, degraded or still starting.",
)
def command_status(
    invocation: Invocation, selection: Selection, sort: str | None, watch: bool, jobs: bool, exit_code: bool
) -> int:
    """Show each query: condition, rows, lag, last error.

    Without ADDRESS, shows all queries. An address may be a glob, such as 'sink.pg_*'. Options narrow the
    selection.
    """
    if watch and invocation.json:
        raise click.UsageError("--watch and --json can't be combined: --json prints one document.")
    project = invocation.project()
    drawn = 0
    while True:
        with invocation.progress.working("reading the status"):
            status = read_project_status(project, selection)
        if invocation.json:
            invocation.document(status_to_json(status, sort or "name"))
        else:
            text = render_status(status, color=invocation.color, by=sort or "condition")
            if jobs:
                text = render_jobs(status)
            elif not status.queries and not selection.is_everything:
                text = f"{selection.chose_nothing}\n"
            if watch and invocation.output.is_screen:
                text, drawn = redrawn(text, drawn, height())
            invocation.output.raw(text)
        if not (watch and invocation.output.is_read_after(WATCH_EVERY)):
            return ExitCode.NOT_CONVERGED if exit_code and has_failed(status) else ExitCode.OK
