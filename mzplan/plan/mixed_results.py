"""Stateful queries whose results mix rows of an upstream query from before and after a change of it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.observed import Observation, Status
from mzplan.model.plan import Change
from mzplan.model.state import ResourceState
from mzplan.plan.highlights import row_fields
from mzplan.plan.query_change import STATE
from mzplan.schema.kinds import resource_kind

Records = Mapping[Address, ResourceState]
_RESULTS = {"sum": "sums", "count": "counts", "avg": "averages", "min": "minima", "max": "maxima"}
_CALL = re.compile(rf"\b({'|'.join(_RESULTS)})\s*\(", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _Mixture:
    """A query whose collection has old and new rows.

    - `origin`: the changed query. `fields`: its changed properties.
    - `replaced_together`: the queries to replace, so that the collection has only new rows.
    """

    query: Address
    origin: Address
    fields: tuple[str, ...]
    replaced_together: tuple[Address, ...]


def check_mixed_results(
    changes: Sequence[Change], resources: Records, statuses: Mapping[str, Status]
) -> Iterator[Diagnostic]:
    """Yield MZ340, a warning, for each stateful query below a query that writes other rows from now on.

    Such a query keeps its state, because its own SQL is the same. `resources`: as they are after the plan.
    """
    edited = {change.address: fields for change in changes if change.after and (fields := row_fields(change))}
    if not edited:
        return
    readers = _readers(resources.values())
    replaced = {change.address for change in changes if change.action == "replace"}
    begun = {change.address for change in changes if change.action in ("create", "replace")}
    below: set[Address] = set()  # to replace one of these wouldn't be enough
    for address, fields in edited.items():
        if address in below:
            continue
        names = tuple(dict.fromkeys(field.path for field in fields))
        for mixture in _below(_Mixture(address, address, names, (address,)), readers, replaced):
            below.add(mixture.query)
            record = resources[mixture.query]
            if STATE in record.body:
                seen = record.observed_in(statuses) if mixture.query not in begun else None
                yield _mixed(record, mixture, seen, mixture.query in begun)


def _readers(resources: Iterable[ResourceState]) -> Mapping[Address, list[tuple[Address, bool]]]:
    """Return the readers of each collection, and whether they read it as a table (`snapshots`)."""
    readers: dict[Address, list[tuple[Address, bool]]] = defaultdict(list)
    for record in resources:
        for address in record.reads.values():
            readers[address].append((record.address, False))
        for address in record.snapshots.values():
            readers[address].append((record.address, True))
    return readers


def _below(
    origin: _Mixture, readers: Mapping[Address, list[tuple[Address, bool]]], replaced: set[Address]
) -> Iterator[_Mixture]:
    """Yield the queries below that read old and new rows, each once.

    A replaced query writes all rows again, so only readers that read its collection as a table mix: they
    keep the rows that they computed from the former table.
    """
    seen, level = {origin.query}, [origin]
    while level:
        mixture = level.pop(0)
        for reader, is_table in readers.get(mixture.query, ()):
            is_clean = mixture.query == origin.query and mixture.query in replaced
            is_clean = is_clean and (not is_table or reader in replaced)
            if reader in seen or is_clean:
                continue
            seen.add(reader)
            together = (*mixture.replaced_together, reader) if is_table else mixture.replaced_together
            found = _Mixture(reader, origin.origin, origin.fields, together)
            level.append(found)
            yield found


def _mixed(record: ResourceState, mixture: _Mixture, seen: Observation | None, begins: bool) -> Diagnostic:
    """`begins`: whether the query begins a new generation, and so reads the old rows again."""
    origin = mixture.origin
    since, state = (
        " from its next step on",
        f"{record.address} keeps the state that it has computed from them.",
    )
    if begins:
        since, state = "", f"{record.address} reads both from the start."
    elif seen is not None and seen.step >= 0:
        since = f" from step {seen.step + 1} on"
        state += f" Step {seen.step + 1} is its next one, as its runner last reported."
    replace = " ".join(f"--replace {address}" for address in mixture.replaced_together)
    return Diagnostic(
        severity="warning",
        code="MZ340",
        summary=f"{_results(record)} of {record.address} mix old and new rows of {origin}{since}",
        detail=f"The change of {' and '.join(mixture.fields)} in {origin} affects only new rows, and the old "
        f"rows don't change. {state}",
        hint=f"to compute all results from new rows: mzplan apply {replace} --allow-replace",
        address=record.address,
    )


def _results(record: ResourceState) -> str:
    """Return what the query computes, by its aggregate functions: `Sums and counts`."""
    property_ = resource_kind(record.address.kind, record.type).query_property
    calls = _CALL.findall(str(record.body.get(property_ or "", "")))
    return " and ".join(dict.fromkeys(_RESULTS[call.lower()] for call in calls)).capitalize() or "Results"
