"""The inputs of a query that begins: the collections that it reads from their first row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mzplan.model.address import Address, natural_item
from mzplan.model.observed import Status
from mzplan.model.plan import Change, InputExtent
from mzplan.model.state import ResourceState
from mzplan.schema.source_columns import keys_of

Records = Mapping[Address, ResourceState]


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
        extent = _extent(record, statuses)
        if extent is not None:
            yield replace(extent, address=address, is_table=role in reader.snapshots)


def _extent(record: ResourceState, statuses: Mapping[str, Status]) -> InputExtent | None:
    """Return the extent of a collection; None if this generation has no reported step."""
    seen = record.observed_in(statuses)
    if seen is None or seen.generation != record.generation or not seen.last_steps:
        return None
    since, since_time = seen.since or (None, None)
    return InputExtent(
        address=record.address,
        last_step=seen.last_steps[0][0],
        rows=seen.total_rows,
        is_keyed=bool(keys_of(record.type, record.body)),
        since=since,
        since_time=since_time,
    )
