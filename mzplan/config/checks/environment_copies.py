"""Sources that read another environment's collection: what follows from that environment's state or files.

The columns, the key and the collection become part of the body. So plans show a change there, states hold
it, and runners read exactly the collection that was planned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from mzplan.config.documents import Declaration
from mzplan.config.findings import Findings
from mzplan.model.address import COLLECTIONS, Address
from mzplan.model.diagnostics import MzplanError
from mzplan.model.state import ResourceState, State
from mzplan.schema.kinds import resource_kind
from mzplan.schema.source_columns import columns_of, keys_of


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEnvironment:
    """Another environment.

    - `is_declared`: its state isn't the committed one, but follows from the files.
    - `mistaken`: the resources of these files that have mistakes; None if any may be missing.
    """

    state: State
    is_declared: bool = False
    mistaken: frozenset[Address] | None = frozenset()


ReadEnvironment = Callable[[str], OtherEnvironment]
"""Returns another environment. Raises MzplanError."""
SOURCE = "source"
_DERIVED = ("schema", "key", "collection")  # they follow from the state


class EnvironmentCopies:
    """The copies of a project. Each environment is read once.

    - `chosen`: the environment that a command works on. `names`: all environments.
    - `left_out`: the copies of the chosen environment itself, which aren't part of it.
    """

    def __init__(self, chosen: str, names: tuple[str, ...], read: ReadEnvironment, findings: Findings):
        self._chosen, self._names, self._read, self._findings = chosen, names, read, findings
        self._others: dict[str, OtherEnvironment | MzplanError] = {}
        self.left_out: set[Address] = set()

    def fill_in(self, declared: dict[Address, Declaration]) -> None:
        """Set the properties of each copy that follow from the other environment's state.

        A copy whose collection can't be known isn't checked further. A copy of the chosen environment goes.
        """
        for address, resource in list(declared.items()):
            if resource.type is None:
                continue
            property_ = resource_kind(address.kind, resource.type).environment_property
            if property_ is None:
                continue
            if self._chosen and resource.body.get(property_) == self._chosen:
                self.left_out.add(address)
                del declared[address]
            elif not self._fill_in(resource, property_):
                resource.type = None

    def _fill_in(self, resource: Declaration, property_: str) -> bool:
        for name in _DERIVED:
            if name in resource.body:
                self._findings.add(
                    "MZ390.sets", resource.location((name,), at_key=True), label=resource.label, name=name
                )
        resource.body = {key: value for key, value in resource.body.items() if key not in _DERIVED}
        if SOURCE not in resource.body:
            resource.body = {**resource.body, SOURCE: resource.address.name}
            resource.derived[SOURCE] = ((property_,), 0)
        environment, name = resource.body.get(property_), resource.body[SOURCE]
        if not isinstance(environment, str) or not isinstance(name, str):
            return True  # reported by the schema
        other = self._other(resource, property_, environment)
        record = self._record(resource, environment, name, other) if other is not None else None
        if other is None or record is None:
            return False
        warehouse = other.state.warehouse
        given: dict[str, Any] = {
            "schema": ", ".join(map(str, columns_of(record.type, record.body))),
            "collection": {"warehouse": warehouse, "id": record.id, "generation": record.generation},
        }
        if keys := keys_of(record.type, record.body):
            given["key"] = list(keys)
        resource.body |= given
        resource.derived |= dict.fromkeys(given, ((property_,), 0))
        return True

    def _other(self, resource: Declaration, property_: str, environment: str) -> OtherEnvironment | None:
        """Return an environment; None if it can't be read, which is reported."""
        location = resource.location((property_,))
        if environment not in self._names:
            others = [name for name in self._names if name != self._chosen]
            self._findings.add(
                "MZ390.unknown",
                location,
                name=environment,
                label=resource.label,
                others=others,
                near=self._findings.did_you_mean(environment, others),
            )
            return None
        if environment not in self._others:
            try:
                self._others[environment] = self._read(environment)
            except MzplanError as problem:
                self._others[environment] = problem
        other = self._others[environment]
        if not isinstance(other, MzplanError):
            return other
        for diagnostic in other.diagnostics:
            summary = f"{diagnostic.summary} (environment {environment})"
            self._findings.report(replace(diagnostic, summary=summary, address=resource.address), location)
        return None

    def _record(
        self, resource: Declaration, environment: str, name: str, other: OtherEnvironment
    ) -> ResourceState | None:
        """Return the query that writes the collection; None if there is none, which is reported.

        A mistake in the files is reported for its own environment.
        """
        state, addresses = other.state, [Address(kind, name) for kind in COLLECTIONS]
        record = next(filter(None, map(state.resources.get, addresses)), None)
        if record is None and other.mistaken is not None and not other.mistaken.intersection(addresses):
            names = sorted(address.name for address in state.resources if address.writes_collection)
            near = self._findings.did_you_mean(name, names)
            self._findings.add(
                "MZ390.not-declared" if other.is_declared else "MZ390.no-collection",
                resource.location((SOURCE,)),
                environment=environment,
                name=name,
                label=resource.label,
                serial=state.serial,
                near=near,
            )
        return record
