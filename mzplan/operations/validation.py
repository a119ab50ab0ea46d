"""Live validation: what queries need is reached, where they will run or from here. Changes nothing.

A live runner of the instance validates: it has the network, the secrets and the checkpoints.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from mzplan.host.extras import MISSING, missing_extras_reported
from mzplan.model.address import Address, natural, natural_item
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.graph import DependencyGraph
from mzplan.model.plan import Plan
from mzplan.model.resources import Instance
from mzplan.model.state import ResourceState, State
from mzplan.model.words import count
from mzplan.operations.follower import request_validation
from mzplan.operations.reached import unused
from mzplan.operations.values import values_here, whose_values
from mzplan.plan.stages import is_validated
from mzplan.schema.description import Description, as_description, describe
from mzplan.schema.kinds import resource_kind
from mzplan.secrets.handed import NOTHING_HANDED, Handed
from mzplan.secrets.policy import NOT_COMMITTED, Guard

if TYPE_CHECKING:
    from mzplan.operations.project import Project, Reporter, Runners

AT_ONCE = 8  # parallel checks from here
SHOWN = 5  # queries that an error lists; JSON has all of them


def queries_to_validate(plan: Plan, new: State) -> list[ResourceState]:
    """The queries of a plan that are validated before it is committed, as they will be in the state `new`."""
    changed = [change.address for change in plan.changes if is_validated(change)]
    going_on = [
        a for a in plan.goes_on if a not in changed and a in new.resources and not new.resources[a].paused
    ]
    return [new.resources[address] for address in (*changed, *going_on)]


def reach(
    project: Project,
    runners: Runners,
    reporter: Reporter,
    state: State,
    queries: Iterable[ResourceState],
    handed: Handed | None = None,
    *,
    here: Guard | None,
) -> list[Diagnostic]:
    """Have queries of a state validated by the runners of their instances. Returns all their findings.

    Where no runner is alive: by this process, if `here` says which secrets it may send, else not at all (the
    runner will do it before it stops anything). `handed`: to runners of this machine, for these questions; by
    default the values that are known here.
    """
    handed = handed or values_here(state)
    by_instance: dict[str, list[ResourceState]] = {}
    for query in queries:
        by_instance.setdefault(query.instance, []).append(query)
    found: list[Diagnostic] = []
    for name, resources in sorted(by_instance.items(), key=natural_item):
        instance = state.instances.get(name) or Instance(name=name, type="embedded")
        if instance.type == "dry":
            reporter.detail(f"instance {name} is dry: its queries reach nothing, so nothing is validated")
            continue
        descriptions = tuple(describe(resource, state.resources) for resource in resources)
        number = count(len(descriptions), "query", "queries")
        lease = project.store.leases.leader(name)
        if lease is not None:
            reporter.detail(f"its runner is process {lease.pid} on {lease.host}, epoch {lease.epoch}")
            with reporter.working(f"the runner of instance {name} validates {number}"):
                asking = f"Validating {number} on instance {name}"
                answers = _by_runner(project, runners, reporter, asking, instance, descriptions, handed)
            left = [d for d in descriptions if here is not None and _is_left_out(d.address, answers)]
            found += [one for one in answers if one.address not in {d.address for d in left}]
            if left and here is not None:
                reporter.detail(
                    f"{len(left)} of them from here: the runner sends secrets where it is committed"
                )
                found += check_here(left, project.settings.directory, state.warehouse, here)
        elif here is not None:
            reporter.stage(f"Validating {number} from here: no runner of instance {name} is alive")
            with reporter.working(f"validating {number} from here"):
                found += check_here(descriptions, project.settings.directory, state.warehouse, here)
        else:
            reporter.detail(f"no runner of instance {name} is alive: it will validate before it acts")
    return found


def _by_runner(
    project: Project,
    runners: Runners,
    reporter: Reporter,
    asking: str,
    instance: Instance,
    descriptions: tuple[Description, ...],
    handed: Handed,
) -> list[Diagnostic]:
    announced: list[str] = []

    def wake(proposal: str) -> None:
        heard = runners.wake(instance, replace(handed, proposal=proposal)) is not None
        if not announced:
            announced.append(asking + whose_values(descriptions, handed if heard else NOTHING_HANDED))
            reporter.stage(announced[0])

    return request_validation(
        project.store,
        instance.name,
        descriptions,
        wake=wake,
        ended=lambda: runners.ended(instance),
    )


def _is_left_out(address: Address, answers: Iterable[Diagnostic]) -> bool:
    """Whether a runner has not looked: it would have sent a secret where no committed state does."""
    return any(d.code == NOT_COMMITTED and d.address == address for d in answers)


def check_here(
    descriptions: Sequence[Description], directory: str, warehouse: str, guard: Guard
) -> list[Diagnostic]:
    """Check queries, or connections alone, from this process, without Spark: with its network, and with what
    the guard permits of its environment and files. Where the warehouse is not on this machine, checkpoints
    are left to the runner."""
    from mzplan.connectors.admission import GuardedSecrets
    from mzplan.connectors.catalogue import Connectors
    from mzplan.connectors.checks import check_description
    from mzplan.warehouse.paths import absolute, local_path

    secrets, connectors = GuardedSecrets(directory, guard).proposed(), Connectors()
    place = local_path(absolute(directory, warehouse))
    here = str(place) if place is not None and place.is_dir() else None

    def check(description: Description) -> tuple[Diagnostic, ...]:
        found = check_description(description, secrets, connectors, directory=directory, warehouse=here)
        return found.diagnostics

    return _each([(one.address, partial(check, one)) for one in descriptions])


def reach_changed(
    project: Project,
    runners: Runners,
    reporter: Reporter,
    plan: Plan,
    new: State,
    handed: Handed | None = None,
    *,
    here: Guard | None,
) -> list[Diagnostic]:
    """Validate what a plan changes, as it will be in the state `new`: its queries, and connections that
    nothing uses."""
    queries = queries_to_validate(plan, new)
    looks = here is not None
    unreached = (
        [_dry(name, new) for name in sorted({q.instance for q in queries}, key=natural)] if looks else []
    )
    found = [notice for notice in unreached if notice is not None]
    found += reach(project, runners, reporter, new, queries, handed, here=here)
    alone = _changed_alone(plan, new, looks)
    found += reach_alone(project, runners, reporter, new, alone, handed, here=here)
    return by_cause(found)


def _dry(name: str, state: State) -> Diagnostic | None:
    """MZ148 for a dry instance, whose queries can't be validated though that was asked for."""
    instance = state.instances.get(name)
    if instance is None or instance.type != "dry":
        return None
    return Diagnostic(
        severity="notice",
        code="MZ148",
        summary=f"Instance {name} is dry, so its queries were not validated",
        detail="They reach nothing, whatever their connections say.",
    )


