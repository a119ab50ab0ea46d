"""Columns of sinks that go away or get another type, because a column upstream does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mzplan.connectors.api.outputs import columns_selected
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.graph import DependencyGraph
from mzplan.model.plan import Change
from mzplan.model.state import ResourceState
from mzplan.schema.columns import Column, spark_type
from mzplan.schema.lineage import reach_of_column
from mzplan.schema.source_columns import columns_of
from mzplan.schema.sql.type_rules import wider
from mzplan.schema.user_functions import returned_types

Records = Mapping[Address, ResourceState]
_INEXACT = ("DOUBLE", "FLOAT", "STRING")
_OWN = ("from", "select")  # a change of these is a change of the sink's columns by hand
Changed = dict[str, str]
"""How columns change, by name: `was INT, becomes STRING`, or `goes away`."""


def check_broken_columns(changes: Sequence[Change], before: Records, after: Records) -> Iterator[Diagnostic]:
    """Yield MZ306, a warning, for each sink and each column upstream whose change breaks its columns."""
    broken = {change.address: found for change in changes if (found := _of_sink(change, before, after))}
    if not broken:
        return
    changed = {change.address: found for change in changes if (found := _of_collection(change))}
    causes = {(address, name) for address, columns in changed.items() for name in columns}
    graph = DependencyGraph.of(before)
    reached = {cause: reach_of_column(cause[0], [cause[1]], before, graph) for cause in causes}
    for cause in sorted(causes):
        below = {
            (a, c) for other in causes - {cause} for a, one in reached[other].items() for c in one.columns
        }
        if cause in below:  # another column is the first cause
            continue
        for sink in broken.keys() & reached[cause].keys():
            names = [name for name in reached[cause][sink].columns if name in broken[sink]]
            if names:
                yield Diagnostic.of(
                    "MZ306.breaks-columns",
                    address=sink,
                    column=f"{cause[0]}.{cause[1]}",
                    how=changed[cause[0]][cause[1]],
                    columns=[f"column `{name}`" for name in names],
                    effects=[f"{name} {broken[sink][name]}" for name in names],
                )


def _of_sink(change: Change, before: Records, after: Records) -> Changed:
    """Return the columns of a sink that another query's change removes or retypes."""
    if change.before is None or change.after is None or not change.address.writes_target:
        return {}
    if any(field.property_name in _OWN for field in change.fields):
        return {}
    return _changed(_outputs(change.before, before), _outputs(change.after, after))


def _outputs(sink: ResourceState, records: Records) -> list[Column]:
    (read,) = (records[address] for address in sink.reads.values())
    columns = columns_of(read.type, read.body)
    items = sink.body.get("select") or ["*"]
    returned = returned_types(sink.body)
    selected = (column for item in items for column in columns_selected(item, columns, returned))
    return [Column(column.name, column.type or "") for column in selected]


def _of_collection(change: Change) -> Changed:
    """Return the columns of a collection that the plan removes or retypes."""
    if change.before is None or change.after is None or not change.address.writes_collection:
        return {}
    both = (columns_of(record.type, record.body) for record in (change.before, change.after))
    return _changed(*both)


def _changed(before: Sequence[Column], after: Sequence[Column]) -> Changed:
    types = {column.name.lower(): column.type for column in after}
    found: Changed = {}
    for column in before:
        now = types.get(column.name.lower())
        if now is None:
            found[column.name] = "goes away"
        elif now and column.type and not _holds(spark_type(now), spark_type(column.type)):
            found[column.name] = f"was {column.type} and becomes {now}"
    return found


def _holds(now: str, before: str) -> bool:
    """Return whether a type is equal to another one, or a wider number that has all of its values."""
    return now == before or (wider(before, now) == now and now not in _INEXACT)
