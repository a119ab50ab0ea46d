"""Defaults that came later than what is committed (`x-assumed`).

A resource that is declared without such a value gets it, and it is recorded: what is committed says what it
means. One that was committed before goes on with what it has until its files say which of the two it is to
be: a default alone restarts nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.edits import PropertyEdit, edited
from mzplan.model.resources import Resource
from mzplan.model.state import ResourceState
from mzplan.plan.moves import earlier_address
from mzplan.schema.kinds import resource_kind

Committed = Mapping[Address, ResourceState]
Path = tuple[str, ...]


def settled(resource: Resource, before: ResourceState | None) -> Resource:
    """The resource without the assumed values that its committed record has gone without."""
    without = _gone_without(resource, before)
    if not without:
        return resource
    body = edited(resource.body, [PropertyEdit(path=path, remove=True) for path in without])
    return dataclasses.replace(resource, body=body)


def all_settled(wanted: Mapping[Address, Resource], committed: Committed) -> Mapping[Address, Resource]:
    """All of a configuration, settled with what is committed."""
    found = {a: settled(r, _before(r, committed)) for a, r in wanted.items() if r.assumed}
    return {**wanted, **found} if found else wanted


def check_assumed(wanted: Mapping[Address, Resource], committed: Committed) -> Iterator[Diagnostic]:
    """MZ116 for each resource that goes on without values that it would be given today."""
    for address, resource in wanted.items():
        if not resource.assumed:
            continue
        without = _gone_without(resource, _before(resource, committed))
        if not without:
            continue
        kind = resource_kind(address.kind, resource.type)
        schemas = {path: kind.property_schema(path) for path in without}
        today = {path: schema["x-assumed"]["value"] for path, schema in schemas.items()}
        yield Diagnostic(
            severity="warning",
            code="MZ116",
            summary=f"{address} goes on with defaults of an earlier mzplan",
            detail=" ".join(_gives_up(path, schema) for path, schema in schemas.items())
            + " Nothing changes until its file says which.",
            hint=f"write {_written(today)}, and what uses it restarts from its checkpoint; or, to go on so, "
            f"{_written({path: schema['default'] for path, schema in schemas.items()})}.",
            address=address,
        )


def _gives_up(path: Path, schema: Mapping[str, Any]) -> str:
    rule = schema["x-assumed"]
    return f"{'.'.join(path)} is {schema['default']}: {rule['gives-up']}; a new one gets {rule['value']}."


def _gone_without(resource: Resource, before: ResourceState | None) -> list[Path]:
    if not resource.assumed or before is None or before.type != resource.type:
        return []
    lacking = resource_kind(resource.address.kind, before.type).assumed(before.body)
    return [path for path in resource.assumed if path in lacking]


def _before(resource: Resource, committed: Committed) -> ResourceState | None:
    earlier = earlier_address(resource)
    there = committed.get(resource.address)
    return there if there is not None or earlier is None else committed.get(earlier)


def _written(values: Mapping[Path, Any]) -> str:
    """As YAML: `tls: {mode: prefer}, cleartext_login: allow`."""
    words = []
    for path, value in values.items():
        text = str(value)
        for key in reversed(path[1:]):
            text = f"{{{key}: {text}}}"
        words.append(f"{path[0]}: {text}")
    return ", ".join(words)
