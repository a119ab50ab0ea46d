"""Which connections the queries of a state reach, and why other connections aren't reached.

Warns if this project's warehouse isn't the one that the last runner used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mzplan.model.address import Address, natural, natural_item
from mzplan.model.diagnostics import Diagnostic, ExitCode
from mzplan.model.graph import DependencyGraph
from mzplan.model.observed import Status
from mzplan.model.resources import is_dry
from mzplan.model.state import ResourceState, State
from mzplan.operations.project import Project
from mzplan.schema.description import InlinedConnection, describe
from mzplan.warehouse.elsewhere import former_place, stored_elsewhere
from mzplan.warehouse.paths import absolute


@dataclass(frozen=True, slots=True, kw_only=True)
class Reachability:
    """A connection and how it is reached.

    `queries`: the queries through which it is reached; empty if nothing uses it.
    `reason`: why it isn't reached; "" if it is.
    `unreached`: queries that use it but reach nothing, each with the reason.
    """

    address: Address
    queries: tuple[Address, ...]
    reason: str = ""
    unreached: Mapping[Address, str] = field(default_factory=dict)


def unused_connections(state: State) -> list[Address]:
    """Return the connections that nothing uses, at any depth."""
    queries = [a for a in state.resources if a.is_query]
    used = DependencyGraph.of(state.resources).requirements(queries)
    return sorted((a for a in state.resources if a.is_connection and a not in used), key=natural)


def idle_connections(state: State) -> list[Address]:
    """Return the connections that no query uses, or only paused queries."""
    connections = [a for a in sorted(state.resources, key=natural) if a.is_connection]
    return [a for a in connections if all(query.paused for query in users_of(state, a))]


def reachability_of(state: State, queries: Iterable[ResourceState]) -> tuple[Reachability, ...]:
    """Return every connection of a state, and the given queries that reach it, at any depth."""
    from mzplan.connectors.checks import is_reached_alone

    unused = set(unused_connections(state))
    connections = [a for a in sorted(state.resources, key=natural) if a.is_connection]
    through: dict[Address, set[Address]] = {a: set() for a in connections}
    unreached: dict[Address, dict[Address, str]] = {a: {} for a in connections}
    for query in sorted(queries, key=lambda resource: natural(resource.address)):
        for connection in _connections(describe(query, state.resources).connections):
            if is_dry(state.instances, query.instance):
                unreached[connection][query.address] = (
                    f"its instance {query.instance} is dry, and contacts no server"
                )
            else:
                through[connection].add(query.address)

    def why(connection: Address) -> str:
        type_ = state.resources[connection].type
        if connection not in unused:
            return "" if through[connection] else "because only dry instances use it"
        reason = f"because nothing uses it, and type {type_} can't be reached by itself"
        return "" if is_reached_alone(type_) else reason

    return tuple(
        Reachability(
            address=a, queries=tuple(sorted(through[a], key=natural)), reason=why(a), unreached=unreached[a]
        )
        for a in connections
    )


def no_connection_reached(connections: Sequence[Reachability]) -> Diagnostic:
    """Return MZ143 if no connection was reached: then their validity is unknown."""
    names = [str(connection.address) for connection in connections]
    lines = []
    for connection in connections:
        lines.append(f"{connection.address} was not reached, {connection.reason}.")
        lines += [f"{query}: {why}" for query, why in sorted(connection.unreached.items(), key=natural_item)]
    return Diagnostic(
        code="MZ143",
        summary=f"Nothing of {names[0] if len(names) == 1 else 'the connections'} could be reached",
        detail="\n".join(lines),
        hint="use it in a source or sink of an instance that isn't dry, then validate again.",
        address=connections[0].address,
        exit_code=ExitCode.REFUSED,
    )


def users_of(state: State, connection: Address) -> list[ResourceState]:
    """Return the queries that use a connection, directly or through other connections."""
    addresses = {connection}
    grew = True
    while grew:
        using = {
            r.address
            for r in state.resources.values()
            if any(target.is_connection and target in addresses for target in r.references.values())
        }
        grew = not using <= addresses
        addresses |= using
    return [state.resources[a] for a in sorted(addresses, key=natural) if a.is_query]


def _connections(inlined: Mapping[str, InlinedConnection]) -> Iterator[Address]:
    for connection in inlined.values():
        yield connection.address
        yield from _connections(connection.connections)


def warehouses_elsewhere(
    project: Project, state: State, statuses: Mapping[str, Status]
) -> Iterator[tuple[str, Diagnostic]]:
    """Yield each embedded instance whose data is in another warehouse than here, with MZ341.

    The runner of another type of instance isn't started from here.
    """
    warehouse = absolute(project.settings.directory, state.warehouse or project.settings.warehouse)
    for name, instance in state.instances.items():
        if instance.type != "embedded":
            continue
        stored = [r.place for r in state.resources.values() if r.digest and r.instance == name]
        if former := former_place(statuses.get(name), warehouse, stored):
            yield name, stored_elsewhere(former, warehouse, name)
