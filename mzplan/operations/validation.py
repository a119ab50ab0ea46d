"""Live validation: what queries need is reached, where they will run or from here. Changes nothing.

A live runner of the instance validates: it has the network, the secrets and the checkpoints.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from mzplan.host.extras import MISSING
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.plan import Plan
from mzplan.model.resources import Instance
from mzplan.model.state import ResourceState, State
from mzplan.model.words import count
from mzplan.operations.follower import request_validation
from mzplan.plan.stages import is_validated
from mzplan.schema.description import Description, InlinedConnection, describe

if TYPE_CHECKING:
    from mzplan.operations.project import Project, Reporter, Runners

AT_ONCE = 8  # parallel checks from here
_NO_VALUES: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """A connection, and the queries through which it was reached; without any where nothing uses it. `why`:
    why it was not reached, "" where it was."""

    address: Address
    queries: tuple[Address, ...]
    why: str = ""


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
    environment: Mapping[str, str] = _NO_VALUES,
    *,
    from_here: bool,
) -> list[Diagnostic]:
    """Have queries of a state validated by the runners of their instances. Returns all their findings.

    Where no runner is alive: with `from_here` by this process, else not at all (the runner will do it before
    it stops anything). `environment`: values of `${env:…}` references for local runners.
    """
    by_instance: dict[str, list[ResourceState]] = {}
    for query in queries:
        by_instance.setdefault(query.instance, []).append(query)
    found: list[Diagnostic] = []
    for name, resources in sorted(by_instance.items()):
        instance = state.instances.get(name) or Instance(name=name, type="embedded")
        if instance.type == "dry":
            reporter.detail(f"instance {name} is dry: its queries reach nothing, so nothing is validated")
            continue
        descriptions = tuple(describe(resource, state.resources) for resource in resources)
        number = count(len(descriptions), "query", "queries")
        lease = project.store.leases.leader(name)
        if lease is not None:
            reporter.stage(f"Validating {number} on instance {name}")
            reporter.detail(f"its runner is process {lease.pid} on {lease.host}, epoch {lease.epoch}")
            with reporter.working(f"the runner of instance {name} validates {number}"):
                found += _by_runner(project, runners, instance, descriptions, environment)
        elif from_here:
            reporter.stage(f"Validating {number} from here: no runner of instance {name} is alive")
            with reporter.working(f"validating {number} from here"):
                found += check_here(descriptions, project.settings.directory, state.warehouse)
        else:
            reporter.detail(f"no runner of instance {name} is alive: it will validate before it acts")
    return found


def _by_runner(
    project: Project,
    runners: Runners,
    instance: Instance,
    descriptions: tuple[Description, ...],
    environment: Mapping[str, str],
) -> list[Diagnostic]:
    return request_validation(
        project.store,
        instance.name,
        descriptions,
        wake=lambda: runners.wake(instance, environment),
        ended=lambda: runners.ended(instance),
    )


def check_here(descriptions: Sequence[Description], directory: str, warehouse: str) -> list[Diagnostic]:
    """Check queries from this process, without Spark: with its network, environment and files. Where the
    warehouse is not on this machine, checkpoints are left to the runner."""
    from mzplan.connectors.catalogue import Connectors
    from mzplan.connectors.checks import check_description
    from mzplan.secrets.references import Secrets
    from mzplan.warehouse.paths import absolute, local_path

    secrets, connectors = Secrets(directory), Connectors()
    place = local_path(absolute(directory, warehouse))
    here = str(place) if place is not None and place.is_dir() else None

    def check(description: Description) -> tuple[Diagnostic, ...]:
        found = check_description(description, secrets, connectors, directory=directory, warehouse=here)
        return found.diagnostics

    return _each([(one.address, partial(check, one)) for one in descriptions])


def reach_alone(
    project: Project, reporter: Reporter, state: State, connections: Sequence[Address]
) -> list[Diagnostic]:
    """Reach connections that nothing uses, from here: they have no queries, so no instance either."""
    from mzplan.connectors.connection_checks import check_connection
    from mzplan.schema.description import inline_connection
    from mzplan.secrets.references import Secrets

    directory = project.settings.directory
    secrets = Secrets(directory)

    def check(address: Address) -> tuple[Diagnostic, ...]:
        inlined = inline_connection(state.resources[address], state.resources)
        found = check_connection(inlined, secrets, directory)
        if found is None:
            reporter.detail(f"a connection of type {inlined.type} has nothing to reach by itself")
        return tuple(found or ())

    for address in connections:
        reporter.stage(f"Nothing uses {address}: reaching it from here")
    return _each([(address, partial(check, address)) for address in connections])


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
                found[number] = check()
            except Exception as problem:
                found[number] = (_broken(address, problem),)

    # Daemons: an interrupted command does not wait for a server that does not answer.
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(AT_ONCE, len(checks)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return list(_once(diagnostic for each in found for diagnostic in each))


def _once(found: Iterable[Diagnostic]) -> Iterator[Diagnostic]:
    """A package that is missing here is reported once, however many queries need it."""
    reported: set[str] = set()
    for diagnostic in found:
        if diagnostic.code != MISSING:
            yield diagnostic
        elif diagnostic.summary not in reported:
            reported.add(diagnostic.summary)
            yield replace(diagnostic, address=None)


def unused(state: State) -> list[Address]:
    """The connections that nothing uses, at any depth."""
    used: set[Address] = set()
    for query in state.resources.values():
        if query.address.kind != "connection":
            used |= set(_connections(describe(query, state.resources).connections))
    return sorted(a for a in state.resources if a.kind == "connection" and a not in used)


def _broken(address: Address, problem: Exception) -> Diagnostic:
    """A defect of one connector, which must not hide the findings of the others."""
    return Diagnostic(
        code="MZ064",
        summary=f"The check of {address} broke down: {type(problem).__name__}",
        hint="that is a defect of mzplan: report it; --no-live leaves the check out.",
        address=address,
    )


def reached(state: State, queries: Iterable[ResourceState]) -> tuple[Reach, ...]:
    """Every connection of a state, and which of the queries reach it, at any depth."""
    from mzplan.connectors.connection_checks import is_reached_alone

    alone = set(unused(state))
    through: dict[Address, set[Address]] = {a: set() for a in state.resources if a.kind == "connection"}
    for query in queries:
        instance = state.instances.get(query.instance)
        if instance is not None and instance.type == "dry":
            continue
        for connection in _connections(describe(query, state.resources).connections):
            through[connection].add(query.address)

    def why(connection: Address) -> str:
        type_ = state.resources[connection].type
        if connection not in alone:
            return "" if through[connection] else "for only dry instances use it"
        lacks = f"for nothing uses it, and one of type {type_} has nothing to reach by itself"
        return "" if is_reached_alone(type_) else lacks

    return tuple(Reach(address=a, queries=tuple(sorted(q)), why=why(a)) for a, q in sorted(through.items()))


def _connections(inlined: Mapping[str, InlinedConnection]) -> Iterator[Address]:
    for connection in inlined.values():
        yield connection.address
        yield from _connections(connection.connections)
