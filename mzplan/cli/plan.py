"""plan, graph, show, drift, status: commands that change nothing."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from mzplan.cli.apply import canary_options
from mzplan.cli.arguments import (
    ADDRESS,
    ADDRESS_OR_FILE,
    WEB_ADDRESS,
    policy_option,
    selecting,
    send_secrets_option,
)
from mzplan.cli.context import Invocation, command
from mzplan.cli.streams import height, redrawn, write_text
from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode, MzplanError, error
from mzplan.model.plan import Plan
from mzplan.model.words import count

if TYPE_CHECKING:
    from mzplan.operations.selection import Selection

STDOUT = "-"
WATCH_EVERY = 1.0  # seconds


@command("plan")
@click.option("--out", metavar="FILE", type=click.Path(dir_okay=False), help="Save the plan, for apply.")
@click.option(
    "--markdown",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write a review comment (-: to stdout, instead of the plan).",
)
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write the plan as a picture, with its changes: one HTML file that loads nothing.",
)
@click.option(
    "--html-url",
    metavar="URL",
    type=WEB_ADDRESS,
    help="Where readers of the comment will find that file: the comment links to it.",
)
@click.option("--explain", is_flag=True, help="Also show the stages that apply will walk.")
@click.option("--live/--no-live", default=False, help="Validate the queries of the plan live (default: no).")
@policy_option
@send_secrets_option
@click.option("--target", type=ADDRESS, multiple=True, help="Only this resource and what depends on it.")
@click.option("--replace", "replacing", type=ADDRESS, multiple=True, help="Plan a new generation of it.")
@canary_options
@click.option("--full", is_flag=True, help="Show each change and each notice by itself: no groups.")
@click.option("--detailed-exitcode", is_flag=True, help="2: changes, 3: drift, 4: both.")
def command_plan(
    invocation: Invocation,
    out: str | None,
    markdown: str | None,
    html: str | None,
    html_url: str | None,
    explain: bool,
    live: bool,
    policy: str | None,
    send_secrets: bool,
    target: tuple[Address, ...],
    replacing: tuple[Address, ...],
    canary: float | None,
    full: bool,
    detailed_exitcode: bool,
) -> int:
    """Show what apply would change, what that restarts, and why."""
    from mzplan.operations.planning import make_plan

    if send_secrets and not live:
        raise click.UsageError("--send-secrets goes with --live.")
    if html_url is not None and markdown is None:
        raise click.UsageError("--html-url goes with --markdown: the comment has the link.")
    plan = make_plan(
        invocation.work(whole=True),
        targets=target,
        replacing=replacing,
        live=live,
        chosen=invocation.guard(policy, send_secrets) if live else None,
        canary=canary,
    )
    errors = [d for d in plan.diagnostics if d.severity == "error"]
    if out is not None and not errors:
        from mzplan.plan.file import write_plan

        write_plan(plan, out)
    if markdown is not None:
        from mzplan.render.markdown import render_plan_markdown

        _write_markdown(invocation, markdown, render_plan_markdown(plan, html_url=html_url))
    if html is not None:
        from mzplan.render.plan_page import render_plan_page

        write_text(html, render_plan_page(plan))
    if markdown != STDOUT:
        show_plan(invocation, plan, explain=explain, full=full)
    if errors:
        saved = "" if out is None else " It was not saved."
        number = count(len(errors), "error")
        invocation.note(f"This plan can't be applied: {number}, shown with it.{saved}")
        return MzplanError(errors).exit_code
    if out is not None:
        replaces = any(change.action == "replace" for change in plan.changes)
        allowing = " --allow-replace" if replaces else ""
        environment = f" --env {shlex.quote(plan.environment)}" if plan.environment else ""
        invocation.note(
            f"Saved the plan. To apply it: mzplan{environment} apply {shlex.quote(out)}{allowing}"
        )
    if not detailed_exitcode:
        return ExitCode.OK
    changed, drifted = not plan.is_empty, bool(plan.drift)
    if changed and drifted:
        return ExitCode.CHANGES_AND_DRIFT
    if changed:
        return ExitCode.CHANGES
    return ExitCode.DRIFT if drifted else ExitCode.OK


def _write_markdown(invocation: Invocation, file: str, text: str) -> None:
    if file != STDOUT:
        write_text(file, text)
    elif invocation.json:
        raise click.UsageError(f"--markdown {STDOUT} and --json don't go together: stdout takes one of them.")
    else:
        invocation.out(text)


def show_plan(invocation: Invocation, plan: Plan, *, explain: bool = False, full: bool = False) -> None:
    """A plan as the results of a command."""
    if invocation.json:
        from mzplan.render.plan_json import plan_to_json

        document = plan_to_json(plan)
        if explain:
            from mzplan.render.explain import stages_to_json

            document["stages"] = stages_to_json(plan)
        invocation.document(document)
        return
    from mzplan.render.plan_text import render_plan

    text = render_plan(plan, invocation.color, whole=bool(invocation.verbose), full=full)
    if explain:
        from mzplan.render.explain import render_stages

        text += "\n" + render_stages(plan, invocation.color)
    invocation.out(text)


@command("graph")
@click.option("--impact", type=ADDRESS, help="What a change of this resource reaches.")
@click.option("--format", "format_", type=click.Choice(["mermaid", "dot", "json"]), default="mermaid")
def command_graph(invocation: Invocation, impact: Address | None, format_: str) -> None:
    """Draw what depends on what, or what a change would reach."""
    from mzplan.render.graph import render_graph

    configuration = invocation.project(whole=True).configuration()
    if impact is not None and impact not in configuration.resources:
        raise error(
            "MZ070",
            f"There is no {impact}",
            "No file of this project declares it.",
            "`mzplan graph` shows every resource.",
            exit_code=ExitCode.USAGE,
        )
    text = render_graph(configuration, impact=impact, format="json" if invocation.json else format_)
    invocation.out(text)


@command("show")
@click.argument("what", required=False, metavar="[ADDRESS|PLANFILE]", type=ADDRESS_OR_FILE)
@click.option("--explain", is_flag=True, help="Of a saved plan: also the stages that apply will walk.")
def command_show(invocation: Invocation, what: str | None, explain: bool) -> None:
    """Show a committed resource, a saved plan, or the whole state."""
    from pathlib import Path

    if what is not None and Path(what).is_file():
        from mzplan.plan.file import read_plan

        show_plan(invocation, read_plan(what), explain=explain)
        return
    if explain:
        raise click.UsageError("--explain goes with a saved plan: mzplan show FILE --explain.")
    from mzplan.operations.project import committed_resource
    from mzplan.render.state import resource_to_json, state_to_json

    state = invocation.project().store.read_state()
    if what is None:
        invocation.document(state_to_json(state))
        return
    try:
        address = Address.parse(what)
    except ValueError as problem:
        raise click.UsageError(f"{problem}; and there is no file {what!r}") from None
    invocation.document(resource_to_json(committed_resource(state, address)))


@command("drift")
@click.option("--detailed-exitcode", is_flag=True, help="3 when there is drift.")
@click.option(
    "--markdown",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write a comment or issue (-: to stdout).",
)
def command_drift(invocation: Invocation, detailed_exitcode: bool, markdown: str | None) -> int:
    """Say where reality has left the state."""
    from mzplan.operations.status import find_all_drift

    project = invocation.project()
    serial, drift = find_all_drift(project)
    if markdown is not None:
        from mzplan.render.markdown import render_drift_markdown

        settings = project.settings
        text = render_drift_markdown(settings.project, serial, drift, settings.environment)
        _write_markdown(invocation, markdown, text)
    if markdown == STDOUT:
        pass
    elif invocation.json:
        invocation.document(
            {"drift": [{"address": d.address, "kind": d.kind, "detail": d.detail} for d in drift]}
        )
    elif not drift:
        invocation.out("No drift: what runs is what the state says.")
    else:
        from mzplan.render.drift_text import drift_lines

        invocation.out("\n".join(drift_lines(drift, 600)))
    return ExitCode.DRIFT if drift and detailed_exitcode else ExitCode.OK


@command("status")
@selecting()
@click.option(
    "--sort", type=click.Choice(["lag", "rows", "name"]), help="Most lag or rows first, or by name."
)
@click.option("--watch", is_flag=True, help="Again each second, until interrupted.")
@click.option(
    "--exit-code",
    is_flag=True,
    help="Exit 8 where a query has failed, was rejected, is degraded, or is to run and does not yet.",
)
def command_status(
    invocation: Invocation, selection: Selection, sort: str | None, watch: bool, exit_code: bool
) -> int:
    """Show how each query does: condition, rows, lag, last error and next attempt.

    Of all queries, or of those that are named (a glob: 'sink.pg_*'), narrowed by the options.
    """
    from mzplan.operations.status import read_project_status
    from mzplan.render.status import has_failed, render_status, status_to_json

    if watch and invocation.json:
        raise click.UsageError("--watch and --json don't go together: --json is one document.")
    project = invocation.project()
    drawn = 0
    while True:
        with invocation.progress.working("reading the status"):
            status = read_project_status(project, selection)
        if invocation.json:
            invocation.document(status_to_json(status, sort or "name"))
        else:
            text = render_status(status, color=invocation.color, by=sort or "condition")
            if not status.queries and not selection.is_everything:
                text = f"{selection.chose_nothing}\n"
            if watch and invocation.output.is_screen:
                text, drawn = redrawn(text, drawn, height())
            invocation.output.raw(text)
        if not (watch and invocation.output.is_read_after(WATCH_EVERY)):
            return ExitCode.NOT_CONVERGED if exit_code and has_failed(status) else ExitCode.OK
