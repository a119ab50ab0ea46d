"""Spark's types and PostgreSQL's: what to create, how to stage, and what fits where."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mzplan.model.words import safe

# By canonical Spark DDL; the values are what PostgreSQL's format_type() calls them.
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
"""`narrow`: most values fit, and one that doesn't fails the query; nothing is ever rounded in silence."""

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
# By type, the columns that can become one of it without a change of any value.
_WIDER = {
    "DOUBLE": {"float4"},
    "STRING": {"varchar", "bpchar"},
    "TIMESTAMP": {"timestamptz"},
    "TIMESTAMP_NTZ": {"timestamp"},
}
# Digits before the point of whole numbers, Spark's and PostgreSQL's.
_DIGITS = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19, "int2": 5, "int4": 10, "int8": 19}
# Of Spark, always to the microsecond: `timestamp(3)` would round.
_TIMES = {"TIMESTAMP", "TIMESTAMP_NTZ"}
_MICROSECONDS = 6
_JSON = {"json", "jsonb"}
_FLOATS = {"float4", "float8"}
# Categories of pg_type whose input is text that means something else: strings, enums, network addresses,
# and what users and extensions define.
_TEXT_CATEGORIES = {"S", "E", "I", "U", "G"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumn:
    """A column of a PostgreSQL table, from its catalogue. `type` is the underlying one of a domain;
    `in_key`: of the primary key; `delimiter` stands between the elements of an array of them. `number` stays
    when the column is renamed; `labels`: of an enum, or of an array of them, each label with its oid, which
    stays when the label is renamed."""

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
    """Precision and scale, which may be negative; None for a numeric without them."""
    packed = typmod - 4
    # The precision in the upper half, below 11 bits with a sign.
    return (packed >> 16 & 0xFFFF, (packed & 0x7FF ^ 0x400) - 0x400) if packed >= 0 else None


def created_type(spark_type: str) -> str:
    """The type to create a column with: `DECIMAL(10,2)` → `numeric(10,2)`, a struct → `jsonb`."""
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
    """The type of the staging column: exactly what Arrow's binary COPY writes for the Spark type."""
    if staged_as_json(spark_type, target):
        return "text"
    element = _simple_element(spark_type)
    return f"{_scalar(element)}[]" if element is not None else _scalar(spark_type)


def staged_as_json(spark_type: str, target: TargetColumn) -> bool:
    """Whether Spark makes JSON text of the value: structs and maps, and arrays where none is wanted."""
    if _simple_element(spark_type) is not None:
        return not target.is_array
    return spark_type.startswith(("ARRAY<", "MAP<", "STRUCT<"))


# What a COPY in binary may be given as it is, by the type that Arrow writes: that type's own name first.
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
    # Microseconds in UTC, both: what a cast in a session of time zone UTC would make of it.
    "timestamp with time zone": ("timestamptz", "timestamp"),
    "timestamp without time zone": ("timestamp", "timestamptz"),
    "numeric": ("numeric",),
}


def copies_straight(spark_types: Sequence[str], targets: Sequence[TargetColumn]) -> bool:
    """Whether the columns take what Arrow writes without a cast, so that no staging is needed."""
    return all(_is_same(type_, target) for type_, target in zip(spark_types, targets, strict=True))


def _is_same(spark_type: str, target: TargetColumn) -> bool:
    if target.type_schema != "pg_catalog" or staged_as_json(spark_type, target):
        return False
    staged = staged_type(spark_type, target)
    if staged.endswith("[]"):
        # The binary form of an array names its element's type: only the very same will do.
        return target.type == f"_{_SAME_BYTES[staged.removesuffix('[]')][0]}"
    return target.type in _SAME_BYTES[staged]


def fit(spark_type: str, target: TargetColumn) -> Fit:
    """Whether values of the Spark type can be stored in the column without loss."""
    if spark_type.startswith(("ARRAY<", "MAP<", "STRUCT<")):
        element = _simple_element(spark_type)
        if target.is_array:
            type_ = target.type.removeprefix("_")
            return _fit(element, type_, "", target.typmod) if element is not None else "no"
        return "fits" if target.type in _JSON | {"text"} else "no"
    return _fit(spark_type, target.type, target.category, target.typmod)


