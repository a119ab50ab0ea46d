"""What a runner takes from the store and the warehouse, before it resolves any secret of it: is it right by
the schemas, and may its secrets go where they would?

The rules are in mzplan.secrets.policy; here is to what they are applied. `resolve` (mzplan.connectors.api)
asks, by way of the secrets that a runner has.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from mzplan.connectors.catalogue import find_connector
from mzplan.host.files import UnfitError
from mzplan.host.guarded import GuardedFolder
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
from mzplan.secrets.files import secret_in, unusable
from mzplan.secrets.policy import UNKNOWN, Committed, Flow, Guard, Policy, Route
from mzplan.secrets.references import Secrets, references_in
from mzplan.secrets.remote import RemoteSecrets
from mzplan.store.store import Store

log = logging.getLogger("mzplan.runner")


class GuardedSecrets(Secrets):
    """Those of a runner, or of whoever does its work."""

    def __init__(
        self,
        directory: str,
        guard: Guard,
        environment: Mapping[str, str] | None = None,
        remote: RemoteSecrets | None = None,
    ):
        super().__init__(directory, environment, remote)
        self._guard = guard
        self._are_proposed = False

    def proposed(self, values: Mapping[str, str] | None = None) -> Self:
        other = super().proposed(values)
        other._are_proposed = True
        return other

    def permit(self, of: object) -> None:
        """Raises MzplanError MZ108 for anything that the schemas forbid; and what its guard does: for secrets
        that may not go where they would, and for servers that what is proposed may not reach."""
        assert isinstance(of, Description | InlinedConnection), "nothing else has secrets"
        if isinstance(of, Description) and of.address.kind == "connection":  # one that nothing uses
            of = as_connection(of)
        fault = fault_of(of) if isinstance(of, Description) else fault_of_connection(of)
        if fault:
            raise _unfit(of.address, fault)
        flows = flows_of(of) if isinstance(of, Description) else flows_of_connection(of)
        try:
            self._guard.check(str(of.address), frozenset(flows), proposed=self._are_proposed)
            if self._are_proposed:
                self._guard.connect(str(of.address), frozenset(_reached(of)))
        except MzplanError as refused:
            raise MzplanError(replace(d, address=of.address) for d in refused.diagnostics) from None

    def _file(self, name: str) -> str | None:
        """Under a policy, a file of the project is the one that its path says: its links may have come with a
        checkout. An absolute path is the machine's, and may lead through links, as Kubernetes mounts them."""
        if not isinstance(self._guard, Policy) or Path(name).is_absolute():
            return super()._file(name)
        try:
            handle = GuardedFolder(self.directory).open(str(Path(name)))  # without `.` and `//`
        except UnfitError as problem:
            raise unusable(name, problem.what) from None
        except (OSError, ValueError):  # ValueError: a NUL in its name
            return None
        try:
            return secret_in(handle, name)
        except OSError:
            return None
        finally:
            os.close(handle)


def committed_guard(store: Store, state: State | None = None) -> Committed:
    """What guards without a policy. `state`: what is committed now, where it is known already."""
    guard = Committed(lambda: _flows_of_past(store))
    if state is not None:
        guard.take_in(flows_of_state(state))
    return guard


def flows_of_state(state: State) -> frozenset[Flow]:
    """Where a committed state sends secrets; what of it is not right by the schemas sends none."""
    flows: set[Flow] = set()
    for address, resource in state.resources.items():
        if address.kind == "connection":
            inlined = inline_connection(resource, state.resources)
            flows.update(() if fault_of_connection(inlined) else flows_of_connection(inlined))
        elif next(references_in(resource.body), None) is not None:
            description = describe(resource, state.resources)
            flows.update(() if fault_of(description) else flows_of(description))
    return frozenset(flows)


def _flows_of_past(store: Store) -> Iterator[frozenset[Flow]]:
    """Read the states that were committed before, the newest first. One that can't be read sends
    none."""
    for serial in reversed(store.serials()):
        try:
            state = store.read_serial(serial)
        except MzplanError:
            continue
        if state is not None:
            yield flows_of_state(state)


def flows_of(description: Description) -> Iterator[Flow]:
    """Where the secrets of a query go, which is right by the schemas: those of a connection to its servers,
    its own to those of all its connections."""
    linked = description.connections.values()
    own = [route for connection in linked for route in _routes(connection)]
    yield from _flows(description.body, own or [(_unknown(description.type, description.body),)])
    for inlined in linked:
        yield from flows_of_connection(inlined)


def flows_of_connection(inlined: InlinedConnection, lent_to: Sequence[Route] = ()) -> Iterator[Flow]:
    """See above, for a connection and the connections that it uses. `lent_to`: where what uses it signs in
    with it."""
    connector, own = find_connector(inlined.type), _routes(inlined)
    ways = [*own, *lent_to] if connector is not None and connector.lends else own
    yield from _flows(inlined.body, ways or [()])
    if connector is not None and connector.machine and (reference := connector.machine(inlined.body)):
        yield from (Flow(reference, way) for way in ways)
    for below in inlined.connections.values():
        yield from flows_of_connection(below, own)


def _reached(of: Description | InlinedConnection) -> Iterator[Route]:
    """The ways to all servers that it connects to, with a secret or without."""
    if isinstance(of, InlinedConnection):
        yield from _routes(of)
        linked: Iterable[InlinedConnection] = of.connections.values()
    else:
        linked = of.connections.values()
    for inlined in linked:
        yield from _reached(inlined)


def _flows(body: Mapping[str, Any], ways: Sequence[Route]) -> Iterator[Flow]:
    return (Flow(reference, way) for reference in references_in(body) for way in ways)


def _routes(inlined: InlinedConnection) -> list[Route]:
    """The ways to the servers of a connection, through those that carry it."""
    ends = _servers(inlined)
    through: list[Route] = []
    for below in inlined.connections.values():
        carrier = find_connector(below.type)
        if carrier is not None and carrier.carries:
            through += _routes(below)
    return [(*way, end) for way in through or [()] for end in ends]


def _servers(inlined: InlinedConnection) -> Sequence[str]:
    """Those of a connection itself."""
    connector = find_connector(inlined.type)
    if connector is not None and connector.servers is not None:
        body = resource_kind("connection", inlined.type).with_defaults(inlined.body)
        try:
            return [str(server).lower() for server in connector.servers(body)]
        except Exception as problem:  # another package's
            log.warning("the servers of %s are not known: %s", inlined.address, type(problem).__name__)
    return [_unknown(inlined.type, inlined.body)]


def _unknown(type_: str, body: Mapping[str, Any]) -> str:
    """Stands for the servers of exactly this, where they can't be known."""
    text = json.dumps([type_, body], sort_keys=True)
    return UNKNOWN + hashlib.sha256(text.encode()).hexdigest()


def _unfit(address: Address, fault: str) -> MzplanError:
    return error(
        "MZ108",
        f"{address} has an invalid description",
        f"{fault}. It comes from the store or the warehouse, and mzplan commits no such thing.",
        "if a newer mzplan wrote it, upgrade this one; else find out who did, and run mzplan apply.",
        address=address,
    )
