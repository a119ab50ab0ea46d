"""Writes the first step of a sink's new generation: only the difference to the rows of its table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.difference import difference
from mzplan.connectors.frames.merges import merge
from mzplan.connectors.frames.types import FieldsDifferError, cast_by_name, quoted
from mzplan.model.address import Address
from mzplan.schema.columns import CHANGE, DELETE, OWN

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

_SIDE = f"{OWN}side"


def replace_rows(
    latest: DataFrame, step: int, path: str, keys: Sequence[str], address: Address
) -> int | None:
    """Make these rows all that a Delta table has, in one commit that names the step.

    `latest`: one row per key, with `_change` if the collection is keyed. Deleted rows are left out. Returns
    the number of changed rows, or None if Delta doesn't say.
    """
    session = latest.sparkSession
    existing = latest.where(f.col(CHANGE) != DELETE).drop(CHANGE) if CHANGE in latest.columns else latest
    wanted, found = alike(existing, session.read.format("delta").load(path))
    changes = difference(wanted, found, wanted.columns, keys, address)
    try:
        # Another writer may have added a key twice.
        rows = changes.rows.dropDuplicates(list(keys)).drop(_SIDE)
        return merge(rows, step, f"delta.{quoted(path)}", keys)
    finally:
        changes.close()


def alike(wanted: DataFrame, found: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return both with the wanted columns, in the types of the table.

    If a STRUCT has other fields in the table, its values can't be compared. All rows then differ in an own
    column.
    """
    stored = {field.name.lower(): field for field in found.schema.fields}
    new, old, comparable = [], [], True
    for field in wanted.schema.fields:
        value, type_ = f.col(quoted(field.name)), field.dataType
        before: Expression = f.lit(None)
        if (column := stored.get(field.name.lower())) is not None:
            try:
                value = cast_by_name(value, type_, column.dataType)
                before, type_ = f.col(quoted(column.name)), column.dataType
            except FieldsDifferError:
                comparable = False
        new.append(value.alias(field.name))
        old.append(before.cast(type_).alias(field.name))
    if comparable:
        return wanted.select(*new), found.select(*old)
    sides = (f.lit(name).alias(_SIDE) for name in ("new", "old"))
    return wanted.select(*new, next(sides)), found.select(*old, next(sides))
