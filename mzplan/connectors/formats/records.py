"""Turns records into checked columns, for every source, or fails and names the record.

The same rules hold for all formats. A record is malformed if it isn't in its format, if a value doesn't fit
its column, or if a NOT NULL column has no value. The parsers of formats are in parsers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mzplan.connectors.formats.envelopes import Envelope
from mzplan.connectors.formats.exact import INFINITE, convert, struct_of
from mzplan.connectors.formats.parsers import CORRUPT, ParsedRecord
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import ddl, quoted
from mzplan.schema.columns import POSITION, Column, longest

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame
    from pyspark.sql.types import ArrayType

MALFORMED = "MZ066"
_BLANK = 16  # bytes: of longer texts, none is called empty, because to look for blanks takes time
DEAD = "_mzplan_dead"
"""The last column with `on_error: dead-letter`: a malformed record's key, value and reason.

It is NULL for other records, or has no reason if a row may become a dead letter later (`keeps_all`)."""
SKIPPED = "mzplan_left_out"  # the metric that counts skipped records
_AT = "_mzplan_at"  # the position; users' columns never begin with `_mzplan_`
_INEXACT = "_mzplan_inexact"
MARK = "mzplan"  # prefix of a failure raised inside Spark: `mzplan[MZ066]: …`


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The records that a source reads.

    - `rows`: have the column `value`, which is the record's bytes or text.
    - `value`: the column of their bytes or text.
    - `where`: returns the text that names the record at a position: "topic orders, partition 0, offset 12".
    - `included`: the columns from `include`, which aren't part of the value.
    - `envelope`: how a record changes a keyed collection.
    - `original`: the column of the original bytes, if `value` has another form.
    """

    rows: DataFrame
    position: Expression
    where: Callable[[Expression], Expression]
    included: tuple[tuple[Column, Expression], ...] = ()
    envelope: Envelope | None = None
    original: str = ""


def check_records(
    records: Records,
    parsed: ParsedRecord,
    columns: Sequence[Column],
    on_error: str,
    *,
    keeps_all: bool = False,
) -> DataFrame:
    """Return the record's columns, the included columns, `_position` and, with an envelope, `_change`.

    A malformed record raises an error that names it (`on_error: fail`), is left out (`skip`), or fills the
    column `DEAD` (`dead-letter`; then `records.rows` must also have a `key`).
    `keeps_all`: `DEAD` also has the key and the value of other records.
    """
    envelope = records.envelope
    columns = envelope.required_columns(columns) if envelope is not None else columns
    inputs = envelope.inputs() if envelope is not None else []
    change = [envelope.change()] if envelope is not None else []
    if on_error == "dead-letter":
        raw = {"key": "key", "value": records.original or "value"}
        inputs += [f.col(place).alias(f"_mzplan_raw_{name}") for name, place in raw.items()]
    included = [expression.alias(_included_name(i)) for i, (_, expression) in enumerate(records.included)]
    # The flags are computed here, from the text itself. A copy of the text in each row would take 10% of the
    # time.
    rows_to_check = records.rows.select(
        *_flags(parsed), records.position.alias(_AT), *inputs, *included, parsed.record.alias("j")
    )
    if parsed.raw_format:
        rows_to_check = _exact(rows_to_check, parsed, columns)
    included_columns = [
        f.col(_included_name(i)).alias(column.name).cast(column.type)
        for i, (column, _) in enumerate(records.included)
    ]
    malformed = _malformed(parsed, columns, records.included)
    if envelope is not None:
        included_by_name = {
            column.name: f.col(_included_name(i)) for i, (column, _) in enumerate(records.included)
        }
        malformed = envelope.is_malformed(included_by_name, malformed)
    if on_error == "skip":
        if envelope is None:
            rows_to_check = rows_to_check.observe(SKIPPED, f.count_if(malformed).alias("records"))
        # This is a generator because Spark would push a filter down and parse each record twice.
        kept_records = f.when(malformed, f.array().cast(_array_of(rows_to_check, parsed))).otherwise(
            f.array(f.col(_record_path(parsed)))
        )
        names = envelope.names if envelope is not None else []
        rows = rows_to_check.select(
            _AT, *names, *(_included_name(i) for i in range(len(included))), f.inline(kept_records)
        )
        own_columns = [_own_column(envelope, column, f.col(quoted(column.name))) for column in columns]
        return rows.select(*own_columns, *included_columns, f.col(_AT).alias(POSITION), *change)
    reason = _reason(parsed, columns, records.included)
    if envelope is not None:
        reason = envelope.reason(reason)
    own_columns = [_own_column(envelope, column, _value_of(parsed, column)) for column in columns]
    if on_error == "dead-letter":
        bytes_ = [f.col(f"_mzplan_raw_{name}").alias(name) for name in ("key", "value")]
        if keeps_all:
            dead = f.struct(f.when(malformed, reason).alias("reason"), *bytes_)
        else:
            dead = f.when(malformed, f.struct(reason.alias("reason"), *bytes_))
        return rows_to_check.select(
            *own_columns, *included_columns, f.col(_AT).alias(POSITION), *change, dead.alias(DEAD)
        )
    message = (f.lit(f"{MARK}[{MALFORMED}]: "), records.where(f.col(_AT)), f.lit(": "), reason)
    failure = f.raise_error(f.concat(*message)).cast(rows_to_check.schema[_AT].dataType)
    # The position raises the error, because every collection stores it. In any other place, the error would
    # make Spark build the struct of all columns twice.
    position = f.when(malformed, failure).otherwise(f.col(_AT))
    return rows_to_check.select(*own_columns, *included_columns, position.alias(POSITION), *change)


