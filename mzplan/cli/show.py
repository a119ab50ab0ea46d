"""show and graph: saved, committed and declared definitions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mzplan.cli.arguments import (
    ADDRESS_OR_COLUMN,
    ADDRESS_OR_FILE,
)
from mzplan.cli.context import Invocation, command
from mzplan.model.address import Address
from mzplan.model.diagnostics import error, usage_error
from mzplan.model.plan import Plan
from mzplan.model.resources import inlined_view
from mzplan.model.state import committed_record
from mzplan.model.words import did_you_mean, listed
from mzplan.plan.file import read_plan
from mzplan.render.plan_json import plan_to_json
from mzplan.render.plan_text import render_plan
from mzplan.render.previews import NO_PREVIEWS, Previews
from mzplan.schema.source_columns import columns_of


def show_plan(
    invocation: Invocation,
    plan: Plan,
    *,
    explain: bool = False,
    full: bool = False,
    previews: Previews = NO_PREVIEWS,
) -> None:
    """Print a plan as the result of a command."""
    if explain:
        from mzplan.render.explain import render_stages, stages_to_json  # not for every plan

    if invocation.json:
        document = plan_to_json(plan, previews)
        if explain:
            document["stages"] = stages_to_json(plan)
        invocation.document(document)
        return

    text = render_plan(plan, invocation.color, whole=bool(invocation.verbose), full=full, previews=previews)
    if explain:
        text += "\n" + render_stages(plan, invocation.color)
    invocation.out(text)


@command("graph")
@click.option(
    "--impact",
    type=ADDRESS_OR_COLUMN,
    help="Show everything that a change to this resource would affect; for a column such as "
    "source.orders.amount, the queries and columns that it reaches.",
)
@click.option(
    "--format",
    "format_",
    type=click.Choice(["text", "mermaid", "dot", "json"]),
    help="The graph's format (default: mermaid; for a column, text).",
)
def command_graph(invocation: Invocation, impact: tuple[Address, str] | None, format_: str | None) -> None:
    """Draw the dependencies, or what a change would affect."""
    from mzplan.render.graphs.column_graph import render_column_graph
    from mzplan.render.graphs.graph import render_graph

    configuration = invocation.project(whole=True).configuration()
    address, column = impact or (None, "")
    if address is not None and address not in configuration.resources:
        if (inlined := inlined_view(address, configuration.resources)) is not None:
            raise usage_error(f"{address} has no query", *inlined)
        raise error("MZ070.no-no-file", impact=address)
    format_ = "json" if invocation.json else format_ or ("text" if column else "mermaid")
    if address is not None and column:
        resource = configuration.resources[address]
        column = _column_of(address, column, resource.type, resource.body)
        text = render_column_graph(configuration.resources, address, column, format=format_)
    else:
        text = render_graph(configuration, impact=address, format=format_)
    invocation.out(text)


def _column_of(address: Address, column: str, type_: str, body: Mapping[str, Any]) -> str:
    """Return a collection's column as declared. Raises MzplanError MZ070 (usage) if there is none."""
    columns = [one.name for one in columns_of(type_, body)] if address.writes_collection else []
    found = next((name for name in columns if name.lower() == column.lower()), None)
    if found is None:
        near = did_you_mean(column, columns)
        why = (
            f"Its columns are {listed(columns)}."
            if columns
            else "Only a source or a view writes a collection."
        )
        raise error("MZ070.no-column", address=address, column=column, why=why, did_you_mean=near)
    return found


@command("show")
@click.argument("what", required=False, metavar="[ADDRESS|PLANFILE]", type=ADDRESS_OR_FILE)
@click.option("--explain", is_flag=True, help="For a saved plan: also show the stages of its apply.")
def command_show(invocation: Invocation, what: str | None, explain: bool) -> None:
    """Show a committed resource, a saved plan, or the state."""
    from mzplan.render.explain import resource_to_json, state_to_json

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
