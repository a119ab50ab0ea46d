"""Columns that a generation has got after it began: removing one again is as cheap as adding it.

The table of the collection keeps such a column, and new rows have NULL in it. A column with which the
generation began is part of its rows, and removing it begins a new generation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from mzplan.model.plan import Effect, FieldChange
from mzplan.model.state import ResourceState
from mzplan.plan.comparison import format_path
from mzplan.schema.columns import Column, parse_columns, spark_type
from mzplan.schema.kinds import resource_kind
from mzplan.schema.source_columns import record_columns

Columns = Mapping[str, Column]


def with_column_effects(
    fields: tuple[FieldChange, ...], before: ResourceState, after: ResourceState
) -> tuple[FieldChange, ...]:
    """Return the field changes with the effects of columns that the generation has got later."""
    if not before.later_columns or before.type != after.type:
        return fields
    later = _later(before)
    kind = resource_kind(after.address.kind, after.type)
    columns = {
        format_path((*path, column.name)): column
        for path in kind.column_paths
        for column in (*later.values(), *_declared(after).values())
    }
    return tuple(
        dataclasses.replace(field, effect=_effect(field, columns[field.path], later))
        if field.path in columns and columns[field.path].name.lower() in later
        else field
        for field in fields
    )


def _effect(field: FieldChange, column: Column, later: Columns) -> Effect:
    """Return the effect of removing or adding a column that the table of this generation has."""
    if field.after is None and field.effect == "replace":
        return "restart"
    fits = spark_type(later[column.name.lower()].type) == spark_type(column.type)
    return field.effect if fits or field.before is not None else "replace"


def with_later_columns(after: ResourceState, before: ResourceState) -> ResourceState:
    """Return the record of a generation that goes on, with the columns that it has got since it began."""
    if before is after or not after.address.writes_collection or before.type != after.type:
        return after
    former, later = _declared(before), _later(before)
    added = {name: column for name, column in _declared(after).items() if name not in former}
    columns = ", ".join(map(str, {**added, **later}.values()))
    return dataclasses.replace(after, later_columns=columns) if columns != after.later_columns else after


def _later(record: ResourceState) -> Columns:
    columns = parse_columns(record.later_columns) if record.later_columns else ()
    return {column.name.lower(): column for column in columns}


def _declared(record: ResourceState) -> Columns:
    return {column.name.lower(): column for column in record_columns(record.type, record.body)}
