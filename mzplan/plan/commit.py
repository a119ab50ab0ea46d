"""Commit: the next State that a plan makes of the current one. Pure; writing it is the store's."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

from mzplan.model.diagnostics import ExitCode, MzplanError, error
from mzplan.model.plan import Plan
from mzplan.model.state import State

MAX_TOLD = 8  # resources that a stale plan names


def new_id() -> str:
    """An id for a resource: 16 random hex digits. It names its checkpoint and collection for life."""
    return os.urandom(8).hex()  # what the secrets module does, without its imports


def new_lineage() -> str:
    """A lineage: what tells the states of two projects apart when their serials are alike."""
    import uuid  # only ever needed for a project's first apply

    return str(uuid.uuid4())


def apply_changes(
    state: State,
    plan: Plan,
    make_id: Callable[[], str] = new_id,
    make_lineage: Callable[[], str] = new_lineage,
) -> State:
    """The state after the plan: one serial later, with ids for what is created.

    Resources that the plan does not change keep their very record. Says nothing about whether the plan
    may be applied: see `ensure_fresh`, and the plan's diagnostics.
    """
    resources = dict(state.resources)
    for change in plan.changes:
        if change.after is None:
            resources.pop(change.address, None)
        else:
            after = change.after
            resources[change.address] = after if after.id else dataclasses.replace(after, id=make_id())
    return State(
        format_version=state.format_version,
        project=plan.project,
        lineage=state.lineage or make_lineage(),
        serial=state.serial + 1,
        warehouse=plan.warehouse,
        instances=plan.instances,
        resources=resources,
    )


def ensure_fresh(plan: Plan, state: State, then: State | None = None) -> None:
    """Raises MzplanError MZ036 (exit 5) when the plan was made from another state than this one. `then` is
    that of the plan's serial, where it is still known: to say what has changed since."""
    if plan.project != state.project:
        why = f"It is of project {plan.project!r}, and this is {state.project!r}."
        raise _stale("The plan is of another project", why, "apply it in its own folder.")
    if (plan.lineage, plan.serial) == (state.lineage, state.serial):
        return
    if plan.lineage != state.lineage:
        why = "It was made for another state: one that was begun anew, or lies elsewhere."
    else:
        why = f"It was made for serial {plan.serial}; the state is now at serial {state.serial}."
    if then is not None:
        why += _changed_since(then, state)
    raise _stale("The plan is stale", f"{why} Nothing was changed.", "plan again.")


def ensure_whole(plan: Plan, state: State) -> None:
    """Raises MzplanError MZ036 (exit 5) when the state after a saved plan would not hold together. No plan
    that mzplan makes is so, but a file may have been made by somebody else."""
    new = apply_changes(state, plan)
    for resource in new.resources.values():
        lost = [target for target in resource.dependencies if target not in new.resources]
        runs = resource.address.kind != "connection"
        if lost or (runs and resource.instance not in new.instances):
            what = f"refers to {lost[0]}" if lost else f"runs on instance {resource.instance}"
            why = f"After it, {resource.address} {what}, which would not be there. Nothing was changed."
            raise _stale("The plan can't be used", why, "plan again.")


def _stale(summary: str, why: str, hint: str) -> MzplanError:
    return error("MZ036", summary, why, hint, exit_code=ExitCode.STALE)


def _changed_since(then: State, now: State) -> str:
    """` Since then: source.a changed, sink.b was removed.`"""
    before, after = then.resources, now.resources
    told = [f"{a} was added" for a in sorted(after.keys() - before.keys())]
    told += [f"{a} was removed" for a in sorted(before.keys() - after.keys())]
    told += [f"{a} changed" for a in sorted(before.keys() & after.keys()) if before[a] != after[a]]
    if not told:
        return " Since then no resource has changed, but the settings have."
    more = f" and {len(told) - MAX_TOLD} more" if len(told) > MAX_TOLD else ""
    return f" Since then: {', '.join(told[:MAX_TOLD])}{more}."
