"""The types of a Delta table's columns, without Spark, and whether one type holds every value of another."""

from __future__ import annotations

import math
import re
from typing import Any

from mzplan.schema.columns import Column, canonical_type, map_types, parse_columns

_DELTA_TYPES = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT"}
_WHOLE = ("TINYINT", "SMALLINT", "INT", "BIGINT")  # each holds the ones before it
_HOLDS = {**{type_: _WHOLE[:end] for end, type_ in enumerate(_WHOLE)}, "FLOAT": _WHOLE[:2]}
_HOLDS["DOUBLE"] = (*_WHOLE[:3], "FLOAT")
_INTEGER_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19}


def column_types(table: Any) -> dict[str, str]:
    """Return the types of a deltalake.DeltaTable's columns, in Spark DDL with nested fields. A type that
    mzplan doesn't know keeps Delta's name."""
    return {field.name: _type_ddl(field.type) for field in table.schema().fields}


def _type_ddl(type_: Any) -> str:
    match getattr(type_, "type", None):
        case "struct":
            fields = (Column(field.name, _type_ddl(field.type)).as_field for field in type_.fields)
            return f"STRUCT<{','.join(fields)}>"
        case "array":
            return f"ARRAY<{_type_ddl(type_.element_type)}>"
        case "map":
            return f"MAP<{_type_ddl(type_.key_type)},{_type_ddl(type_.value_type)}>"
        case name:
            return spark_type(str(name)) or str(name)


def spark_type(name: str) -> str | None:
    """Return a simple type from Delta's name for it, or None for an unknown name."""
    return canonical_type(_DELTA_TYPES.get(name, name))


def holds(stored: str, written: str) -> bool:
    """Return whether a column of type `stored` holds every value of type `written` after Spark's cast.

    Both types are in canonical DDL. Spark matches the fields of a STRUCT by position, so names and order must
    be the same."""
    if stored == written:
        return True
    if "<" in stored + written:
        return _holds_nested(stored, written)
    if stored == "STRING":
        return written not in ("BINARY", "VARIANT")
    if stored in _HOLDS:
        return written in _HOLDS[stored]
    if stored in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        return written == "DATE"
    into, value = _digits(stored), _digits(written)
    return stored.startswith("DECIMAL") and all(
        needed <= available for needed, available in zip(value, into, strict=True)
    )


def _holds_nested(stored: str, written: str) -> bool:
    (word, _, inside), (other, _, other_inside) = stored.partition("<"), written.partition("<")
    if word != other:
        return False
    match word:
        case "ARRAY":
            return holds(inside[:-1], other_inside[:-1])
        case "MAP":
            return all(map(holds, map_types(stored), map_types(written)))
    fields, written_fields = parse_columns(inside[:-1]), parse_columns(other_inside[:-1])
    same = [field.name for field in fields] == [field.name for field in written_fields]
    return same and all(
        holds(field.type, written_field.type)
        for field, written_field in zip(fields, written_fields, strict=True)
    )


def _digits(type_: str) -> tuple[float, float]:
    """Return the most digits that a number of this type has before and after the point."""
    if match := re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", type_):
        return int(match[1]) - int(match[2]), int(match[2])
    return _INTEGER_DIGITS.get(type_, math.inf), 0
