"""Records → columns, for every source: what it has read, checked, or a failure that names the record.

One meaning for all formats: a record is malformed when it is not of its format, when a value doesn't fit its
column, or when a NOT NULL column has none. What each format makes of a record is in formats.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mzplan.columns import POSITION, Column
from mzplan.connectors.formats import Parsed, parsed_by
from mzplan.connectors.spark_types import longest, quoted

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

MALFORMED = "MZ066"
MARK = "mzplan"  # what a failure raised inside Spark begins with: `mzplan[MZ066]: …`


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """What a source reads. `value` is the column of their bytes or text; `where` says which record it is
    ("topic orders, partition 0, offset 12"); `included` are columns that come beside the value."""

    rows: DataFrame
    value: str
    position: Expression
    where: Expression
    included: tuple[tuple[Column, Expression], ...] = ()


def parse_records(
    records: Records, format_: Mapping[str, Any], columns: Sequence[Column], on_error: str
) -> DataFrame:
    """The columns of the record, the included ones, and `_position`. A malformed record raises an error that
    names it (`on_error: fail`), or is left out (`skip`)."""
    return checked(records, parsed_by(format_, columns, records.value), columns, on_error)


def parse_json(
    rows: DataFrame,
    columns: Sequence[Column],
    value: str,
    position: Expression,
    where: Expression,
    on_error: str,
) -> DataFrame:
    """`parse_records` for JSON, with nothing included."""
    records = Records(rows=rows, value=value, position=position, where=where)
    return parse_records(records, {"type": "json"}, columns, on_error)


def checked(records: Records, parsed: Parsed, columns: Sequence[Column], on_error: str) -> DataFrame:
    """The columns, from what a format has made of the records."""
    from pyspark.sql import functions as f

    included = [expression.alias(f"x{i}") for i, (_, expression) in enumerate(records.included)]
    made = records.rows.select(
        parsed.text.alias("v"),
        records.position.alias("p"),
        records.where.alias("w"),
        *included,
        parsed.record.alias("j"),
    )
    beside = [
        f.col(f"x{i}").alias(column.name).cast(column.type) for i, (column, _) in enumerate(records.included)
    ]
    malformed = _malformed(parsed, columns, records.included)
    if on_error == "skip":
        # A generator, not a filter: Spark would push the filter down and parse each record twice.
        kept = f.when(malformed, f.array().cast(_array_of(made, parsed))).otherwise(
            f.array(f.col(_within("j", parsed)))
        )
        rows = made.select("p", *[f"x{i}" for i in range(len(included))], f.inline(kept))
        own = [f.col(quoted(column.name)) for column in columns]
    else:
        reason = _reason(parsed, columns, records.included)
        failure = f.raise_error(f.concat(f.lit(f"{MARK}[{MALFORMED}]: "), f.col("w"), f.lit(": "), reason))
        whole = f.when(malformed, failure.cast(made.schema["j"].dataType)).otherwise(f.col("j"))
        rows = made.select("p", *[f"x{i}" for i in range(len(included))], whole.alias("c"))
        own = [
            f.col(f"{_within('c', parsed)}.{quoted(column.name)}").alias(column.name) for column in columns
        ]
    return rows.select(*own, *beside, f.col("p").alias(POSITION))


def _within(name: str, parsed: Parsed) -> str:
    """Where the columns are, in what a format has made of a record."""
    return f"{name}.{parsed.inner}" if parsed.inner else name


def _array_of(made: DataFrame, parsed: Parsed) -> str:
    struct = made.select(_within("j", parsed)).schema.fields[0].dataType
    return f"array<{struct.simpleString()}>"


def _malformed(
    parsed: Parsed, columns: Sequence[Column], included: Sequence[tuple[Column, Expression]]
) -> Expression:
    from pyspark.sql import functions as f

    found = parsed.broken | f.col(_within("j", parsed)).isNull()
    if parsed.needs_value:
        found = f.col("v").isNull() | found
    for column in columns:
        if not column.nullable:
            found = found | _value_of(parsed, column).isNull()
        if longest(column.type):
            found = found | _is_too_long(parsed, column)
    for condition in (_is_not_utf8(parsed), *_bad_texts(included).values()):
        found = found | condition
    return f.coalesce(found, f.lit(True))


def _is_not_utf8(parsed: Parsed) -> Expression:
    from pyspark.sql import functions as f

    wrong = ~f.is_valid_utf8(f.col("v")) if parsed.is_text else f.lit(False)
    return f.coalesce(wrong, f.lit(False))


def _bad_texts(included: Sequence[tuple[Column, Expression]]) -> dict[str, Expression]:
    """By name: whether an included STRING is no text. Keys are bytes, and not every target takes those."""
    from pyspark.sql import functions as f

    return {
        column.name: f.coalesce(~f.is_valid_utf8(f.col(f"x{i}").cast("string")), f.lit(False))
        for i, (column, _) in enumerate(included)
        if column.type == "STRING"
    }


def _is_too_long(parsed: Parsed, column: Column) -> Expression:
    from pyspark.sql import functions as f

    return f.coalesce(f.char_length(_value_of(parsed, column)) > (longest(column.type) or 0), f.lit(False))


def _reason(
    parsed: Parsed, columns: Sequence[Column], included: Sequence[tuple[Column, Expression]]
) -> Expression:
    """Why a record is malformed. Names columns, never values: they may be nobody's business."""
    from pyspark.sql import functions as f

    given = {column.name: parsed.given(column) for column in columns}
    wrong = [
        f.when(
            given[c.name].isNotNull() & _value_of(parsed, c).isNull(), f.lit(f"{c.name} is not a {c.type}")
        )
        for c in columns
    ]
    missing = [
        f.when(
            _value_of(parsed, c).isNull() & given[c.name].isNull(), f.lit(f"{c.name} is missing (NOT NULL)")
        )
        for c in columns
        if not c.nullable
    ]
    long = [
        f.when(_is_too_long(parsed, c), f.lit(f"{c.name} is longer than {c.type}"))
        for c in columns
        if longest(c.type)
    ]
    texts = [f.when(bad, f.lit(f"{name} is not UTF-8")) for name, bad in _bad_texts(included).items()]
    named = f.concat_ws(", ", f.lit(None).cast("string"), *wrong, *missing, *long, *texts)
    reason = f.when(_is_not_utf8(parsed), f.lit("the record is not UTF-8"))
    if parsed.needs_value:
        reason = f.when(f.col("v").isNull(), f.lit("the record has no value")).when(
            f.length(f.trim(f.col("v"))) == 0, f.lit("the record is empty")
        )
        reason = reason.when(_is_not_utf8(parsed), f.lit("the record is not UTF-8"))
    for condition, text in parsed.reasons:
        reason = reason.when(condition, f.lit(text))
    reason = reason.when(f.length(named) > 0, named)
    return reason.otherwise(f.lit("the record does not fit the columns"))


def _value_of(parsed: Parsed, column: Column) -> Expression:
    from pyspark.sql import functions as f

    return f.col(f"{_within('j', parsed)}.{quoted(column.name)}")
