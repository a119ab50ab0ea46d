"""The user's columns as Spark wants them in a table or a parser: a few types it has only on paper."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.schema.columns import Column

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_SIZED_TEXT = re.compile(r"\b(?:VAR)?CHAR\(\d+\)")
_TEXT = re.compile(r"(?:VAR)?CHAR\((\d+)\)\Z")


def spark_type(type_: str) -> str:
    """`VARCHAR(20)` → `STRING`, and nothing NOT NULL within: what a record must hold is checked when it is
    read; in a table it would only stand in the way of adding such a column later."""
    return _SIZED_TEXT.sub("STRING", type_).replace(" NOT NULL", "")


def longest(type_: str) -> int | None:
    """The most characters that a CHAR(n) or VARCHAR(n) holds; None for any other type."""
    match = _TEXT.match(type_)
    return int(match[1]) if match else None


def ddl(columns: Sequence[Column]) -> str:
    """Columns as DDL for Spark, all nullable."""
    return ", ".join(f"{quoted(column.name)} {spark_type(column.type)}" for column in columns)


def ddl_of(type_: DataType) -> str:
    """A type of Spark's as its SQL takes it: simpleString() leaves names as they are, with a hyphen, too."""
    from pyspark.sql import types as t

    match type_:
        case t.StructType():
            fields = (f"{quoted(field.name)}: {ddl_of(field.dataType)}" for field in type_.fields)
            return f"STRUCT<{', '.join(fields)}>"
        case t.ArrayType():
            return f"ARRAY<{ddl_of(type_.elementType)}>"
        case t.MapType():
            return f"MAP<{ddl_of(type_.keyType)}, {ddl_of(type_.valueType)}>"
    return type_.simpleString()


def quoted(name: str) -> str:
    """A Spark identifier."""
    return "`" + name.replace("`", "``") + "`"
