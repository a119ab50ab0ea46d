"""A plan's warnings: about results that mix rows from before and after a change, about joins without a time
limit, and about a sink that gets another sink's target. Also the inputs of a query that begins.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mzplan.model.address import Address, natural, natural_item
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.observed import Observation, Status
from mzplan.model.plan import Change, InputExtent
from mzplan.model.state import ResourceState
from mzplan.plan.effects.changed_columns import changed_columns
from mzplan.plan.effects.function_change import STATE
from mzplan.plan.effects.query_change import extent_of
from mzplan.plan.highlights import row_fields
from mzplan.schema.kinds import resource_kind
from mzplan.schema.lineage import reach_of_column
from mzplan.schema.object_names import identity
from mzplan.schema.relations.analysis import analyse, output_of
from mzplan.schema.relations.nodes import QueryError
from mzplan.schema.relations.parse import is_relational, parse_query
from mzplan.schema.relations.rules import watermarks_for
from mzplan.schema.relations.tree import Analysis, Input

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
    edited = {c.address: (c, fields) for c in changes if c.after and (fields := row_fields(c))}
    if not edited:
        return
    readers = _readers(resources.values())
    replaced = {change.address for change in changes if change.action == "replace"}
    begun = {change.address for change in changes if change.action in ("create", "replace")}
    below: set[Address] = set()  # to replace one of these wouldn't be enough
    for address, (change, fields) in edited.items():
        if address in below:
            continue
        names = tuple(dict.fromkeys(field.path for field in fields))
        columns = changed_columns(change, fields)
        reached = reach_of_column(address, columns, resources) if columns is not None else None
        for mixture in _below(_Mixture(address, address, names, (address,)), readers, replaced):
            if reached is not None and mixture.query not in reached:
                continue
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
    return Diagnostic.of(
        "MZ340.mix-old",
        address=record.address,
        results=_results(record),
        origin=origin,
        since=since,
        fields=mixture.fields,
        state=state,
        replace=replace,
    )


def _results(record: ResourceState) -> str:
    """Return what the query computes, by its aggregate functions: `Sums and counts`."""
    property_ = resource_kind(record.address.kind, record.type).query_property
    calls = _CALL.findall(str(record.body.get(property_ or "", "")))
    return " and ".join(dict.fromkeys(_RESULTS[call.lower()] for call in calls)).capitalize() or "Results"


def with_inputs(
    changes: Sequence[Change], committed: Records, statuses: Mapping[str, Status]
) -> list[Change]:
    """Return the changes, with the inputs of each query that begins, if runners have reported them.

    An input that begins in the same plan is left out, because it is still empty. `committed`: the records by
    their new names.
    """
    changed = {change.address: change for change in changes}
    return [
        replace(change, inputs=tuple(_inputs(change.after, changed, committed, statuses)))
        if change.after is not None and _begins(change)
        else change
        for change in changes
    ]


def _begins(change: Change) -> bool:
    return change.action in ("create", "replace") and not change.migrates_rows


def _inputs(
    reader: ResourceState,
    changed: Mapping[Address, Change],
    committed: Records,
    statuses: Mapping[str, Status],
) -> Iterator[InputExtent]:
    for role, address in sorted({**reader.reads, **reader.snapshots}.items(), key=natural_item):
        record, change = committed.get(address), changed.get(address)
        if record is None or (change is not None and change.action == "replace"):
            continue
        if change is not None and change.before is not None:
            record = change.before  # under its old name, as its runner knows it
        extent = extent_of(record, statuses)
        if extent is not None:
            yield replace(extent, address=address, is_table=role in reader.snapshots)


_DECIDING = frozenset(["query", "watermarks"])


def check_joins(
    changes: Iterable[Change], resources: Mapping[Address, ResourceState]
) -> Iterator[Diagnostic]:
    """Yield MZ045, a warning, for each new or changed view that joins streams without watermarks.

    `resources`: the records after the plan.
    """
    for change in changes:
        view = change.after
        if view is None or change.action == "delete" or not is_relational(view.body):
            continue
        is_new = change.action in ("create", "replace")
        if not is_new and not any(field.property_name in _DECIDING for field in change.fields):
            continue
        try:
            analysis = analysis_of(view, resources)
        except QueryError:  # the checks of the files have reported it
            continue
        joins = [operator for operator in analysis.operators if operator.kind == "join"]
        unlimited = [join for join in joins if not join.timed]
        if unlimited:
            streams = " and ".join(name for name, read in analysis.inputs.items() if read.stream)
            limit = f", and limit the time: ON … AND {unlimited[0].missing}" if unlimited[0].missing else ""
            yield Diagnostic.of(
                "MZ045.state-grows",
                address=view.address,
                streams=streams,
                watermarks_for=watermarks_for(analysis),
                limit=limit,
            )


def analysis_of(view: ResourceState, resources: Mapping[Address, ResourceState]) -> Analysis:
    """Return the analysis of a view's query. Raises QueryError."""
    marks, tables, output = view.body.get("watermarks", {}), view.snapshots.values(), output_of(view.body)
    inputs = {
        address.name: Input.of(
            resources[address].type,
            resources[address].body,
            str(address),
            stream=output.streams and address not in tables,
            event_time=marks.get(address.name, {}).get("column", ""),
        )
        for address in (*view.reads.values(), *tables)
    }
    return analyse(
        parse_query(view.body["query"], over_tables=not output.streams),
        inputs,
        view.body,
        output.naming_passes,
    )


Resources = Mapping[Address, ResourceState]
Target = tuple[object, ...]


def check_shared_targets(changes: Iterable[Change], resources: Resources) -> Iterator[Diagnostic]:
    """Yield MZ311, a warning, for each sink that gets the target of another sink (`x-target`).

    `resources` are as they are after the plan.
    """
    gained = [c for c in changes if c.after is not None and _gains_target(c, c.after)]
    if not gained:
        return
    sinks: dict[Target, list[Address]] = {}
    for address, resource in resources.items():
        if (target := _target_of(resource, resources)) is not None:
            sinks.setdefault(target, []).append(address)
    for change in gained:
        target = _target_of(change.after, resources) if change.after is not None else None
        others = sorted({*sinks.get(target or (), ())} - {change.address}, key=natural)
        if others:
            yield _shared(change.address, others[0])


def _gains_target(change: Change, after: ResourceState) -> bool:
    """Return whether a sink is new, or has another target or connection."""
    properties = resource_kind(change.address.kind, after.type).schema["properties"]
    changed = (properties.get(leaf.property_name, {}) for leaf in change.fields)
    return change.before is None or any("x-target" in one or "x-reference" in one for one in changed)


def _target_of(resource: ResourceState, resources: Resources) -> Target | None:
    """Return what identifies a sink's target, or None if its schema doesn't say."""
    link = resources.get(resource.references["connection"]) if "connection" in resource.references else None
    if not resource.address.writes_target or link is None:
        return None
    for name, schema in resource_kind("sink", resource.type).schema["properties"].items():
        if "x-target" in schema and name in resource.body:
            connection = resource_kind("connection", link.type).with_defaults(link.body)
            server = (str(connection.get(property_)) for property_ in schema["x-target"])
            return (link.type, *server, *identity(schema.get("format", ""), resource.body[name]))
    return None


def _shared(address: Address, other: Address) -> Diagnostic:
    return Diagnostic.of("MZ311.writes-target", address=address, other=other)
