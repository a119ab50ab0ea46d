"""Checks whether a new generation of a source can take over the rows of the former generation unchanged.

Columns may be dropped, reordered, or widened: a top-level number gets a type that holds all its values.
Types with fields or elements inside must be identical, by name and in order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mzplan.schema.columns import Column
from mzplan.schema.source_columns import included_columns, record_columns

_INTEGERS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19}  # digits of the largest value
_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")


def is_exact(before: str, after: str) -> bool:
    """Return whether the type `after` holds each value of `before`. Both are canonical Spark DDL."""
    if before == after or (before, after) == ("FLOAT", "DOUBLE"):
        return True
    if before in _INTEGERS and after in _INTEGERS:
        return _INTEGERS[before] <= _INTEGERS[after]
    old, new = _digits(before), _digits(after)
    if old is None or new is None or after in _INTEGERS:
        return False
    return old[0] <= new[0] and old[1] <= new[1]


def migration_problem(type_: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str | None:
    """Return why the rows of a source can't be migrated from one body to another; None if they can.

    Raises DdlError for a schema that is not Spark DDL.
    """
    former = _columns(type_, before)
    for key, (place, column) in _columns(type_, after).items():
        if key not in former:
            return (
                f"column {column.name} is new, and the upstream may have values for it: to have NULL in "
                "existing rows, add it in a separate apply"
            )
        earlier_place, earlier = former[key]
        if place != earlier_place:
            return f"column {column.name} is read from another place of the record"
        if column.nullable != earlier.nullable:
            return f"column {column.name} {'loses' if column.nullable else 'gets'} NOT NULL"
        if not is_exact(earlier.type, column.type):
            return f"column {column.name} changes from {earlier.type} to {column.type}"
    return None


def _columns(type_: str, body: Mapping[str, Any]) -> dict[str, tuple[str, Column]]:
    """Return the columns by name in lower case, each with the part of the record that it is read from."""
    of_record = {column.name.lower(): ("", column) for column in record_columns(type_, body)}
    included = included_columns(type_, body).items()
    return of_record | {column.name.lower(): (part, column) for part, column in included}


def _digits(type_: str) -> tuple[int, int] | None:
    """Return the digits before and after the point of an exact number; None for any other type."""
    if type_ in _INTEGERS:
        return _INTEGERS[type_], 0
    match = _DECIMAL.fullmatch(type_)
    return (int(match[1]) - int(match[2]), int(match[2])) if match else None
