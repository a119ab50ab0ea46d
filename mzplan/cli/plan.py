"""plan."""

from __future__ import annotations

import shlex

import click

from mzplan.cli.arguments import ADDRESS, WEB_ADDRESS, policy_option, send_secrets_option
from mzplan.cli.context import STDOUT, Invocation, command
from mzplan.cli.options import canary_options, target_option
from mzplan.cli.show import show_plan
from mzplan.cli.streams import write_text
from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode, MzplanError
from mzplan.model.plan import Plan
from mzplan.model.words import count
from mzplan.operations.planning import make_plan
from mzplan.operations.project import Workbench
from mzplan.plan.file import write_plan
from mzplan.render.previews import NO_PREVIEWS, Previews


@command("plan")
@click.option(
    "--out",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Save the plan to this file, for `mzplan apply FILE`.",
)
@click.option(
    "--markdown",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write a review comment in Markdown (- for stdout, in place of the plan).",
)
@click.option(
    "--html",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write the plan and its graph as one self-contained HTML file.",
)
@click.option(
    "--html-url",
    metavar="URL",
    type=WEB_ADDRESS,
    help="The public address of the --html file, for the link in the comment.",
)
@click.option("--explain", is_flag=True, help="Also show the stages of the apply.")
@click.option(
    "--live/--no-live", default=False, help="Validate the plan's queries against their servers (default: no)."
)
@click.option(
    "--preview",
    is_flag=True,
    help="Show what rows changed views and sinks give, and how many rows violate new expectations. Starts "
    "Spark in this process; writes nothing.",
)
@policy_option
@send_secrets_option
@target_option
@click.option(
    "--replace",
    "replacing",
    type=ADDRESS,
    multiple=True,
    help="Plan a new generation of this resource; repeatable.",
)
@canary_options
@click.option("--full", is_flag=True, help="List each change and notice separately, without grouping.")
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 2 for changes, 3 for drift, 4 for both.")
def command_plan(
    invocation: Invocation,
    out: str | None,
    markdown: str | None,
    html: str | None,
    html_url: str | None,
    explain: bool,
    live: bool,
    preview: bool,
    policy: str | None,
    send_secrets: bool,
    targets: tuple[Address, ...],
    replacing: tuple[Address, ...],
    canary: float | None,
    full: bool,
    detailed_exitcode: bool,
) -> int:
    """Show what apply would change and restart, and why."""
    if send_secrets and not live:
        raise click.UsageError("--send-secrets requires --live.")
    if html_url is not None and markdown is None:
        raise click.UsageError("--html-url requires --markdown, because the link is in the comment.")
    work = invocation.work(whole=True)
    plan = make_plan(
        work,
        targets=targets,
        replacing=replacing,
        live=live,
        policy=invocation.guard(policy, send_secrets) if live else None,
        canary=canary,
    )
    previews = _previews(invocation, work, plan, policy) if preview else NO_PREVIEWS
    if out is not None and not plan.errors:
        write_plan(plan, out)
    if markdown is not None:
        from mzplan.render.markdown import render_plan_markdown  # not for every plan

        invocation.write_markdown(markdown, render_plan_markdown(plan, html_url, previews))
    if html is not None:
        from mzplan.render.plan_page import render_plan_page  # not for every plan

        write_text(html, render_plan_page(plan, previews))
    if markdown != STDOUT:
        show_plan(invocation, plan, explain=explain, full=full, previews=previews)
    if plan.errors:
        saved = "" if out is None else " It was not saved."
        number = count(len(plan.errors), "error")
        invocation.note(f"This plan can't be applied: {number}.{saved}")
        return MzplanError(plan.errors).exit_code
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


def _previews(invocation: Invocation, work: Workbench, plan: Plan, policy: str | None) -> Previews:
    from mzplan.operations.plan_previews import preview_changes  # not for every plan

    return preview_changes(
        work, plan, invocation.guard(policy), lambda: invocation.note("Starting Spark in this process")
    )
