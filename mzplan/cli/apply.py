"""apply, destroy, pause, resume, restart: commands that commit, then follow."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import click

from mzplan.cli.arguments import DIGEST, QUERY, policy_option, selecting
from mzplan.cli.context import Invocation, command
from mzplan.cli.exit import Declined
from mzplan.cli.options import (
    allow_options,
    auto_option,
    canary_options,
    live_option,
    message_option,
    target_option,
    wait_option,
)
from mzplan.cli.progress import NAMED
from mzplan.cli.streams import is_interactive
from mzplan.model.address import Address, natural_item
from mzplan.model.resources import start_command
from mzplan.model.words import count, first_names
from mzplan.operations.apply import ApplyOptions, CommitRequest, apply_configuration, apply_saved, carry_out
from mzplan.operations.planning import stored_data_notices
from mzplan.operations.status import select
from mzplan.plan.file import read_plan
from mzplan.plan.manual_changes import OVERRIDES, plan_destroy
from mzplan.render.plan_json import plan_to_json
from mzplan.render.plan_text import render_plan
from mzplan.render.resumption import render_resumed, resumed_to_json, task_to_json
from mzplan.render.text import paragraph, safe

if TYPE_CHECKING:
    from mzplan.model.plan import Plan
    from mzplan.model.state import State
    from mzplan.model.tasks import TaskOutcome
    from mzplan.operations.apply import ApplyResult
    from mzplan.operations.project import Outcome, Project
    from mzplan.operations.selection import Selection

_UNCHANGED = {"pause": "Already paused, so unchanged", "resume": "Not paused, so unchanged"}
_DONE = {
    "create": "created",
    "update": "updated",
    "restart": "restarted",
    "replace": "replaced",
    "delete": "deleted",
    "move": "moved",
}


def apply_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Collect a command's options that are fields of ApplyOptions into one argument `options`."""

    @wraps(function)
    def called(*arguments: Any, **given: Any) -> Any:
        names = {field.name for field in dataclasses.fields(ApplyOptions)} & given.keys()
        options = ApplyOptions(**{name: given.pop(name) for name in names})
        return function(*arguments, options=options, **given)

    return called


@command("apply", changing=True)
@click.argument("planfile", required=False, type=click.Path())
@auto_option
@live_option
@policy_option
@allow_options
@target_option
@click.option(
    "--replace",
    "replacing",
    type=QUERY,
    multiple=True,
    help="Start a new generation of this resource; repeatable.",
)
@click.option(
    "--parallelism",
    type=click.IntRange(min=1),
    help="Stop and start at most this many queries at once (default: 8).",
)
@click.option("--digest", type=DIGEST, metavar="sha256:…", help="Apply only the plan that has this digest.")
@canary_options
@message_option
@wait_option
@apply_options
def command_apply(
    invocation: Invocation,
    planfile: str | None,
    auto_approve: bool,
    policy: str | None,
    targets: tuple[Address, ...],
    replacing: tuple[Address, ...],
    options: ApplyOptions,
) -> int:
    """Commit the changes and restart only the affected queries.

    With PLANFILE (from `mzplan plan --out`), apply exactly that plan without asking.
    """
    options = dataclasses.replace(options, guard=invocation.guard(policy))
    if planfile is not None:
        if targets or replacing:
            raise click.UsageError(
                "A saved plan is applied unchanged: pass --target and --replace to `plan`."
            )

        saved = read_plan(planfile)
        work = invocation.work(whole=True, remembered=saved.variables, policy=policy)
        approve = approval(invocation, True, "apply")
        return finish(invocation, apply_saved(work, approve, options, saved))
    applied = apply_configuration(
        invocation.work(whole=True, policy=policy),
        approval(invocation, auto_approve, "apply"),
        options,
        targets=targets,
        replacing=replacing,
    )
    return finish(invocation, applied)


def carry_out_plan(
    invocation: Invocation,
    name: str,
    make_plan: Callable[[Project, State], Plan],
    auto_approve: bool,
    wait: float,
    message: str,
    live: bool | None = None,
    asked_for: Collection[Address] = (),
) -> int:
    """Carry out a plan that redefines no remaining query. `asked_for`: see CommitRequest."""
    work = invocation.work()
    request = CommitRequest(
        command=name,
        make_plan=partial(make_plan, work.project),
        approve=approval(invocation, auto_approve, name),
        options=ApplyOptions(allow_replace=True, wait=wait, message=message, live=live),
        redefines=False,
        asked_for=asked_for,
    )
    return finish(invocation, carry_out(work, request))


@command("destroy", changing=True)
@target_option
@auto_option
@message_option
@wait_option
def command_destroy(
    invocation: Invocation, targets: tuple[Address, ...], auto_approve: bool, message: str | None, wait: float
) -> int:
    """Stop the queries and remove the resources from the state."""

    def make_plan(project: Project, state: State) -> Plan:
        plan = plan_destroy(state, targets)
        notices = stored_data_notices(plan, project, state)
        return dataclasses.replace(plan, diagnostics=(*plan.diagnostics, *notices))

    why = message if message is not None else f"Destroyed {', '.join(map(str, targets)) or 'everything'}"
    return carry_out_plan(invocation, "destroy", make_plan, auto_approve, wait, why)


