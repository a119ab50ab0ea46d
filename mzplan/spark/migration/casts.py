"""Casts rows of a collection to the columns of its next generation, without changing any value.

The plan has compared the declared columns. This module inspects the table, which has the real columns. Only
its rows show whether each of them has a value for a new key.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import ddl_of, quoted
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, ExitCode
from mzplan.schema.columns import POSITION, Column, canonical_type, spark_type
from mzplan.schema.migration import is_exact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructField


def cast_rows(rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Return the rows with these columns, matched by name in any case, and `_position`.

    A column missing in the rows becomes NULL: it was added after the generation was planned. Other columns
    are dropped.
    """
    fields = _fields(rows)
    casts = []
    for column in columns:
        field = fields.get(column.name.lower())
        value = f"CAST({quoted(field.name) if field is not None else 'NULL'} AS {spark_type(column.type)})"
        casts.append(f.expr(value).alias(column.name))
    return rows.select(*casts, f.col(POSITION))


def find_uncastable(
    rows: DataFrame, address: Address, columns: Sequence[Column], keys: Sequence[str]
) -> Diagnostic | None:
    """Return MZ294 for the first column or row that can't be migrated unchanged; None if all can.

    `keys`: columns in which each row must have a value. Raises Spark's errors.
    """
    fields = _fields(rows)
    for column in columns:
        field, after = fields.get(column.name.lower()), spark_type(column.type)
        if field is None:
            continue
        before = canonical_type(ddl_of(field.dataType))
        if before is None or not is_exact(spark_type(before), after):
            held = before or field.dataType.simpleString()
            return _diagnostic(address, f"Column {column.name} has values of type {held}, not {column.type}")
    if not keys:
        return None
    key_values = [quoted(fields[key.lower()].name) if key.lower() in fields else "NULL" for key in keys]
    is_null = reduce(lambda one, other: one | other, (f.expr(f"{value} IS NULL") for value in key_values))
    failing = rows.where(is_null).select(POSITION).orderBy(POSITION).limit(1).collect()
    if not failing:
        return None
    position = failing[0][POSITION].asDict() if failing[0][POSITION] is not None else {}
    place = ", ".join(f"{name} {value}" for name, value in position.items()) or "an unknown place"
    return _diagnostic(address, f"The row at {place} has no value for the key ({', '.join(keys)})")


def _diagnostic(address: Address, why: str) -> Diagnostic:
    return Diagnostic(
        code="MZ294",
        kind="not-migratable",
        summary=f"{address} can't begin with the rows of its collection",
        detail=f"{why}. The former generation keeps running.",
        hint="put the columns and the key back; or read everything again: lifecycle: {replace: in-place}.",
        address=address,
        exit_code=ExitCode.REFUSED,
    )


def _fields(rows: DataFrame) -> dict[str, StructField]:
    return {field.name.lower(): field for field in rows.schema.fields}
