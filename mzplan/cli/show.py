"""show and graph: saved, committed and declared definitions."""

from __future__ import annotations

from pathlib import Path

import click

from mzplan.cli.arguments import (
    ADDRESS,
    ADDRESS_OR_FILE,
)
from mzplan.cli.context import Invocation, command
from mzplan.model.address import Address
from mzplan.model.diagnostics import error, usage_error
from mzplan.model.plan import Plan
from mzplan.model.resources import inlined_view
from mzplan.model.state import committed_record
from mzplan.plan.file import read_plan
from mzplan.render.explain import render_stages, resource_to_json, stages_to_json, state_to_json
from mzplan.render.graph import render_graph
from mzplan.render.plan_json import plan_to_json
from mzplan.render.plan_text import render_plan


def show_plan(invocation: Invocation, plan: Plan, *, explain: bool = False, full: bool = False) -> None:
    """Print a plan as the result of a command."""
    if invocation.json:
        document = plan_to_json(plan)
        if explain:
            document["stages"] = stages_to_json(plan)
        invocation.document(document)
        return

    text = render_plan(plan, invocation.color, whole=bool(invocation.verbose), full=full)
    if explain:
        text += "\n" + render_stages(plan, invocation.color)
    invocation.out(text)


@command("graph")
@click.option("--impact", type=ADDRESS, help="Show everything that a change to this resource would affect.")
@click.option(
    "--format",
    "format_",
    type=click.Choice(["mermaid", "dot", "json"]),
    default="mermaid",
    help="The graph's format (default: mermaid).",
)
def command_graph(invocation: Invocation, impact: Address | None, format_: str) -> None:
    """Draw the dependencies, or what a change would affect."""
    configuration = invocation.project(whole=True).configuration()
    if impact is not None and impact not in configuration.resources:
        if (inlined := inlined_view(impact, configuration.resources)) is not None:
            raise usage_error(f"{impact} has no query", *inlined)
        raise error("MZ070.no-no-file", impact=impact)
    text = render_graph(configuration, impact=impact, format="json" if invocation.json else format_)
    invocation.out(text)


@command("show")
@click.argument("what", required=False, metavar="[ADDRESS|PLANFILE]", type=ADDRESS_OR_FILE)
@click.option("--explain", is_flag=True, help="For a saved plan: also show the stages of its apply.")
def command_show(invocation: Invocation, what: str | None, explain: bool) -> None:
    """Show a committed resource, a saved plan, or the state."""
    if what is not None and Path(what).is_file():
        show_plan(invocation, read_plan(what), explain=explain)
        return
    if explain:
        raise click.UsageError("--explain requires a saved plan: mzplan show FILE --explain.")
    state = invocation.project().store.read_state()
    if what is None:
        invocation.document(state_to_json(state))
        return
    try:
        address = Address.parse(what)
    except ValueError as problem:
        raise click.UsageError(f"{problem}; and there is no file {what!r}") from None
    invocation.document(resource_to_json(committed_record(state, address)))