def _exact(rows: DataFrame, parsed: ParsedRecord, columns: Sequence[Column]) -> DataFrame:
    """Convert the columns of the records `j` from the form in which they were written to their types.

    Adds _INEXACT: a struct that says, by column, whether its value isn't exactly of the column's type."""
    record, inner = f.col("j"), f.col(_record_path(parsed))
    values, inexact = [], []
    for field in struct_of(ddl(columns)).fields:
        value, is_inexact = convert(
            inner.getField(field.name), field.dataType, json=parsed.raw_format == "json"
        )
        values.append(value.alias(field.name))
        flag = f.coalesce(is_inexact, f.lit(False)) if is_inexact is not None else f.lit(False)
        inexact.append(flag.alias(field.name))
    corrupt = record.getField(CORRUPT).alias(CORRUPT)
    if parsed.inner:
        row = f.when(inner.isNotNull(), f.struct(*values))
        whole = f.struct(row.alias(parsed.inner), corrupt)
    else:
        whole = f.struct(*values, corrupt)
    others = [name for name in rows.columns if name not in ("j", INFINITE)]
    return rows.select(*others, whole.alias("j"), f.struct(*inexact).alias(_INEXACT))


def _is_inexact(parsed: ParsedRecord, column: Column) -> Expression:
    return f.col(f"{_INEXACT}.{quoted(column.name)}") if parsed.raw_format else f.lit(False)


def _included_name(index: int) -> str:
    """Return the name of an included column."""
    return f"_mzplan_x{index}"


def _own_column(envelope: Envelope | None, column: Column, value: Expression) -> Expression:
    """Return the value of a column, under its name."""
    return (envelope.column_value(column, value) if envelope is not None else value).alias(column.name)


def _record_path(parsed: ParsedRecord) -> str:
    """Return the path of the columns in the parsed record."""
    return f"j.{parsed.inner}" if parsed.inner else "j"


def _array_of(rows: DataFrame, parsed: ParsedRecord) -> ArrayType:
    from pyspark.sql.types import ArrayType

    return ArrayType(rows.select(_record_path(parsed)).schema.fields[0].dataType)


def _malformed(
    parsed: ParsedRecord, columns: Sequence[Column], included: Sequence[tuple[Column, Expression]]
) -> Expression:
    malformed = parsed.broken | f.col(_record_path(parsed)).isNull()
    if parsed.text is not None:
        malformed = f.col("u") | malformed
    if parsed.several is not None:
        malformed = f.col("s") | malformed
    for column in columns:
        malformed = malformed | _is_inexact(parsed, column)
        if not column.nullable:
            malformed = malformed | _value_of(parsed, column).isNull()
        if longest(column.type):
            malformed = malformed | _is_too_long(parsed, column)
    for condition in _bad_texts(included).values():
        malformed = malformed | condition
    return f.coalesce(malformed, f.lit(True))


