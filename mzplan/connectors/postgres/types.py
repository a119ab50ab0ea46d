"""Maps types of Spark to types of PostgreSQL: to create, to stage, and to check whether values fit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mzplan.model.words import safe
from mzplan.schema.object_names import table_parts

# Canonical Spark DDL to the names that PostgreSQL's format_type() returns.
_SCALARS = {
    "BOOLEAN": "boolean",
    "TINYINT": "smallint",
    "SMALLINT": "smallint",
    "INT": "integer",
    "BIGINT": "bigint",
    "FLOAT": "real",
    "DOUBLE": "double precision",
    "STRING": "text",
    "BINARY": "bytea",
    "DATE": "date",
    "TIMESTAMP": "timestamp with time zone",
    "TIMESTAMP_NTZ": "timestamp without time zone",
}
_ARRAY = re.compile(r"ARRAY<(.*)>\Z")
_SIZED = re.compile(r"(DECIMAL|CHAR|VARCHAR)\((\d+)(?:,(\d+))?\)\Z")

Fit = Literal["fits", "narrow", "no"]
"""`fits`: the column stores every value. `narrow`: a value that doesn't fit fails the query. `no`: the column
would round values, or can't store them."""

_FITS = {
    "BOOLEAN": {"bool"},
    "TINYINT": {"int2", "int4", "int8", "numeric", "float4", "float8"},
    "SMALLINT": {"int2", "int4", "int8", "numeric", "float4", "float8"},
    "INT": {"int4", "int8", "numeric", "float8"},
    "BIGINT": {"int8", "numeric"},
    "FLOAT": {"float4", "float8"},
    "DOUBLE": {"float8"},
    "BINARY": {"bytea"},
    "DATE": {"date", "timestamp", "timestamptz"},
    "TIMESTAMP": {"timestamptz", "timestamp"},
    "TIMESTAMP_NTZ": {"timestamp", "timestamptz"},
}
_NARROW = {"INT": {"int2"}, "BIGINT": {"int4", "int2"}}
# Spark types to the column types that can be widened for them without changing any value.
_WIDER = {
    "DOUBLE": {"float4"},
    "STRING": {"varchar", "bpchar"},
    "TIMESTAMP": {"timestamptz"},
    "TIMESTAMP_NTZ": {"timestamp"},
}
# Digits of whole numbers, in Spark and in PostgreSQL.
_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19, "int2": 5, "int4": 10, "int8": 19}
# Spark's timestamps have microseconds, so `timestamp(3)` would round.
_TIMES = {"TIMESTAMP", "TIMESTAMP_NTZ"}
_MICROSECONDS = 6
_JSON = {"json", "jsonb"}
_FLOATS = {"float4", "float8"}
# Categories of pg_type that accept text with a meaning of their own: strings, enums, network addresses, and
# types of users and extensions.
_TEXT_CATEGORIES = {"S", "E", "I", "U", "G"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumn:
    """A column of a PostgreSQL table, from the catalog.

    `type`: for a domain, its underlying type.
    `in_key`: part of the primary key.
    `delimiter`: separates the elements in an array of this type.
    `number`: doesn't change when the column is renamed.
    `labels`: for an enum, or an array of enums, pairs of oid and label; the oid survives a rename.
    """

    name: str
    type: str
    type_schema: str
    category: str
    typmod: int
    shown: str
    required: bool
    writable: bool
    in_key: bool = False
    delimiter: str = ","
    number: int = 0
    labels: Sequence[tuple[str, str]] = ()

    @property
    def is_array(self) -> bool:
        return self.category == "A"


def numeric_size(typmod: int) -> tuple[int, int] | None:
    """Return precision and scale (which may be negative), or None for a numeric without them."""
    packed = typmod - 4
    # The precision is in the upper half, above 11 bits for the signed scale.
    return (packed >> 16 & 0xFFFF, (packed & 0x7FF ^ 0x400) - 0x400) if packed >= 0 else None


def created_type(spark_type: str) -> str:
    """Return the type for a new column: `DECIMAL(10,2)` → `numeric(10,2)`, a struct → `jsonb`."""
    sized = _SIZED.match(spark_type)
    if sized:
        word = {"DECIMAL": "numeric", "CHAR": "char", "VARCHAR": "varchar"}[sized[1]]
        return f"{word}({sized[2]},{sized[3]})" if sized[3] is not None else f"{word}({sized[2]})"
    element = _simple_element(spark_type)
    if element is not None:
        return f"{created_type(element)}[]"
    short = {"timestamp with time zone": "timestamptz", "timestamp without time zone": "timestamp"}
    name = _SCALARS.get(spark_type, "jsonb")
    return short.get(name, name)


def staged_type(spark_type: str, target: TargetColumn) -> str:
    """Return the type of the staging column, exactly as Arrow's binary COPY writes the Spark type."""
    if staged_as_json(spark_type, target):
        return "text"
    element = _simple_element(spark_type)
    return f"{_scalar(element)}[]" if element is not None else _scalar(spark_type)


def staged_as_json(spark_type: str, target: TargetColumn) -> bool:
    """Return whether Spark writes the value as JSON: structs, maps, and arrays unless the target is an
    array."""
    if _simple_element(spark_type) is not None:
        return not target.is_array
    return spark_type.startswith(("ARRAY<", "MAP<", "STRUCT<"))


# Types that Arrow writes to the column types that accept the same bytes in a binary COPY; same name first.
_SAME_BYTES = {
    "boolean": ("bool",),
    "smallint": ("int2",),
    "integer": ("int4",),
    "bigint": ("int8",),
    "real": ("float4",),
    "double precision": ("float8",),
    "text": ("text", "varchar", "bpchar", "json"),
    "bytea": ("bytea",),
    "date": ("date",),
    # Both are microseconds in UTC, as a cast in a session with time zone UTC returns them.
    "timestamp with time zone": ("timestamptz", "timestamp"),
    "timestamp without time zone": ("timestamp", "timestamptz"),
    "numeric": ("numeric",),
}


def copies_straight(spark_types: Sequence[str], targets: Sequence[TargetColumn]) -> bool:
    """Return whether the columns accept Arrow's values without a cast and so without staging."""
    return all(_is_same(type_, target) for type_, target in zip(spark_types, targets, strict=True))


def _is_same(spark_type: str, target: TargetColumn) -> bool:
    if target.type_schema != "pg_catalog" or staged_as_json(spark_type, target):
        return False
    staged = staged_type(spark_type, target)
    if staged.endswith("[]"):
        # The binary format of an array contains its element type, which must match exactly.
        return target.type == f"_{_SAME_BYTES[staged.removesuffix('[]')][0]}"
    return target.type in _SAME_BYTES[staged]


def fit(spark_type: str, target: TargetColumn) -> Fit:
    """Return whether the column can store values of the Spark type without loss."""
    if spark_type.startswith(("ARRAY<", "MAP<", "STRUCT<")):
        element = _simple_element(spark_type)
        if target.is_array:
            type_ = target.type.removeprefix("_")
            return _fit(element, type_, "", target.typmod) if element is not None else "no"
        return "fits" if target.type in _JSON | {"text"} else "no"
    return _fit(spark_type, target.type, target.category, target.typmod)


def altered_type(spark_type: str, target: TargetColumn) -> tuple[str, bool]:
    """Return the type that a column needs to accept a Spark type too, and whether its values stay unchanged.

    They stay unchanged if the new type is wider. Otherwise the caller must cast them.
    """
    wanted, current = _digits(spark_type, None), _digits(target.type, numeric_size(target.typmod))
    if wanted is None or (current is None and target.type not in _FLOATS):
        return created_type(spark_type), target.type in _WIDER.get(spark_type, ())
    if current is None:
        return "numeric", True  # accepts everything except infinity
    if target.type != "numeric" and spark_type in _DIGITS:
        return created_type(spark_type), True
    whole, scale = max(wanted[0], current[0]), max(wanted[1], current[1])
    return f"numeric({whole + scale},{scale})", True


def _digits(type_: str, size: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the maximum digits before and after the decimal point, or None for an inexact type."""
    if size is not None or (sized := _SIZED.match(type_)) is None:
        precision, scale = size or (_DIGITS.get(type_, 0), 0)
    elif sized[1] != "DECIMAL":
        return None
    else:
        precision, scale = int(sized[2]), int(sized[3] or 0)
    return (precision - scale, max(scale, 0)) if precision else None


def describe_misfit(spark_type: str, target: TargetColumn) -> str:
    """Return why the column doesn't fit, as a predicate: `can't store STRING`, `would round DOUBLE`."""
    unsized = replace(target, typmod=-1)
    if fit(spark_type, unsized) == "no":
        return f"can't store {spark_type}"
    return f"would round {spark_type}"


def _fit(spark_type: str, type_: str, category: str, typmod: int) -> Fit:
    sized = _SIZED.match(spark_type)
    if spark_type == "STRING" or (sized and sized[1] != "DECIMAL"):
        textual = type_ in _JSON | {"text", "varchar", "bpchar", "uuid", "xml"}
        return "fits" if textual or (category in _TEXT_CATEGORIES and type_ != "bytea") else "no"
    if sized:
        return _decimal_fit(int(sized[2]), int(sized[3] or 0), type_, typmod)
    if type_ == "numeric" and typmod >= 0 and "numeric" in _FITS.get(spark_type, ()):
        return _decimal_fit(_DIGITS[spark_type], 0, type_, typmod)
    if type_ in _FITS.get(spark_type, ()):
        # The typmod of these types is the number of fractional digits.
        return "no" if spark_type in _TIMES and 0 <= typmod < _MICROSECONDS else "fits"
    return "narrow" if type_ in _NARROW.get(spark_type, ()) else "no"


def _decimal_fit(precision: int, scale: int, type_: str, typmod: int) -> Fit:
    if type_ == "numeric":
        size = numeric_size(typmod)
        if size is None:
            return "fits"
        digits, column_scale = size
        if column_scale < scale:
            return "no"  # PostgreSQL would round silently
        return "fits" if digits - column_scale >= precision - scale else "narrow"
    whole = {"int2": 4, "int4": 9, "int8": 18}.get(type_, 0)
    if scale or not whole:
        return "no"
    return "fits" if precision <= whole else "narrow"


def _simple_element(spark_type: str) -> str | None:
    """Return the element type of an array of scalars, or None for any other type."""
    match = _ARRAY.match(spark_type)
    if match and (match[1] in _SCALARS or _SIZED.match(match[1])):
        return match[1]
    return None


def _scalar(spark_type: str) -> str:
    sized = _SIZED.match(spark_type)
    if sized:
        return "numeric" if sized[1] == "DECIMAL" else "text"
    return _SCALARS.get(spark_type, "text")


# Keywords that must be quoted as a column's name.
_RESERVED = frozenset(
    """
    all analyse analyze and any array as asc asymmetric authorization binary both case cast check
    collate collation column concurrently constraint create cross current_catalog current_date
    current_role current_schema current_time current_timestamp current_user default deferrable desc
    distinct do else end except false fetch for foreign freeze from full grant group having ilike in
    initially inner intersect into is isnull join lateral leading left like limit localtime
    localtimestamp natural not notnull null offset on only or order outer overlaps placing primary
    references returning right select session_user similar some symmetric table tablesample then to
    trailing true union unique user using variadic verbose when where window with
    """.split()  # noqa: SIM905 - readable
)


def quoted(name: str) -> str:
    """Return an identifier for a statement that mzplan runs; always quoted."""
    return '"' + name.replace('"', '""') + '"'


def shown(name: str) -> str:
    """Return an identifier for a statement that a person reads.

    It is quoted if necessary, and contains no control characters for a terminal.
    """
    if safe(name) != name:
        parts = (f"\\+{ord(c):06X}" if safe(c) != c or c == "\\" else c for c in name)
        return "U&" + quoted("".join(parts))
    plain = re.fullmatch(r"[a-z_][a-z0-9_]*", name) and name not in _RESERVED
    return name if plain else quoted(name)


def literal(text: str) -> str:
    """Return the text as a SQL string constant that doesn't depend on standard_conforming_strings."""
    escaped = text.replace("'", "''").replace("\\", "\\\\")
    return f" E'{escaped}'" if "\\" in text else f"'{escaped}'"


def split_name(table: str) -> tuple[str | None, str]:
    """Split `public."a.b"` into `("public", "a.b")`. The schema is None if it is missing."""
    *schema, name = table_parts(table)
    return (schema[0] if schema else None), name
