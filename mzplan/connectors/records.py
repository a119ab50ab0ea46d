"""Records → columns, for every source whose records are JSON text.

One meaning for all of them: a record is malformed when it is no JSON object, when a value doesn't fit its
column, or when a NOT NULL column has none. A field that is missing is NULL; a field that no column names is
ignored. Names are compared with their case, as JSON's are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.columns import POSITION, Column
from mzplan.connectors.spark_types import ddl, longest, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

MALFORMED = "MZ066"
MARK = "mzplan"  # what a failure raised inside Spark begins with: `mzplan[MZ066]: …`
_BROKEN = "_broken"
_RECORD = "r"


def parse_json(
    records: DataFrame,
    columns: Sequence[Column],
    value: str,
    position: Expression,
    where: Expression,
    on_error: str,
) -> DataFrame:
    """The user's columns and `_position`, from a DataFrame with a text column named `value`.

    `where` says which record it is ("topic orders, partition 0, offset 12"), for the error that a malformed
    one raises (`on_error: fail`); with `skip` it is left out.
    """
    from pyspark.sql import functions as f

    # Inside an object of our own, so that anything after the record's end is broken JSON, too:
    # Spark's parser stops at the first closing brace and would lose what follows in silence.
    text = f.concat(f.lit(f'{{"{_RECORD}":'), f.col(value), f.lit("}"))
    parsed = f.from_json(
        text,
        f"{_RECORD} STRUCT<{ddl(columns)}>, {_BROKEN} STRING",
        {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _BROKEN, "allowSingleQuotes": "false"},
    )
    made = records.select(f.col(value).alias("v"), position.alias("p"), where.alias("w"), parsed.alias("j"))
    if on_error == "skip":
        # A generator, not a filter: Spark would push the filter down and parse each record twice.
        kept = f.when(_malformed(columns), f.array().cast(_array_of(made))).otherwise(
            f.array(f.col(f"j.{_RECORD}"))
        )
        inlined = made.select(f.col("p"), f.inline(kept))
        return inlined.select(*(f.col(quoted(c.name)) for c in columns), f.col("p").alias(POSITION))
    failure = f.raise_error(
        f.concat(f.lit(f"{MARK}[{MALFORMED}]: "), f.col("w"), f.lit(": "), _reason(columns))
    )
    checked = f.when(_malformed(columns), failure.cast(made.schema["j"].dataType)).otherwise(f.col("j"))
    rows = made.select(f.col("p"), checked.alias("c"))
    return rows.select(
        *(f.col(f"c.{_RECORD}.{quoted(c.name)}").alias(c.name) for c in columns), f.col("p").alias(POSITION)
    )


def _array_of(made: DataFrame) -> str:
    struct = made.schema["j"].dataType[_RECORD].dataType  # type: ignore[index]
    return f"array<{struct.simpleString()}>"


def _malformed(columns: Sequence[Column]) -> Expression:
    from pyspark.sql import functions as f

    found = f.col("v").isNull() | f.col(f"j.{_BROKEN}").isNotNull() | f.col(f"j.{_RECORD}").isNull()
    for column in columns:
        if not column.nullable:
            found = found | _value_of(column).isNull()
        if longest(column.type):
            found = found | _is_too_long(column)
    return found | ~f.is_valid_utf8(f.col("v"))


def _is_too_long(column: Column) -> Expression:
    from pyspark.sql import functions as f

    return f.coalesce(f.char_length(_value_of(column)) > (longest(column.type) or 0), f.lit(False))


def _reason(columns: Sequence[Column]) -> Expression:
    """Why a record is malformed. Names columns, never values: they may be nobody's business."""
    from pyspark.sql import functions as f

    nothing = f.lit(None).cast("string")
    wrong = [
        f.when(_given(c).isNotNull() & _value_of(c).isNull(), f.lit(f"{c.name} is not a {c.type}"))
        for c in columns
    ]
    missing = [
        f.when(_value_of(c).isNull() & _given(c).isNull(), f.lit(f"{c.name} is missing (NOT NULL)"))
        for c in columns
        if not c.nullable
    ]
    long = [
        f.when(_is_too_long(c), f.lit(f"{c.name} is longer than {c.type}"))
        for c in columns
        if longest(c.type)
    ]
    named = f.concat_ws(", ", nothing, *wrong, *missing, *long)
    return (
        f.when(f.col("v").isNull(), f.lit("the record has no value"))
        .when(f.length(f.trim(f.col("v"))) == 0, f.lit("the record is empty"))
        .when(~f.is_valid_utf8(f.col("v")), f.lit("the record is not UTF-8"))
        .when(f.get_json_object(f.col("v"), "$").isNull(), f.lit("the record is not JSON"))
        .when(f.col(f"j.{_RECORD}").isNull(), f.lit("the record is not one JSON object"))
        .when(f.length(named) > 0, named)
        .otherwise(f.lit("the record does not fit the columns"))
    )


def _value_of(column: Column) -> Expression:
    from pyspark.sql import functions as f

    return f.col(f"j.{_RECORD}.{quoted(column.name)}")


def _given(column: Column) -> Expression:
    from pyspark.sql import functions as f

    return f.get_json_object(f.col("v"), "$['" + column.name + "']")