def _override(name: str, text: str) -> click.Command:
    @command(name, help=text, changing=True)
    @selecting(required=True)
    @auto_option
    @message_option
    @wait_option
    def called(
        invocation: Invocation,
        selection: Selection,
        auto_approve: bool,
        message: str | None,
        wait: float,
        live: bool | None = None,
    ) -> int:
        chosen: list[Address] = []

        def make_plan(project: Project, state: State) -> Plan:
            chosen[:] = [query.address for query in select(project, state, selection)]
            if not chosen:
                invocation.note(selection.chose_nothing)
            plan = OVERRIDES[name](state, chosen)
            changed = {change.address for change in plan.changes}
            if unchanged := [address for address in chosen if address not in changed]:
                invocation.note(f"{_UNCHANGED[name]}: {first_names(unchanged, NAMED)}")
            return plan

        why = message if message is not None else f"{name} {selection}"
        return carry_out_plan(invocation, name, make_plan, True, wait, why, live, asked_for=chosen)

    return called if name == "pause" else live_option(called)  # a pause starts nothing


command_pause = _override("pause", "Stop queries and keep their checkpoints until you resume.")
command_resume = _override("resume", "Resume paused queries from their checkpoints.")
command_restart = _override("restart", "Restart queries from their checkpoints.")


def approval(invocation: Invocation, auto_approve: bool, verb: str) -> Callable[[Plan], None]:
    """Return a function that shows a plan and asks for approval.

    Without a terminal, it requires --auto-approve.
    """

    def approve(plan: Plan) -> None:
        if not invocation.json:
            invocation.out(render_plan(plan, invocation.color, whole=bool(invocation.verbose)))
        if auto_approve:
            return
        if invocation.json or not is_interactive():
            where = "with --json" if invocation.json else "without a terminal"
            alternative = " (or a plan file)" if verb == "apply" else ""
            raise click.UsageError(f"{verb} {where} can't ask: it needs --auto-approve{alternative}.")
        if invocation.ask(f"\nDo you want to {verb} this? Only 'yes' is accepted: ") != "yes":
            raise Declined(verb)

    return approve


def finish(invocation: Invocation, applied: ApplyResult) -> int:
    """Show the result of an apply, and return the exit code."""
    if invocation.json:
        invocation.document(applied_to_json(applied))
        return applied.exit_code
    failures = {a: o for a, o in applied.outcomes.items() if o.status != "applied"}
    good = len(applied.outcomes) - len(failures)
    if not applied.plan.is_empty:
        parts = [f"{n} {_DONE[action]}" for action, n in applied.plan.summary().items() if n]
        if applied.plan.resuming:
            parts.append(f"{len(applied.plan.resuming)} resuming")
        counts = ", ".join(parts) or "the declared instances"
        converged = f" {count(good, 'query has', 'queries have')} converged." if good else ""
        invocation.out(f"\nCommitted serial {applied.serial}: {counts}.{converged}")
    elif not failures:
        suffix = ", and every query has converged" if applied.followed_all else ""
        invocation.out(f"No changes: serial {applied.serial} is up to date{suffix}.")
    for address, seen in sorted(applied.resumed.items(), key=natural_item):
        invocation.out(f"  {safe(render_resumed(address, seen))}")
    for outcome in applied.outcomes.values():
        task_done = _requested_task(outcome, applied)
        if task_done is not None and task_done.text:
            invocation.out(f"  {outcome.address}: {paragraph(task_done.text, '    ')}")
    if failures:
        number = count(len(failures), "query has", "queries have")
        runner_action = "the runner keeps trying"
        if applied.leaderless:
            starts = [start_command(lost, applied.plan.environment) for lost in applied.leaderless]
            runner_action = f"a runner applies it once you start one ({' and '.join(dict.fromkeys(starts))})"
        invocation.out(f"{number} not converged. The commit stays, and {runner_action}:")
        for address, outcome in sorted(failures.items(), key=natural_item):
            code = f"[{safe(outcome.code)}] " if outcome.code else ""
            invocation.out(f"  {address}: {outcome.status}: {code}{paragraph(outcome.reason, '    ')}")
    return applied.exit_code


def applied_to_json(applied: ApplyResult) -> dict[str, Any]:
    """Return the document of `apply --json`: the plan, and the outcome of each change."""
    document = plan_to_json(applied.plan)
    document["serial"] = applied.serial
    document["lineage"] = applied.lineage  # a new project gets its lineage with its first serial
    listed = set()
    for change, shown in zip(applied.plan.changes, document["changes"], strict=True):
        listed.add(change.address)
        outcome = applied.outcomes.get(change.address)
        shown["status"] = outcome.status if outcome else "applied"
        shown["seconds"] = round(outcome.seconds, 3) if outcome else 0.0
        if outcome is not None:
            shown["query"] = {
                **shown.get("query", {}),  # of a changed view: the verdict on its state
                "id": outcome.query_id,
                # A renamed query ran under its former name.
                "run_id_before": applied.former_run_ids.get((change.before or change).address),
                "run_id_after": outcome.run_id,
            }
            if change.address in applied.resumed:
                shown["resumed"] = resumed_to_json(applied.resumed[change.address])
            task_done = _requested_task(outcome, applied)
            tasks = {task.serial: task for task in change.after.tasks} if change.after is not None else {}
            if task_done is not None and applied.serial in tasks:
                shown["task"] = task_to_json(tasks[applied.serial], True, task_done)
            if outcome.reason:
                shown["error"] = _reason(outcome)
            if outcome.warning:
                shown["warning"] = outcome.warning
    document["pending"] = [
        {"address": str(address), "condition": outcome.status, "reason": _reason(outcome)}
        for address, outcome in sorted(applied.outcomes.items(), key=natural_item)
        if outcome.status != "applied"
    ]
    return document


def _requested_task(outcome: Outcome, applied: ApplyResult) -> TaskOutcome | None:
    """Return the outcome of the task that this command requested, if it is done."""
    return next((done for done in outcome.tasks_done if done.serial == applied.serial), None)


def _reason(outcome: Outcome) -> str:
    """Return an outcome's reason in the format of `plan`."""
    return f"{outcome.code}: {outcome.reason}" if outcome.code else outcome.reason