def altered(spark_type: str, target: TargetColumn) -> tuple[str, bool]:
    """The type with which the column takes a Spark type, too; and whether it only becomes wider, so that
    every value that is there stays as it is."""
    wanted, current = _digits(spark_type, None), _digits(target.type, numeric_size(target.typmod))
    if wanted is None or (current is None and target.type not in _FLOATS):
        return created_type(spark_type), target.type in _WIDER.get(spark_type, ())
    if current is None:
        return "numeric", True  # takes all but what is infinite there
    if target.type != "numeric" and spark_type in _DIGITS:
        return created_type(spark_type), True
    whole, scale = max(wanted[0], current[0]), max(wanted[1], current[1])
    return f"numeric({whole + scale},{scale})", True


def _digits(type_: str, size: tuple[int, int] | None) -> tuple[int, int] | None:
    """How many digits a number has before and behind its point, at most; None for an inexact type."""
    if size is not None or (sized := _SIZED.match(type_)) is None:
        precision, scale = size or (_DIGITS.get(type_, 0), 0)
    elif sized[1] != "DECIMAL":
        return None
    else:
        precision, scale = int(sized[2]), int(sized[3] or 0)
    return (precision - scale, max(scale, 0)) if precision else None


def why_not(spark_type: str, target: TargetColumn) -> str:
    """In what way the column does not fit, for people."""
    unsized = replace(target, typmod=-1)
    if fit(spark_type, unsized) == "no":
        return f"does not take {spark_type}"
    return f"would round {spark_type}"


def _fit(spark_type: str, type_: str, category: str, typmod: int) -> Fit:
    sized = _SIZED.match(spark_type)
    if spark_type == "STRING" or (sized and sized[1] != "DECIMAL"):
        textual = type_ in _JSON | {"text", "varchar", "bpchar", "uuid", "xml"}
        return "fits" if textual or (category in _TEXT_CATEGORIES and type_ != "bytea") else "no"
    if sized:
        return _decimal_fit(int(sized[2]), int(sized[3] or 0), type_, typmod)
    if type_ == "numeric" and typmod >= 0 and "numeric" in _FITS.get(spark_type, ()):
        digits = {"TINYINT": 3, "SMALLINT": 5, "INT": 10, "BIGINT": 19}[spark_type]
        return _decimal_fit(digits, 0, type_, typmod)
    if type_ in _FITS.get(spark_type, ()):
        # As typmod of these types: the digits of a second's fraction.
        return "no" if spark_type in _TIMES and 0 <= typmod < _MICROSECONDS else "fits"
    return "narrow" if type_ in _NARROW.get(spark_type, ()) else "no"


def _decimal_fit(precision: int, scale: int, type_: str, typmod: int) -> Fit:
    if type_ == "numeric":
        size = numeric_size(typmod)
        if size is None:
            return "fits"
        digits, column_scale = size
        if column_scale < scale:
            return "no"  # PostgreSQL would round, and say nothing
        return "fits" if digits - column_scale >= precision - scale else "narrow"
    whole = {"int2": 4, "int4": 9, "int8": 18}.get(type_, 0)
    if scale or not whole:
        return "no"
    return "fits" if precision <= whole else "narrow"


def _simple_element(spark_type: str) -> str | None:
    """The element of an array of scalars, None for everything else."""
    match = _ARRAY.match(spark_type)
    if match and (match[1] in _SCALARS or _SIZED.match(match[1])):
        return match[1]
    return None


def _scalar(spark_type: str) -> str:
    sized = _SIZED.match(spark_type)
    if sized:
        return "numeric" if sized[1] == "DECIMAL" else "text"
    return _SCALARS.get(spark_type, "text")


# Words that a column can't be called without quotes.
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
    """An identifier for a statement that runs: always quoted."""
    return '"' + name.replace('"', '""') + '"'


def shown(name: str) -> str:
    """An identifier for a statement that a person reads: quoted where it must be, and nothing in it that a
    terminal would take for a command."""
    if safe(name) != name:
        parts = (f"\\+{ord(c):06X}" if safe(c) != c or c == "\\" else c for c in name)
        return "U&" + quoted("".join(parts))
    plain = re.fullmatch(r"[a-z_][a-z0-9_]*", name) and name not in _RESERVED
    return name if plain else quoted(name)


def literal(text: str) -> str:
    """The text as a string constant of SQL, whatever standard_conforming_strings says."""
    escaped = text.replace("'", "''").replace("\\", "\\\\")
    return f" E'{escaped}'" if "\\" in text else f"'{escaped}'"


def split_name(table: str) -> tuple[str | None, str]:
    """`"public.orders"` → `("public", "orders")`."""
    schema, dot, name = table.rpartition(".")
    return (schema if dot else None), name