def _changed_alone(plan: Plan, new: State, asked: bool) -> list[Address]:
    """The connections that a plan creates or changes, itself or below them, and that nothing uses: those of
    a type that is validated by default, and all where it was asked for."""
    changed = {c.address for c in plan.changes if c.address.kind == "connection" and c.after is not None}
    if not changed:
        return []
    reached = changed | {
        a for a in DependencyGraph.of(new.resources).reach(changed) if a.kind == "connection"
    }
    return [
        address
        for address in unused(new)
        if address in reached
        and (asked or resource_kind("connection", new.resources[address].type).validates_live)
    ]


def reach_alone(
    project: Project,
    runners: Runners,
    reporter: Reporter,
    state: State,
    connections: Sequence[Address],
    handed: Handed | None = None,
    *,
    here: Guard | None,
) -> list[Diagnostic]:
    """Reach connections that nothing uses. They have no queries, so no instance either: any live runner does
    it; without one this process, with `here`."""
    from mzplan.connectors.checks import is_reached_alone

    able = [address for address in connections if is_reached_alone(state.resources[address].type)]
    for address in connections:
        if address not in able:
            type_ = state.resources[address].type
            reporter.detail(f"{address}: a connection of type {type_} has nothing to reach by itself")
    if not able:
        return []
    names = ", ".join(map(str, able))
    asked = tuple(as_description(state.resources[address], state.resources) for address in able)
    if here is not None:
        reporter.stage(f"Nothing uses {names}: reaching it from here")
        return check_here(asked, project.settings.directory, state.warehouse, here)
    for instance in state.instances.values():
        if instance.type != "dry" and project.store.leases.leader(instance.name) is not None:
            asking = f"Nothing uses {names}: the runner of instance {instance.name} reaches it"
            handed = handed or values_here(state)
            return _by_runner(project, runners, reporter, asking, instance, asked, handed)
    reporter.detail(
        f"nothing uses {names}, and no runner is alive: not reached (--live reaches it from here)"
    )
    return []


def _each(checks: Sequence[tuple[Address, Callable[[], tuple[Diagnostic, ...]]]]) -> list[Diagnostic]:
    """The findings of the checks, in order of the resources; AT_ONCE run in parallel."""
    todo: SimpleQueue[int] = SimpleQueue()
    for number in range(len(checks)):
        todo.put(number)
    found: list[tuple[Diagnostic, ...]] = [()] * len(checks)

    def work() -> None:
        while True:
            try:
                number = todo.get_nowait()
            except Empty:
                return
            address, check = checks[number]
            try:
                with missing_extras_reported():
                    found[number] = check()
            except MzplanError as problem:
                found[number] = problem.diagnostics
            except Exception as problem:
                found[number] = (_broken(address, problem),)

    # Daemons: an interrupted command does not wait for a server that does not answer.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(AT_ONCE, len(checks)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [diagnostic for each in found for diagnostic in each]


def _broken(address: Address, problem: Exception) -> Diagnostic:
    """A defect of one connector, which must not hide the findings of the others."""
    return Diagnostic(
        code="MZ064",
        summary=f"The check of {address} broke down: {type(problem).__name__}",
        hint="that is a defect of mzplan: report it; --no-live leaves the check out.",
        address=address,
    )


def by_cause(found: Iterable[Diagnostic]) -> list[Diagnostic]:
    """One cause, one diagnostic: those that differ only in their query become one that names all of them. A
    package that is missing here is of no query at all."""
    causes: dict[tuple[str, ...], list[Diagnostic]] = {}
    for one in found:
        detail = "" if one.code == MISSING else one.detail
        causes.setdefault((one.severity, one.code, one.summary, detail, one.hint), []).append(one)
    return [_together(alike) for alike in causes.values()]


def _together(alike: Sequence[Diagnostic]) -> Diagnostic:
    first = alike[0]
    if first.code == MISSING:
        return replace(first, address=None)
    addresses = tuple(sorted({one.address for one in alike if one.address is not None}, key=natural))
    if len(addresses) < 2:
        return first
    shown = ", ".join(map(str, addresses[:SHOWN])) + (" …" if len(addresses) > SHOWN else "")
    reached = f"Reached by {count(len(addresses), 'query', 'queries')}: {shown}."
    detail = f"{first.detail}\n{reached}" if first.detail else reached
    return replace(first, address=addresses[0], addresses=addresses, detail=detail)