def _flags(parsed: ParsedRecord) -> list[Expression]:
    """Return boolean columns that mark unreadable records.

    - `u`: the record isn't UTF-8.
    - INFINITE (JSON only): the record contains an infinite number.
    - `s`: the record isn't one whole line of CSV.
    - `n` and `b` (if the format needs a value): the value is missing, or blank."""
    if parsed.text is None:
        return []
    flags = [f.coalesce(~f.is_valid_utf8(parsed.text), f.lit(False)).alias("u")]
    if parsed.raw_format == "json":
        says_so = f.contains(parsed.text, f.lit("Inf")) | f.contains(parsed.text, f.lit("INF"))
        flags.append(f.coalesce(says_so, f.lit(False)).alias(INFINITE))
    if parsed.several is not None:
        flags.append(f.coalesce(parsed.several, f.lit(False)).alias("s"))
    if not parsed.needs_value:
        return flags
    blank = (f.octet_length(parsed.text) <= _BLANK) & (f.length(f.trim(parsed.text)) == 0)
    return [*flags, parsed.text.isNull().alias("n"), f.coalesce(blank, f.lit(False)).alias("b")]


def _bad_texts(included: Sequence[tuple[Column, Expression]]) -> dict[str, Expression]:
    """Return, by name, whether the value of each STRING column from `include` is invalid UTF-8.

    A record's key is bytes, and not every target accepts invalid UTF-8."""
    return {
        column.name: f.coalesce(~f.is_valid_utf8(f.col(_included_name(i)).cast("string")), f.lit(False))
        for i, (column, _) in enumerate(included)
        if column.type == "STRING"
    }


def _is_too_long(parsed: ParsedRecord, column: Column) -> Expression:
    return f.coalesce(f.char_length(_value_of(parsed, column)) > (longest(column.type) or 0), f.lit(False))


def _reason(
    parsed: ParsedRecord, columns: Sequence[Column], included: Sequence[tuple[Column, Expression]]
) -> Expression:
    """Return why a record is malformed. Names columns, never values, because values may be confidential."""
    texts = {column.name: parsed.text_of(column) for column in columns}
    wrong = [
        f.when(
            _is_inexact(parsed, c) | (texts[c.name].isNotNull() & _value_of(parsed, c).isNull()),
            f.lit(f"{c.name} is not a {c.type}"),
        )
        for c in columns
    ]
    missing = [
        f.when(
            _value_of(parsed, c).isNull() & texts[c.name].isNull() & ~_is_inexact(parsed, c),
            f.lit(f"{c.name} is missing (NOT NULL)"),
        )
        for c in columns
        if not c.nullable
    ]
    too_long = [
        f.when(_is_too_long(parsed, c), f.lit(f"{c.name} is longer than {c.type}"))
        for c in columns
        if longest(c.type)
    ]
    bad_texts = [f.when(bad, f.lit(f"{name} is not UTF-8")) for name, bad in _bad_texts(included).items()]
    named = f.concat_ws(", ", f.lit(None).cast("string"), *wrong, *missing, *too_long, *bad_texts)
    reason = f.when(f.lit(False), f.lit(""))
    if parsed.needs_value:
        reason = f.when(f.col("n"), f.lit("the record has no value"))
        reason = reason.when(f.col("b"), f.lit("the record is empty"))
    if parsed.text is not None:
        reason = reason.when(f.col("u"), f.lit("the record is not UTF-8"))
    if parsed.several is not None:
        reason = reason.when(f.col("s"), f.lit("the record is not one line of CSV"))
    for condition, text in parsed.reasons:
        reason = reason.when(condition, f.lit(text) if isinstance(text, str) else text)
    reason = reason.when(f.length(named) > 0, named)
    return reason.otherwise(f.lit("the record does not fit the columns"))


def _value_of(parsed: ParsedRecord, column: Column) -> Expression:
    return f.col(f"{_record_path(parsed)}.{quoted(column.name)}")
