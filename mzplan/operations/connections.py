"""Which connections the queries of a state reach, and which of their secrets were rotated.

A secret is rotated if the value that is resolved here differs from the value that a query uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mzplan.model.address import Address, natural, natural_item
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.graph import DependencyGraph
from mzplan.model.observed import Status
from mzplan.model.resources import is_dry
from mzplan.model.state import ResourceState, State
from mzplan.model.words import first_names
from mzplan.operations.project import Project
from mzplan.schema.description import InlinedConnection, describe
from mzplan.schema.kinds import resource_kind
from mzplan.secrets.digests import VARIABLE, is_comparable, is_same_secret
from mzplan.secrets.references import Secrets
from mzplan.warehouse.elsewhere import former_place, stored_elsewhere
from mzplan.warehouse.paths import absolute


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotations:
    """The result of comparing secrets.

    `queries`: queries that run with an old value, each with the references whose values changed.
    `unresolved`: references whose value, or whose digest's key, is unknown here.
    """

    queries: Mapping[Address, tuple[str, ...]] = field(default_factory=dict)
    unresolved: tuple[str, ...] = ()

    def notice(self) -> Diagnostic | None:
        """Return MZ078 for the unresolved references; None if there are none."""
        if not self.unresolved:
            return None
        return Diagnostic.of(
            "MZ078.secrets-cannot", unresolved=first_names(self.unresolved, 5), variable=VARIABLE
        )


def find_rotations(directory: str, state: State, statuses: Mapping[str, Status]) -> Rotations:
    """Compare the secrets that queries use with their values here.

    A secret also counts as changed if its runner has already seen a new value. Only runners ask remote
    providers. Computes one slow digest for each secret that a query of the state uses.
    """
    secrets = Secrets(directory)
    committed = users_of_secrets(state)
    unresolved: set[str] = set()
    queries: dict[Address, set[str]] = {}
    for instance, status in statuses.items():
        changed = set()
        for reference, digest in status.secrets.items():
            users = committed.get(reference, ())
            if not any(state.resources[address].instance == instance for address in users):
                continue
            if reference in status.rotated:
                changed.add(reference)
                continue
            try:
                value = secrets.resolve(reference)
            except MzplanError:
                unresolved.add(reference)
                continue
            if not is_comparable(digest):
                unresolved.add(reference)
            if not is_same_secret(reference, value, digest):
                changed.add(reference)
        for reference, address in ((r, a) for r in changed for a in committed[r]):
            resource = state.resources[address]
            seen = status.observations.get(address)
            held = seen is not None and seen.held is not None  # it restarts when it is released
            if resource.instance == instance and not resource.paused and not held:
                queries.setdefault(address, set()).add(reference)
    return Rotations(
        queries={
            address: tuple(sorted(references, key=natural))
            for address, references in sorted(queries.items(), key=natural_item)
        },
        unresolved=tuple(sorted(unresolved)),
    )


def users_of_secrets(state: State) -> dict[str, set[Address]]:
    """Return the queries that use each secret reference, through connections at any depth.

    Includes only references in places where a reference may stand.
    """
    graph = DependencyGraph.of(state.resources)
    users: dict[str, set[Address]] = {}
    below = [
        (address, used)
        for address, resource in state.resources.items()
        if (used := resource_kind(address.kind, resource.type).secret_references(resource.body))
    ]
    while below:
        address, used = below.pop()
        if address.is_query:
            for reference in used:
                users.setdefault(reference, set()).add(address)  # excludes the sinks that read its collection
            continue
        below += [(user, used) for user in graph.dependents(address)]
    return users


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
    return Diagnostic.of(
        "MZ143.nothing-reached",
        address=connections[0].address,
        names=names[0] if len(names) == 1 else "the connections",
        lines="\n".join(lines),
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


def require_here(project: Project, state: State, resources: Iterable[ResourceState]) -> None:
    """Raise MzplanError MZ341 if the last runner stored the resources' data in another warehouse."""
    instances = {resource.instance for resource in resources}
    statuses = project.store.read_statuses()
    found = [f for name, f in warehouses_elsewhere(project, state, statuses) if name in instances]
    if found:
        raise MzplanError(found)
