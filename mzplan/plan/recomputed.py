"""Whether a saved plan claims what the files and the state give: it is planned once more, and compared.

A plan file is data from outside. What it would commit is taken from it only where planning the same resources
again comes to the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping

from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import MzplanError
from mzplan.model.plan import Change, Plan
from mzplan.model.resources import Configuration
from mzplan.model.state import State
from mzplan.plan.canaries import choose_canaries
from mzplan.plan.freshness import refuse_stale
from mzplan.plan.guards import same_place
from mzplan.plan.planner import build_plan
from mzplan.plan.settings import settings_changes

_COMPARED = ("action", "effect", "fields", "triggered_by", "before", "after")


def ensure_as_recomputed(plan: Plan, configuration: Configuration, state: State) -> None:
    """Raises MzplanError MZ036 (exit 5), naming what differs, for a plan that claims anything else than the
    configuration and the state give; and with the errors of that plan where it must not be applied.

    `plan` is fresh and declared (see mzplan.plan.freshness): it is of this state.
    """
    computed = build_plan(
        _of_the_plan(plan, configuration, state),
        state,
        replace=[c.address for c in plan.changes if c.action == "replace" and c.address.kind != "connection"],
        rotated={c.before.address: () for c in plan.changes if c.before is not None and _starts_anew(c)},
    )
    refuse_stale(
        [*_other_changes(plan, computed), *_other_settings(plan, configuration, state)],
        "It says something else than the files and the state give",
    )
    errors = [d for d in computed.diagnostics if d.severity == "error"]
    if errors:
        raise MzplanError(errors)


def _of_the_plan(plan: Plan, configuration: Configuration, state: State) -> Configuration:
    """The configuration as far as the plan goes: everything that it does not touch is as committed."""
    former = {change.before.address for change in plan.changes if change.before is not None}
    resources = {
        record.address: record.declared for record in state.resources.values() if record.address not in former
    }
    for change in plan.changes:
        if change.address in configuration.resources:
            resources[change.address] = configuration.resources[change.address]
    return dataclasses.replace(configuration, resources=resources)


def _starts_anew(change: Change) -> bool:
    """Whether the query restarts although its description stays, as where a secret was rotated."""
    before, after = change.before, change.after
    return before is not None and after is not None and before.restart_token != after.restart_token


def _other_changes(plan: Plan, computed: Plan) -> Iterator[str]:
    claimed: Mapping[Address, Change] = {change.address: change for change in plan.changes}
    found: Mapping[Address, Change] = {change.address: change for change in computed.changes}
    if len(claimed) != len(plan.changes):
        yield "a resource is in it twice"
    for address in sorted(claimed.keys() | found.keys(), key=natural):
        if address not in found:
            yield f"{address} would stay as it is"
        elif address not in claimed:
            yield f"{address} would {found[address].action} too"
        else:
            differ = [n for n in _COMPARED if getattr(claimed[address], n) != getattr(found[address], n)]
            if differ:
                yield f"{address} would {found[address].action} otherwise ({', '.join(differ)})"


def _other_settings(plan: Plan, configuration: Configuration, state: State) -> Iterator[str]:
    """What a plan has of the whole project."""
    if plan.settings_changes != settings_changes(state, plan.settings, plan.instances):
        yield "the settings of runners change otherwise"
    for place in (configuration.warehouse, state.warehouse if state.resources else plan.warehouse):
        if not same_place(plan.warehouse, place):
            yield f"the warehouse is {place!r}, not {plan.warehouse!r}"
            break
    declared = configuration.instances
    partly = {**state.instances, **declared}  # with targets none is removed
    kept = state.serial > 0 and not plan.instances_changed
    for instances in (dict(state.instances),) if kept else (dict(declared), partly):
        if dict(plan.instances) == instances:
            break
    else:
        wanted = state.instances if kept else declared
        names = sorted(
            n for n in plan.instances.keys() | wanted.keys() if plan.instances.get(n) != wanted.get(n)
        )
        yield f"the instances are others ({', '.join(names)})"
    waiting = {address for canary in state.canaries for address in (canary.address, *canary.holds)}
    for address in plan.goes_on:
        if address not in waiting:
            yield f"{address} waits for no canary"
    if plan.canaries and plan.canaries != choose_canaries(plan, state, plan.canaries[0].wait):
        yield "other queries would go first"
