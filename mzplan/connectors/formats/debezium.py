"""The envelope `debezium`, for records that are changes of rows.

A record has the row `before` and `after` the change, and `op`: c (created), u (updated), r (read, for a
snapshot), d (deleted). All other fields are ignored. In JSON, the record may be the `payload` beside a
`schema`, which is Kafka Connect's default.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING
from uuid import UUID

from mzplan.connectors.formats.envelopes import KEY, Envelope
from mzplan.connectors.formats.parsers import (
    BEFORE,
    CORRUPT,
    DECODED,
    KEY_DECODED,
    RECORD,
    STRICT,
    ParsedRecord,
    exactly,
    parsed_ddl,
    unwrapped,
)
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import ddl, quoted
from mzplan.schema.columns import Column

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

_OP, _HAS_BEFORE = "_mzplan_op", "_mzplan_before"
_ENVELOPE, _IS_MOVED = "_mzplan_opened", "_mzplan_moved"
_OPS = ("c", "u", "r", "d")
# Debezium's placeholder for a value that PostgreSQL didn't send, because it is stored out of line and the
# update didn't change it. The placeholder's form depends on the type:
# - text: the placeholder; bytes written as text: in base64 or hexadecimal digits; hstore as JSON: an object;
# - an array: its only element; of UUIDs: a UUID made of it; of numbers: its bytes;
# - a map: its only key.
_PLACEHOLDER = "__debezium_unavailable_value"
_PLACEHOLDERS = (
    _PLACEHOLDER,
    base64.b64encode(_PLACEHOLDER.encode()).decode(),
    _PLACEHOLDER.encode().hex(),
    json.dumps({_PLACEHOLDER: _PLACEHOLDER}, separators=(",", ":")),
)
_UUID = str(UUID(bytes=hashlib.md5(_PLACEHOLDER.encode(), usedforsecurity=False).digest(), version=3))
_TEXT, _NUMBER = (
    ("STRING", "CHAR", "VARCHAR"),
    ("TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL"),
)


def members(columns: Sequence[Column]) -> tuple[Column, ...]:
    """Return the fields that are read from an envelope, as columns."""
    row = f"STRUCT<{','.join(replace(column, nullable=True).as_field for column in columns)}>"
    return Column("before", row), Column("after", row), Column("op", "STRING")


def without_tombstones(rows: DataFrame) -> DataFrame:
    """Return the records that have a value. Debezium writes one without after each delete, for Kafka's
    compaction."""
    return rows.where("value IS NOT NULL")


def with_envelope(rows: DataFrame, columns: Sequence[Column], raw_format: str) -> DataFrame:
    """Add a column with the parsed envelope of JSON records.

    With an expression instead of a column, Spark would parse the record again at each use."""
    *states, op = members(columns)
    inner = f"{parsed_ddl(states, raw_format)}, {ddl([op])}"
    text = f.concat(f.lit(BEFORE), f.col("value").cast("string"), f.lit("}"))
    whole = f"{RECORD} STRUCT<{inner}, payload STRUCT<{inner}>>, {CORRUPT} STRING"
    return rows.select("*", f.from_json(text, whole, STRICT).alias(_ENVELOPE))


@dataclass(frozen=True, slots=True, kw_only=True)
class Debezium(Envelope):
    """The envelope `debezium`.

    - `row`: the columns in the records.
    - `avro`: whether the records come as Avro in the column DECODED, instead of from `with_envelope`. In both
      cases, `split` is called next.
    - `raw_format`: see ParsedRecord.
    """

    row: tuple[Column, ...]
    avro: bool = False
    raw_format: str = ""

    def split(self, rows: DataFrame) -> DataFrame:
        """Return the records, and for each update that changes the key also a delete of the old row. Debezium
        itself does this only for a change of the primary key."""
        if not self.columns:
            return rows.select("*", f.lit(False).alias(_IS_MOVED))
        before, after = self._member("before"), self._member("after")
        pairs = [
            (self._exact_value(before, column), self._exact_value(after, column)) for column in self.columns
        ]
        is_moved, differs = self._member("op") == "u", f.lit(False)
        for old, new in pairs:
            is_moved, differs = is_moved & old.isNotNull() & new.isNotNull(), differs | (old != new)
        twice, once = f.array(f.lit(True), f.lit(False)), f.array(f.lit(False))
        return rows.select("*", f.explode(f.when(is_moved & differs, twice).otherwise(once)).alias(_IS_MOVED))

    def _exact_value(self, row: Expression, column: Column) -> Expression:
        """Return a column of `row`, which is the row before or after the change."""
        return exactly(row.getField(column.name), column, self.raw_format)

    def parsed(self) -> ParsedRecord:
        """Return the parser of the changed row: the row before a delete, otherwise the row after the
        change."""
        row = f.when(self._op() == "d", self._member("before")).otherwise(self._member("after")).alias(RECORD)
        without_row = (
            f.col(f"j.{RECORD}").isNull(),
            f.concat(f.lit("its op is "), f.col(_OP), f.lit(_WITHOUT_ROW)),
        )
        if self.avro:
            why = f.col("j.e")
            return ParsedRecord(
                record=f.struct(row, f.col(f"{DECODED}.e").alias("e")),
                broken=why.isNotNull(),
                inner=RECORD,
                reasons=((why.isNotNull(), why), *_wrong_ops(), without_row),
            )
        wrapped = f.col(f"j.{CORRUPT}")
        source = unwrapped(wrapped)

        def text_of(column: Column) -> Expression:
            places = (f"$.{place}['{column.name}']" for place in ("payload.after", "after"))
            return f.coalesce(*(f.get_json_object(source, place) for place in places))

        return ParsedRecord(
            record=f.struct(row, f.col(f"{_ENVELOPE}.{CORRUPT}").alias(CORRUPT)),
            text=f.col("value").cast("string"),
            broken=wrapped.isNotNull(),
            text_of=text_of,
            inner=RECORD,
            raw_format=self.raw_format,
            reasons=(
                (wrapped.isNotNull() & f.get_json_object(source, "$").isNull(), "the record is not JSON"),
                *_wrong_ops(),
                without_row,
            ),
        )

    def inputs(self) -> list[Expression]:
        has_before = self._member("before").isNotNull()
        expressions = [self._op().alias(_OP), has_before.alias(_HAS_BEFORE)]
        if self.columns:
            expressions.append(f.when((self._op() == "d") & ~has_before, self._key()).alias(KEY))
        return expressions

    @property
    def names(self) -> list[str]:
        return [_OP, _HAS_BEFORE, KEY] if self.columns else [_OP, _HAS_BEFORE]

    def is_malformed(self, included: dict[str, Expression], broken: Expression) -> Expression:
        """Return whether a record can't be used. A delete needs only its key: its other columns may be NULL
        although declared NOT NULL (PostgreSQL's REPLICA IDENTITY DEFAULT)."""
        is_included_key_missing = self.is_included_key_missing(included)
        is_key_missing = self._is_key_missing() if self.avro else f.col("u") | self._is_key_missing()
        usable = f.coalesce(f.col(_OP).isin(*_OPS), f.lit(False))
        is_delete = f.coalesce(f.col(_OP) == "d", f.lit(False))
        for unknown in self._unknown().values():
            broken = broken | unknown
        return ~usable | f.when(is_delete, is_key_missing | is_included_key_missing).otherwise(
            broken | is_included_key_missing
        )

    def reason(self, otherwise: Expression) -> Expression:
        unknown = self._unknown()
        if unknown:
            which = f.concat_ws(
                ", ", *(f.when(condition, f.lit(name)) for name, condition in unknown.items())
            )
            is_unknown = (f.col(_OP) != "d") & (f.length(which) > 0)
            otherwise = f.when(is_unknown, f.concat(f.lit(_UNKNOWN), which, f.lit(_FULL))).otherwise(
                otherwise
            )
        if not self.columns:
            return otherwise
        names = ", ".join(column.name for column in self.columns)
        text = f"it is a delete, and neither the row before it nor the record's key says {names}"
        return f.when(self.is_delete() & self._is_key_missing(), f.lit(text)).otherwise(otherwise)

    def _unknown(self) -> dict[str, Expression]:
        """Return, by column name, whether the column holds Debezium's placeholder."""
        conditions: dict[str, Expression] = {}
        for column in self.row:
            is_unknown = _is_placeholder(f.col(f"j.{RECORD}.{quoted(column.name)}"), column.type)
            if is_unknown is not None:
                conditions[column.name] = f.coalesce(is_unknown, f.lit(False))
        return conditions

    def is_delete(self) -> Expression:
        return f.col(_OP) == "d"

    def is_by_key(self) -> Expression:
        return self.is_delete() & ~f.col(_HAS_BEFORE)

    def _is_key_missing(self) -> Expression:
        """Return whether both the row and the record's key are missing a key column."""
        values = (
            self.column_value(column, f.col(f"j.{RECORD}.{quoted(column.name)}")) for column in self.columns
        )
        return reduce(or_, (value.isNull() for value in values), f.lit(False))

    def _op(self) -> Expression:
        return f.when(f.col(_IS_MOVED), f.lit("d")).otherwise(self._member("op"))

    def _member(self, name: str) -> Expression:
        if self.avro:
            return f.col(f"{DECODED}.{RECORD}.{name}")
        payload = f.col(f"{_ENVELOPE}.{RECORD}.payload")
        plain = f.col(f"{_ENVELOPE}.{RECORD}.{name}")
        return f.when(payload.isNotNull(), payload.getField(name)).otherwise(plain)

    def _key(self) -> Expression:
        """Return the key's columns from the record's own key, as a struct whose unknown fields are NULL."""
        if self.avro:
            return f.col(f"{KEY_DECODED}.{RECORD}")
        text = self.key.cast("string")
        columns = parsed_ddl(self.columns, self.raw_format)
        direct = f.from_json(f.when(f.is_valid_utf8(text), text), columns)
        inside = f.from_json(text, f"payload STRUCT<{columns}>").getField("payload")
        return f.struct(
            *(
                f.coalesce(self._exact_value(inside, column), self._exact_value(direct, column)).alias(
                    column.name
                )
                for column in self.columns
            )
        )


def _is_placeholder(value: Expression, type_: str) -> Expression | None:
    """Return whether a value is Debezium's placeholder, or None for a type without one."""
    outer, _, inner = type_.rstrip(">").partition("<")
    simple = (inner or outer).partition("(")[0]
    if outer == "MAP":
        return f.map_keys(value).cast("array<string>") == f.array(f.lit(_PLACEHOLDER))
    if outer == "ARRAY" and simple in _NUMBER:
        return value.cast("array<double>") == f.array(*(f.lit(float(byte)) for byte in _PLACEHOLDER.encode()))
    only = f.get(value, f.lit(0)) if outer == "ARRAY" else value
    alone = f.size(value) == 1 if outer == "ARRAY" else f.lit(True)
    if simple in _TEXT:
        return alone & only.isin(*_PLACEHOLDERS, _UUID)
    if simple == "BINARY":
        return alone & (only == f.lit(_PLACEHOLDER).cast("binary"))
    return None


_WITHOUT_ROW = ", but it has no row for it"
_UNKNOWN = "Debezium did not receive the value of "
_FULL = ", which the update didn't change: ALTER TABLE … REPLICA IDENTITY FULL makes PostgreSQL send it"


def _wrong_ops() -> tuple[tuple[Expression, str | Expression], ...]:
    op = f.col(_OP)
    return (
        (op.isNull(), "it has no op: did Debezium write it?"),
        (
            op == "t",
            "its op is t: the table was truncated, which a collection can't repeat: "
            "replace the source, and have Debezium take another snapshot",
        ),
        (~op.isin(*_OPS), f.concat(f.lit("its op is "), op, f.lit(", not c, u, r or d"))),
    )
