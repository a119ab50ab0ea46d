"""The runner's check of descriptions from the store and the warehouse, before it resolves their secrets.

A description must be valid by the schemas, and its secrets may go only to allowed servers. This module finds
the servers of each secret, and mzplan.secrets.policy decides whether they are allowed. `resolve`
(mzplan.connectors.api) runs the check.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mzplan.connectors.catalogue import find_connector
from mzplan.host.files import UnfitError
from mzplan.host.guarded_folder import GuardedFolder
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.state import State
from mzplan.schema.conformity import fault_of, fault_of_connection
from mzplan.schema.description import (
    Description,
    InlinedConnection,
    as_connection,
    describe,
    inline_connection,
)
from mzplan.schema.kinds import resource_kind
from mzplan.schema.user_functions import functions_of
from mzplan.secrets.files import read_open_secret, unusable_error
from mzplan.secrets.guards import CommittedGuard
from mzplan.secrets.policy import UNKNOWN, Flow, Guard, Policy, Route
from mzplan.secrets.providers import RemoteSecrets
from mzplan.secrets.references import Secrets, references_in
from mzplan.store.store import Store

log = logging.getLogger("mzplan.runner")


class GuardedSecrets(Secrets):
    """The secrets of a runner, or of a process that does its work."""

    def __init__(
        self,
        directory: str,
        guard: Guard,
        environment: Mapping[str, str] | None = None,
        remote: RemoteSecrets | None = None,
    ):
        super().__init__(directory, environment, remote)
        self._guard = guard

    def permit(self, of: object) -> None:
        """Check a query or connection before its secrets are resolved.

        Raises MzplanError MZ108 for a description that violates the schemas, and the guard's errors: for
        secrets that may not go to their servers, for servers that a proposal may not reach, for functions
        that may not run, and for jars that may not be loaded.
        """
        assert isinstance(of, Description | InlinedConnection), "nothing else has secrets"
        if isinstance(of, Description) and of.address.is_connection:  # a connection that no query uses
            of = as_connection(of)
        fault = fault_of(of) if isinstance(of, Description) else fault_of_connection(of)
        if fault:
            raise _invalid(of.address, fault)
        flows = flows_of(of) if isinstance(of, Description) else flows_of_connection(of)
        try:
            for function in (
                functions_of(of.address.kind, of.type, of.body) if isinstance(of, Description) else ()
            ):
                self._guard.run(str(of.address), str(function))
            links = of.connections.values() if isinstance(of, Description) else (of,)
            for link in links:
                for package in resource_kind("connection", link.type).listed_packages(link.body):
                    self._guard.load(str(of.address), package)
            self._guard.check(str(of.address), frozenset(flows), proposed=self.are_proposed)
            if self.are_proposed:
                self._guard.connect(str(of.address), frozenset(_all_routes(of)))
        except MzplanError as refused:
            raise MzplanError(replace(d, address=of.address) for d in refused.diagnostics) from None

    def _file(self, name: str) -> str | None:
        """Return a secret file's content. Under a policy, don't follow links in the project's folder, because
        a checkout may have brought them. An absolute path belongs to the machine and may go through links,
        as Kubernetes mounts do."""
        if not isinstance(self._guard, Policy) or Path(name).is_absolute():
            return super()._file(name)
        try:
            handle = GuardedFolder(self.directory).open(str(Path(name)))  # without `.` and `//`
        except UnfitError as problem:
            raise unusable_error(name, problem.what) from None
        except (OSError, ValueError):  # ValueError: a NUL in its name
            return None
        try:
            return read_open_secret(handle, name)
        except OSError:
            return None
        finally:
            os.close(handle)


def committed_guard(store: Store, state: State | None = None) -> CommittedGuard:
    """Return the guard that applies without a policy. `state` is the committed state, if it is already
    known."""
    guard = CommittedGuard(lambda: _flows_of_past(store))
    if state is not None:
        guard.set_committed(flows_of_state(state))
    return guard


def flows_of_state(state: State) -> frozenset[Flow]:
    """Return where a committed state sends secrets. Leaves out resources that violate the schemas."""
    flows: set[Flow] = set()
    for address, resource in state.resources.items():
        if address.is_connection:
            inlined = inline_connection(resource, state.resources)
            flows.update(() if fault_of_connection(inlined) else flows_of_connection(inlined))
        elif next(references_in(resource.body), None) is not None:
            description = describe(resource, state.resources)
            flows.update(() if fault_of(description) else flows_of(description))
    return frozenset(flows)


def _flows_of_past(store: Store) -> Iterator[frozenset[Flow]]:
    """Yield the flows of each committed state, newest first. Skips states that can't be read."""
    for serial in reversed(store.serials()):
        try:
            state = store.read_serial(serial)
        except MzplanError:
            continue
        if state is not None:
            yield flows_of_state(state)


