"""Freshness: whether a plan that was saved earlier may still be applied, exactly as it was reviewed.

It is stale only when something that it touches has changed since, in the state, in the configuration or in
reality; other commits do not invalidate it. The error names what has changed. A plan file is data from
outside: what it would commit is taken from it only where planning the same resources again comes to the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping

from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import ExitCode, MzplanError, error
from mzplan.model.graph import DependencyGraph
from mzplan.model.observed import Status
from mzplan.model.plan import Change, DriftItem, Plan
from mzplan.model.resources import Configuration, Instance
from mzplan.model.state import ResourceState, State
from mzplan.plan.canaries import choose_canaries
from mzplan.plan.commit import apply_changes
from mzplan.plan.comparison import compare_resources, same_body, settings_changes
from mzplan.plan.difference import settled
from mzplan.plan.guards import same_place
from mzplan.plan.planner import build_plan
from mzplan.schema.description import digest_of

MAX_SHOWN = 8  # changes that the error names
MAX_FIELDS = 3
_NO_STATUS: Mapping[str, Status] = {}

# Drift that an apply repairs, or that comes and goes: it would not change a reviewer's decision.
PASSING = frozenset({"missing-query", "stalled-query", "secret-rotated", "connection-unreachable"})


def ensure_fresh(plan: Plan, state: State, then: State | None = None) -> Plan:
    """The plan, to be applied to this state: its changes, on top of whatever else was committed since.

    `then` is the state of the plan's serial, where it is still known. Raises MzplanError MZ036 (exit 5) for a
    plan of another project or lineage, and when something that the plan touches has changed.
    """
    if plan.project != state.project:
        why = f"It is of project {plan.project!r}, and this is {state.project!r}."
        raise _stale("The plan is of another project", why, "apply it in its own folder.")
    if plan.lineage != state.lineage and plan.lineage:
        why = "It was made for another state: one that was begun anew, or lies elsewhere."
        raise _stale("The plan is stale", f"{why} Nothing was changed.", "plan again.")
    why = _serials(plan, state)
    if plan.is_empty and plan.serial != state.serial:
        refuse_stale(["it has no changes, and so says nothing of what was committed since"], why)
    changed = list(_changed_records(plan, state))
    if changed and all(_is_done(change, state) for change in plan.changes):
        changed = ["all that it would do is done already"]
    if not changed:
        plan = _rebased(plan, state, then)
        _ensure_whole(plan, state)
        changed = list(_changed_reach(plan, state))
    refuse_stale(changed, why)
    return plan


def ensure_declared(plan: Plan, configuration: Configuration) -> None:
    """Raises MzplanError MZ036 (exit 5) when the files no longer declare what the plan would commit."""
    differences = []
    for change in plan.changes:
        wanted, after = configuration.resources.get(change.address), change.after
        wanted = settled(wanted, change.before) if wanted is not None else None
        if after is None:
            if wanted is not None:
                differences.append(f"{change.address} is declared again")
        elif wanted is None:
            differences.append(f"{change.address} is no longer declared")
        elif wanted.type != after.type or not same_body(wanted.body, after.body):
            now = dataclasses.replace(after, type=wanted.type, body=wanted.body)
            differences.append(f"{change.address} is declared otherwise ({_fields(after, now)})")
    if plan.instances_changed:
        differences += [
            f"instance {name} is declared otherwise"
            for name in sorted(plan.instances.keys() | configuration.instances.keys(), key=natural)
            if plan.instances.get(name) != configuration.instances.get(name)
        ]
    if plan.settings is not None and plan.settings != configuration.settings:
        differences.append("what mzplan.yaml says of runners was changed")
    refuse_stale(differences, "The files have changed since the plan was made")


def ensure_as_observed(plan: Plan, drift: Iterable[DriftItem]) -> None:
    """Raises MzplanError MZ036 (exit 5) when a query that the plan touches has drifted since, in a way that
    the reviewed plan did not show."""
    touched = {str(change.address) for change in plan.changes}
    known = {(item.address, item.kind) for item in plan.drift}
    drifted = [
        f"{item.address} has drifted ({item.kind}: {item.detail})"
        for item in drift
        if item.address in touched and item.kind not in PASSING and (item.address, item.kind) not in known
    ]
    refuse_stale(drifted, "What runs has changed since the plan was made")


def _changed_records(plan: Plan, state: State) -> Iterator[str]:
    """The touched resources whose committed record is not the one that the plan was made on."""
    for change in plan.changes:
        committed = state.resources.get(change.before.address if change.before else change.address)
        if committed == change.before:
            continue
        if change.before is None:
            yield f"{change.address} was added"
        elif committed is None:
            yield f"{change.address} was removed"
        else:
            yield f"{change.address} was changed ({_fields(change.before, committed)})"


def _is_done(change: Change, state: State) -> bool:
    committed, after = state.resources.get(change.address), change.after
    if committed is None or after is None:
        return committed is after
    return committed == dataclasses.replace(after, id=after.id or committed.id)


def _changed_reach(plan: Plan, state: State) -> Iterator[str]:
    """Where the changes would have other effects than the plan shows: something that a touched query uses has
    changed, or something new uses what is touched."""
    new = apply_changes(state, plan)
    touched = {change.address: change for change in plan.changes}
    graph = DependencyGraph.of(new.resources)
    memo: dict[Address, object] = {}
    for address in sorted({*graph.reach(touched), *(touched.keys() & new.resources.keys())}, key=natural):
        resource = new.resources[address]
        if address.kind == "connection":
            continue
        digest = digest_of(resource, new.resources, memo)
        if digest == resource.digest or _is_of_another_version(resource, digest, state):
            continue
        if address not in touched:
            yield f"{address} would restart too"
        else:
            used = ", ".join(
                str(a) for a in sorted(graph.requirements([address]) - touched.keys(), key=natural)
            )
            yield f"what {address} uses was changed ({used})" if used else f"{address} was planned otherwise"


def _is_of_another_version(resource: ResourceState, digest: str, state: State) -> bool:
    """Whether the digests differ only because an older mzplan computed the committed one differently."""
    if digest.partition(":")[0] == resource.digest.partition(":")[0]:
        return False
    committed = state.resources.get(resource.address)
    return committed is not None and digest_of(committed, state.resources) == digest


def _rebased(plan: Plan, state: State, then: State | None) -> Plan:
    """The plan, moved to the current state's serial: instances that it does not change are taken from the
    state. Raises MzplanError MZ036 if what the plan builds on has changed."""
    if (plan.lineage, plan.serial) == (state.lineage, state.serial):
        return plan
    used = {
        record.instance
        for change in plan.changes
        for record in (change.before, change.after)
        if record is not None and record.address.kind != "connection"
    }
    instances: Mapping[str, Instance] = state.instances
    changed = {name for name in used if plan.instances.get(name) != state.instances.get(name)}
    if plan.instances_changed:
        instances = plan.instances
        as_planned = then is not None and dict(then.instances) == dict(state.instances)
        changed = set() if as_planned else plan.instances.keys() | state.instances.keys()
    differences = [f"instance {name} was changed" for name in sorted(changed, key=natural)]
    if state.resources and plan.warehouse != state.warehouse:
        differences.append("the warehouse was changed")
    refuse_stale(differences, _serials(plan, state))
    return dataclasses.replace(
        plan,
        lineage=state.lineage,
        serial=state.serial,
        instances=instances,
        warehouse=plan.warehouse if not state.warehouse else state.warehouse,
    )


def _ensure_whole(plan: Plan, state: State) -> None:
    """Raises MzplanError MZ036 for a plan after which a resource would refer to one that does not exist."""
    new = apply_changes(state, plan)
    touched = {change.address for change in plan.changes}
    problems = []
    for resource in new.resources.values():
        lost = [target for target in resource.dependencies if target not in new.resources]
        runs = resource.address.kind != "connection"
        if lost or (runs and resource.instance not in new.instances):
            problem = f"refers to {lost[0]}" if lost else f"runs on instance {resource.instance}"
            since = "" if resource.address in touched else " now"
            problems.append(f"{resource.address}{since} {problem}, which would not be there")
    refuse_stale(problems, _serials(plan, state))


def _serials(plan: Plan, state: State) -> str:
    if plan.serial == state.serial:
        return f"It does not fit serial {state.serial}, for which it was made"
    return f"It was made for serial {plan.serial}; the state is now at serial {state.serial}"


def _fields(before: ResourceState, after: ResourceState) -> str:
    """`brokers[0], security.protocol and 2 more`."""
    paths = [field.path for field in compare_resources(before, after)]
    if before.generation != after.generation:
        paths.append("its generation")
    if not paths:
        by_hand = (before.override, before.restart_token) != (after.override, after.restart_token)
        paths = ["paused or restarted by hand" if by_hand else "what it uses"]
    more = f" and {len(paths) - MAX_FIELDS} more" if len(paths) > MAX_FIELDS else ""
    return ", ".join(paths[:MAX_FIELDS]) + more


def refuse_stale(found: list[str], why: str) -> None:
    """Raises MzplanError MZ036 (exit 5) if anything was found."""
    if found:
        more = f", and {len(found) - MAX_SHOWN} more" if len(found) > MAX_SHOWN else ""
        shown = "; ".join(found[:MAX_SHOWN]) + more
        raise _stale("The plan is stale", f"{why}: {shown}. Nothing was changed.", "plan again.")


def _stale(summary: str, why: str, hint: str) -> MzplanError:
    return error("MZ036", summary, why, hint, exit_code=ExitCode.STALE)


_COMPARED = ("action", "effect", "fields", "triggered_by", "before", "after")


def ensure_as_recomputed(
    plan: Plan, configuration: Configuration, state: State, statuses: Mapping[str, Status] = _NO_STATUS
) -> None:
    """Raises MzplanError MZ036 (exit 5), naming what differs, for a plan that claims anything else than the
    configuration and the state give; and with the errors of that plan where it must not be applied.

    `plan` is fresh and declared (see mzplan.plan.freshness): it is of this state. `statuses`: by instance, as
    for build_plan.
    """
    computed = build_plan(
        _of_the_plan(plan, configuration, state),
        state,
        statuses,
        replace=[
            c.address
            for c in plan.changes
            if c.action == "replace" and c.address.kind != "connection" and not c.carries_over
        ],
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
    """The configuration with everything that the plan does not touch replaced by what is committed."""
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
    needed: Mapping[Address, Change] = {change.address: change for change in computed.changes}
    if len(claimed) != len(plan.changes):
        yield "a resource is in it twice"
    for address in sorted(claimed.keys() | needed.keys(), key=natural):
        if address not in needed:
            yield f"{address} would stay as it is"
        elif address not in claimed:
            yield f"{address} would {needed[address].action} too"
        else:
            differ = [n for n in _COMPARED if getattr(claimed[address], n) != getattr(needed[address], n)]
            if differ:
                yield f"{address} would {needed[address].action} otherwise ({', '.join(differ)})"


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
