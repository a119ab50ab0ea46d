"""The types of a Delta table's columns, without Spark, and whether one type holds every value of another."""

from __future__ import annotations

import math
import re
from typing import Any

from mzplan.schema.columns import canonical_type

_DELTA_TYPES = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT"}
_WHOLE = ("TINYINT", "SMALLINT", "INT", "BIGINT")  # each holds those before it
_HELD = {**{type_: _WHOLE[:end] for end, type_ in enumerate(_WHOLE)}, "FLOAT": _WHOLE[:2]}
_HELD["DOUBLE"] = (*_WHOLE[:3], "FLOAT")
_INTEGER_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19}


def column_types(table: Any) -> dict[str, str | None]:
    """Of a deltalake.DeltaTable: the simple types of its columns in Spark DDL; None for a nested one, whose
    fields Spark compares."""
    return {field.name: _spark_type(field.type) for field in table.schema().fields}


def _spark_type(type_: Any) -> str | None:
    name = getattr(type_, "type", None)
    if not isinstance(name, str) or name in ("struct", "array", "map"):
        return None
    return spark_type(name)


def spark_type(name: str) -> str | None:
    """A simple type by Delta's name for it; None for one that we don't know."""
    return canonical_type(_DELTA_TYPES.get(name, name))


def holds(there: str, written: str) -> bool:
    """Whether a column of the type `there` holds every value of the type `written` unchanged, as Spark casts
    it on its own; both in canonical DDL. True for nested types, which are not compared."""
    if there == written or "<" in there + written:
        return True
    if there == "STRING":
        return written not in ("BINARY", "VARIANT")
    if there in _HELD:
        return written in _HELD[there]
    if there in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        return written == "DATE"
    into, value = _digits(there), _digits(written)
    return there.startswith("DECIMAL") and all(
        needed <= available for needed, available in zip(value, into, strict=True)
    )


def _digits(type_: str) -> tuple[float, float]:
    """How many digits a number has before and behind the point, at most."""
    if match := re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", type_):
        return int(match[1]) - int(match[2]), int(match[2])
    return _INTEGER_DIGITS.get(type_, math.inf), 0