def flows_of(description: Description) -> Iterator[Flow]:
    """Yield where the secrets of a valid query go. A connection's secrets go to its servers; the query's own
    go to the servers of all its connections."""
    connections = description.connections.values()
    routes = [route for connection in connections for route in _routes(connection)]
    yield from _flows_along(description.body, routes or [(_unknown(description.type, description.body),)])
    for inlined in connections:
        yield from flows_of_connection(inlined)


def flows_of_connection(inlined: InlinedConnection, user_routes: Sequence[Route] = ()) -> Iterator[Flow]:
    """Yield where the secrets of a connection and of the connections it uses go. `user_routes`: the routes on
    which the connection's user signs in with these secrets."""
    connector, routes = find_connector(inlined.type), _routes(inlined)
    all_routes = [*routes, *user_routes] if connector is not None and connector.lends_secrets else routes
    yield from _flows_along(inlined.body, all_routes or [()])
    if connector is not None and connector.machine and (reference := connector.machine(inlined.body)):
        yield from (Flow(reference, route) for route in all_routes)
    for inner in inlined.connections.values():
        yield from flows_of_connection(inner, routes)


def _all_routes(of: Description | InlinedConnection) -> Iterator[Route]:
    """Yield the routes to all servers that a query or connection connects to, with or without a secret."""
    if isinstance(of, InlinedConnection):
        yield from _routes(of)
    for inlined in of.connections.values():
        yield from _all_routes(inlined)


def _flows_along(body: Mapping[str, Any], routes: Sequence[Route]) -> Iterator[Flow]:
    return (Flow(reference, route) for reference in references_in(body) for route in routes)


def _routes(inlined: InlinedConnection) -> list[Route]:
    """Return the routes to a connection's servers, through the connections that carry it."""
    servers = _servers(inlined)
    carrier_routes: list[Route] = []
    for inner in inlined.connections.values():
        carrier = find_connector(inner.type)
        if carrier is not None and carrier.carries_traffic:
            carrier_routes += _routes(inner)
    return [(*route, server) for route in carrier_routes or [()] for server in servers]


def _servers(inlined: InlinedConnection) -> Sequence[str]:
    """Return the connection's own servers."""
    connector = find_connector(inlined.type)
    if connector is not None and connector.servers is not None:
        body = resource_kind("connection", inlined.type).with_defaults(inlined.body)
        try:
            return [str(server).lower() for server in connector.servers(body)]
        except Exception as problem:  # a plug-in may raise anything
            log.warning("the servers of %s are not known: %s", inlined.address, type(problem).__name__)
    return [_unknown(inlined.type, inlined.body)]


def _unknown(type_: str, body: Mapping[str, Any]) -> str:
    """Return a placeholder for the unknown servers of exactly this type and body."""
    text = json.dumps([type_, body], sort_keys=True)
    return UNKNOWN + hashlib.sha256(text.encode()).hexdigest()


def _invalid(address: Address, fault: str) -> MzplanError:
    return error("MZ108.invalid-description", address=address, fault=fault)
