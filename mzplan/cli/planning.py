"""plan, graph, show, drift: commands that change nothing."""

from __future__ import annotations

import click

from mzplan.cli.context import ADDRESS, Invocation, command
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError, error


@command("plan")
@click.option("--out", type=click.Path(dir_okay=False), help="Save the plan to a file, for apply.")
@click.option("--target", type=ADDRESS, multiple=True, help="Only this resource and what depends on it.")
@click.option("--replace", "replacing", type=ADDRESS, multiple=True, help="Plan a new generation of it.")
@click.option("--detailed-exitcode", is_flag=True, help="2: changes, 3: drift, 4: both.")
def command_plan(
    invocation: Invocation,
    out: str | None,
    target: tuple[Address, ...],
    replacing: tuple[Address, ...],
    detailed_exitcode: bool,
) -> int:
    """Show what apply would change, which running queries it reaches, and why."""
    from mzplan.operations import make_plan

    plan = make_plan(invocation.project(), targets=target, replacing=replacing)
    errors = [d for d in plan.diagnostics if d.severity == "error"]
    if errors:
        raise MzplanError(errors)
    if out is not None:
        from mzplan.plan.file import write_plan

        write_plan(plan, out)
    if invocation.json:
        from mzplan.render.json import plan_to_json

        invocation.document(plan_to_json(plan))
    else:
        from mzplan.render.human import render_plan

        invocation.out(render_plan(plan, invocation.color))
    if not detailed_exitcode:
        return ExitCode.OK
    changed, drifted = not plan.is_empty, bool(plan.drift)
    if changed and drifted:
        return ExitCode.CHANGES_AND_DRIFT
    if changed:
        return ExitCode.CHANGES
    return ExitCode.DRIFT if drifted else ExitCode.OK


@command("graph")
@click.option("--impact", type=ADDRESS, help="What a change of this resource reaches.")
@click.option("--format", "format_", type=click.Choice(["mermaid", "dot", "json"]), default="mermaid")
def command_graph(invocation: Invocation, impact: Address | None, format_: str) -> int:
    """Show what depends on what, or what a change would reach."""
    from mzplan.render.graph import render_graph

    configuration = invocation.project().configuration()
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
    return ExitCode.OK


@command("show")
@click.argument("what", required=False)
def command_show(invocation: Invocation, what: str | None) -> int:
    """Show a resource as recorded, or a saved plan; without an argument, the whole state."""
    from pathlib import Path

    if what is not None and Path(what).is_file():
        from mzplan.plan.file import read_plan

        plan = read_plan(what)
        if invocation.json:
            from mzplan.render.json import plan_to_json

            invocation.document(plan_to_json(plan))
        else:
            from mzplan.render.human import render_plan

            invocation.out(render_plan(plan, invocation.color))
        return ExitCode.OK
    from mzplan.render.state import resource_to_json, state_to_json

    state = invocation.project().store.read_state()
    if what is None:
        invocation.document(state_to_json(state))
        return ExitCode.OK
    try:
        address = Address.parse(what)
    except ValueError as problem:
        raise click.UsageError(f"{problem}; and there is no file {what!r}") from None
    if address not in state.resources:
        from mzplan.operations import unknown_address

        raise unknown_address(address, state)
    invocation.document(resource_to_json(state.resources[address]))
    return ExitCode.OK


@command("drift")
@click.option("--detailed-exitcode", is_flag=True, help="3 when there is drift.")
def command_drift(invocation: Invocation, detailed_exitcode: bool) -> int:
    """Say where reality has left the state."""
    from mzplan.operations import find_drift

    drift = find_drift(invocation.project())
    if invocation.json:
        invocation.document(
            {"drift": [{"address": d.address, "kind": d.kind, "detail": d.detail} for d in drift]}
        )
    elif not drift:
        invocation.out("No drift: what runs is what the state says.")
    else:
        for item in drift:
            invocation.out(f"{item.address}: {item.kind}: {item.detail}")
    return ExitCode.DRIFT if drift and detailed_exitcode else ExitCode.OK


def warnings_of(diagnostics: tuple[Diagnostic, ...]) -> list[Diagnostic]:
    """Those that are no errors."""
    return [d for d in diagnostics if d.severity != "error"]
