"""apply, destroy, pause, resume, restart: commands that commit, then follow."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from mzplan.cli.context import ADDRESS, DURATION, Invocation, command
from mzplan.model.address import Address
from mzplan.model.diagnostics import ExitCode
from mzplan.model.plan import Plan
from mzplan.model.state import State
from mzplan.operations import Applied, apply_configuration, operate, unknown_address

_wait = click.option(
    "--wait", type=DURATION, default="5m", show_default=True, help="How long to follow what was committed."
)
_auto = click.option("--auto-approve", is_flag=True, help="Don't ask.")


@command("apply")
@click.argument("planfile", required=False, type=click.Path())
@_auto
@click.option("--live/--no-live", default=None, help="Reach out in validation (default: where a runner can).")
@click.option("--allow-replace", is_flag=True, help="Allow replacements, which read everything again.")
@click.option("--target", type=ADDRESS, multiple=True, help="Only this resource and what depends on it.")
@click.option("--replace", "replacing", type=ADDRESS, multiple=True, help="Begin a new generation of it.")
@_wait
def command_apply(
    invocation: Invocation,
    planfile: str | None,
    auto_approve: bool,
    live: bool | None,
    allow_replace: bool,
    target: tuple[Address, ...],
    replacing: tuple[Address, ...],
    wait: float,
) -> int:
    """Commit the changes, then restart only the queries that they reach."""
    from mzplan.cli.progress import reporter
    from mzplan.cli.runners import LocalRunners

    project = invocation.project()
    if planfile is not None:
        raise click.UsageError(
            "Applying a saved plan is not possible yet: run apply without a file, it plans again."
        )
    applied = apply_configuration(
        project,
        LocalRunners(project.settings, project.store, invocation.note),
        reporter(invocation),
        approve=_approval(invocation, auto_approve, "apply"),
        targets=target,
        replacing=replacing,
        allow_replace=allow_replace,
        live=live,
        wait=wait,
    )
    return _finish(invocation, applied)


def _operation(
    invocation: Invocation, name: str, planned: Callable[[State], Plan], auto_approve: bool, wait: float
) -> int:
    from mzplan.cli.progress import reporter
    from mzplan.cli.runners import LocalRunners

    project = invocation.project()
    applied = operate(
        project,
        LocalRunners(project.settings, project.store, invocation.note),
        reporter(invocation),
        name,
        planned,
        approve=_approval(invocation, auto_approve, name),
        wait=wait,
    )
    return _finish(invocation, applied)


@command("destroy")
@click.option("--target", type=ADDRESS, multiple=True, help="Only this resource and what depends on it.")
@_auto
@_wait
def command_destroy(
    invocation: Invocation, target: tuple[Address, ...], auto_approve: bool, wait: float
) -> int:
    """Stop the queries and remove the resources from the state."""
    from mzplan.plan.by_hand import plan_destroy

    return _operation(
        invocation, "destroy", lambda state: plan_destroy(state, targets=target), auto_approve, wait
    )


def _override(name: str, text: str) -> click.Command:
    @command(name, help=text)
    @click.argument("address", type=ADDRESS)
    @_wait
    def called(invocation: Invocation, address: Address, wait: float) -> int:
        from mzplan.plan import by_hand as plans

        def planned(state: State) -> Plan:
            if address not in state.resources or address.kind == "connection":
                raise unknown_address(address, state)
            plan: Plan = getattr(plans, f"plan_{name}")(state, [address])
            return plan

        return _operation(invocation, name, planned, True, wait)

    return called


command_pause = _override("pause", "Stop a query and keep its checkpoint, until it is resumed.")
command_resume = _override("resume", "Let a paused query go on from its checkpoint.")
command_restart = _override("restart", "Restart a query from its checkpoint.")


def _approval(invocation: Invocation, auto_approve: bool, verb: str) -> Callable[[Plan], None]:
    """Shows the plan and asks; without a terminal that needs --auto-approve."""

    def approve(plan: Plan) -> None:
        if not invocation.json:
            from mzplan.render.human import render_plan

            invocation.out(render_plan(plan, invocation.color))
        if auto_approve:
            return
        if not sys.stdin.isatty() or invocation.json:
            raise click.UsageError(f"{verb} without a terminal needs --auto-approve.")
        answer = click.prompt(
            f"\nDo you want to {verb} this? Only 'yes' is taken for yes", default="no", err=True
        )
        if answer.strip() != "yes":
            raise click.exceptions.Abort

    return approve


def _finish(invocation: Invocation, applied: Applied) -> int:
    if invocation.json:
        invocation.document(applied_to_json(applied))
        return applied.exit_code
    bad = {a: o for a, o in applied.outcomes.items() if o.status != "applied"}
    good = len(applied.outcomes) - len(bad)
    if applied.plan.is_empty and not bad:
        invocation.out(f"No changes: serial {applied.serial} is what is wanted, and every query is there.")
        return applied.exit_code
    counts = ", ".join(f"{n} {action}" for action, n in applied.plan.summary().items() if n)
    if not applied.plan.is_empty:
        invocation.out(f"\nCommitted serial {applied.serial}: {counts}. {good} queries converged.")
    if bad:
        invocation.out(f"{len(bad)} did not converge; what is committed stays, and it goes on trying:")
        for address, outcome in sorted(bad.items()):
            code = f"[{outcome.code}] " if outcome.code else ""
            invocation.out(f"  {address}: {outcome.status}: {code}{outcome.reason}")
    return applied.exit_code


def applied_to_json(applied: Applied) -> dict[str, Any]:
    """The document of `apply --json`: the plan, and how each change ended."""
    from mzplan.render.json import plan_to_json

    document = plan_to_json(applied.plan)
    document["serial"] = applied.serial
    listed = set()
    for change, shown in zip(applied.plan.changes, document["changes"], strict=True):
        listed.add(change.address)
        outcome = applied.outcomes.get(change.address)
        shown["status"] = outcome.status if outcome else "applied"
        shown["seconds"] = round(outcome.seconds, 3) if outcome else 0.0
        if outcome is not None:
            shown["query"] = {
                "id": outcome.query_id,
                "run_id_before": applied.before.get(change.address),
                "run_id_after": outcome.run_id,
            }
            if outcome.reason:
                shown["error"] = outcome.reason
    document["pending"] = [
        {"address": str(address), "condition": outcome.status, "reason": outcome.reason}
        for address, outcome in sorted(applied.outcomes.items())
        if outcome.status != "applied"
    ]
    return document


__all__ = ["ExitCode", "applied_to_json"]
