"""Envelopes: how a record changes a keyed collection. It upserts a row or deletes one.

The envelope `debezium` has its own module.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from mzplan.connectors.formats.parsers import CORRUPT, KEY_DECODED, RECORD, STRICT, exactly, parsed_ddl
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import quoted
from mzplan.schema.columns import CHANGE, DELETE, UPSERT, Column, spark_type

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression


KEY = "_mzplan_key"
_IS_TOMBSTONE, _IS_FRAMED = "_mzplan_gone", "_mzplan_wire"
_FRAMED_KEY = (
    ": it begins with a schema's id, as a schema registry's serializer writes it. Is key_format right?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope(ABC):
    """Builds Spark expressions for the changes in one source's records.

    `inputs` returns expressions over the records. The other methods return expressions over rows that have
    the columns of `inputs`, and the parsed record as `j` (see parsers.ParsedRecord).

    - `key`: the column with the records' own keys.
    - `columns`: the collection's key columns that are fields of the records.
    - `included_keys`: the names of its other key columns, which come from `include`.
    """

    key: Expression
    columns: tuple[Column, ...]
    included_keys: tuple[str, ...] = ()

    @abstractmethod
    def inputs(self) -> list[Expression]:
        """Return the columns that the other methods need. KEY is a struct of the key columns in the record's
        own key."""

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of the columns of `inputs`."""

    @abstractmethod
    def is_malformed(self, included: dict[str, Expression], broken: Expression) -> Expression:
        """Return whether a record can't be used. `broken`: whether its columns can't be used; `included`: the
        columns from `include`, by name."""

    @abstractmethod
    def reason(self, otherwise: Expression) -> Expression:
        """Return why the record can't be used, or `otherwise` if the envelope isn't the cause."""

    @abstractmethod
    def is_delete(self) -> Expression:
        """Return whether the record deletes its row."""

    @abstractmethod
    def is_by_key(self) -> Expression:
        """Return whether only the record's own key identifies its row."""

    def required_columns(self, columns: Sequence[Column]) -> list[Column]:
        """Return the record's columns, with NOT NULL for the key columns."""
        names = {column.name for column in self.columns}
        return [replace(column, nullable=False) if column.name in names else column for column in columns]

    def column_value(self, column: Column, value: Expression) -> Expression:
        """Return a column's value: `value` or, if only the key identifies the row, the value in the key."""
        if column.name not in {key_column.name for key_column in self.columns}:
            return value
        return f.when(self.is_by_key(), f.col(f"{KEY}.{quoted(column.name)}")).otherwise(value)

    def change(self) -> Expression:
        """Return the column `_change`."""
        return f.when(self.is_delete(), f.lit(DELETE)).otherwise(f.lit(UPSERT)).alias(CHANGE)

    def is_included_key_missing(self, included: dict[str, Expression]) -> Expression:
        """Return whether a key column from `include` has no value."""
        return reduce(or_, (included[name].isNull() for name in self.included_keys), f.lit(False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstones(Envelope):
    """The envelope `upsert`: a record holds the latest row of its key. A tombstone has a key but no value,
    and deletes the row.

    - `value`: the records' bytes.
    - `format`: the format of the keys: text, json or avro. Avro keys are already decoded (see avro.stream).
    """

    value: Expression
    format: str = "text"

    def inputs(self) -> list[Expression]:
        is_tombstone = self.value.isNull()
        expressions = [is_tombstone.alias(_IS_TOMBSTONE)]
        if self.columns:
            expressions.append(f.when(is_tombstone, self._parsed_key()).alias(KEY))
            expressions.append((is_tombstone & self._is_framed()).alias(_IS_FRAMED))
        return expressions

    @property
    def names(self) -> list[str]:
        return [_IS_TOMBSTONE, KEY, _IS_FRAMED] if self.columns else [_IS_TOMBSTONE]

    def is_malformed(self, included: dict[str, Expression], broken: Expression) -> Expression:
        """Return whether a tombstone has no key, or any other record is `broken`."""
        is_included_key_missing = self.is_included_key_missing(included)
        return f.when(f.col(_IS_TOMBSTONE), self._is_key_missing() | is_included_key_missing).otherwise(
            broken | is_included_key_missing
        )

    def reason(self, otherwise: Expression) -> Expression:
        if self.columns:
            listed = ", ".join(str(replace(column, nullable=True)) for column in self.columns)
            how = {"text": "as text", "json": "as JSON", "avro": "in Avro"}[self.format]
            text = (
                f"it has no value, so its key must name the row to delete, but the key is not {listed} {how}"
            )
            reason = f.concat(f.lit(text), f.when(f.col(_IS_FRAMED), f.lit(_FRAMED_KEY)).otherwise(f.lit("")))
            otherwise = f.when(f.col(_IS_TOMBSTONE) & self._is_key_missing(), reason).otherwise(otherwise)
        if not self.included_keys:
            return otherwise
        text = "the record has no key, but the source needs it to find the row"
        return f.when(f.col(_IS_TOMBSTONE) & ~self._is_key_missing(), f.lit(text)).otherwise(otherwise)

    def is_delete(self) -> Expression:
        return f.col(_IS_TOMBSTONE)

    def is_by_key(self) -> Expression:
        return self.is_delete()

    def _is_key_missing(self) -> Expression:
        missing = (f.col(f"{KEY}.{quoted(column.name)}").isNull() for column in self.columns)
        return reduce(or_, missing, f.lit(False))

    def _is_framed(self) -> Expression:
        """Return whether a schema registry's serializer wrote the key: a zero, then the schema's id. Such
        bytes can be valid UTF-8; read as text they would name no row, and the delete would silently do
        nothing."""
        if self.format == "avro" or any(column.type == "BINARY" for column in self.columns):
            return f.lit(False)
        return f.coalesce(f.substring(self.key, 1, 1) == f.lit(bytes(1)), f.lit(False))

    def _parsed_key(self) -> Expression:
        """Return the key's columns, as a struct whose unknown fields are NULL."""
        if self.format == "avro":
            return f.col(f"{KEY_DECODED}.{RECORD}")
        is_text = f.is_valid_utf8(self.key.cast("string")) & ~self._is_framed()
        text = f.when(is_text, self.key.cast("string"))
        if self.format == "text":
            (column,) = self.columns
            is_bytes = column.type == "BINARY"
            # Blanks around a number don't matter, as in a CAST.
            plain = text if spark_type(column.type) == "STRING" else f.trim(text)
            value = self.key if is_bytes else exactly(plain, column, "text").try_cast(spark_type(column.type))
            return f.struct(value.alias(column.name))
        # The key is wrapped in an object, so that text after it is an error and a bare value can be parsed.
        wrapped = f.concat(f.lit('{"r":'), text, f.lit("}"))
        parsed = f.from_json(
            wrapped, f"r STRUCT<{parsed_ddl(self.columns, 'json')}>, {CORRUPT} STRING", STRICT
        )
        row = parsed.getField("r")
        fields = {
            column.name: f.when(
                parsed.getField(CORRUPT).isNull(), exactly(row.getField(column.name), column, "json")
            )
            for column in self.columns
        }
        if len(self.columns) == 1:
            (column,) = self.columns
            of_type = parsed_ddl([replace(column, name="r")], "json")
            bare = f.from_json(wrapped, f"{of_type}, {CORRUPT} STRING", STRICT)
            is_bare = ~f.ltrim(text).startswith("{") & bare.getField(CORRUPT).isNull()
            fields[column.name] = f.coalesce(
                fields[column.name], f.when(is_bare, exactly(bare.getField("r"), column, "json"))
            )
        return f.struct(*(value.alias(name) for name, value in fields.items()))
