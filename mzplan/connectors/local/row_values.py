"""Converts values from JSON or CSV to a column's type, with messages for people."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Context, Decimal, InvalidOperation
from typing import Any, NoReturn

from mzplan.schema.columns import Column, longest, map_types, parse_columns

Convert = Callable[[Any], Any]
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}\Z")
_DIGITS = Context(prec=100)  # more than a DECIMAL has; Python's default is fewer
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class ValueFormError(ValueError):
    """Raised if a value doesn't have the column's type. The message describes the value; `path` is its place
    in the column."""

    def __init__(self, message: str, path: str = ""):
        super().__init__(message)
        self.path = path


def converter(column: Column, *, text: bool) -> Convert:
    """Return a function that converts a value to a column's type.

    The function takes a value of JSON (numbers with a point as Decimal) or, with `text`, a field of CSV. It
    raises ValueFormError. `converter` itself raises ValueError for a type that CSV can't hold.
    """
    convert = _of_text(column.type) if text else _of_json(column.type)
    if column.nullable:
        return _nullable(convert)

    def required(value: Any) -> Any:
        if value is None:
            raise ValueFormError("is missing (NOT NULL)")
        return convert(value)

    return required


def _of_json(type_: str) -> Convert:
    word = type_.partition("<")[0].partition("(")[0]
    inner = type_.partition("<")[2][:-1]
    match word:
        case "BOOLEAN":
            return lambda value: value if isinstance(value, bool) else _fail(value, type_)
        case "TINYINT" | "SMALLINT" | "INT" | "BIGINT":
            return lambda value: _integer(value, type_)
        case "FLOAT" | "DOUBLE":
            return lambda value: _float(value, type_)
        case "DECIMAL":
            return _decimal(type_)
        case "STRING" | "CHAR" | "VARCHAR":
            return _string(type_)
        case "BINARY":
            return _binary
        case "DATE" | "TIMESTAMP" | "TIMESTAMP_NTZ":
            return _time(type_)
        case "ARRAY":
            return _array(type_, _nullable(_of_json(inner)))
        case "MAP":
            return _map(type_)
        case "STRUCT":
            return _struct(type_, parse_columns(inner))
    raise AssertionError(f"unknown type {type_!r} in a parsed column")


def _of_text(type_: str) -> Convert:
    convert = _of_json(type_)
    if type_.startswith(("ARRAY", "MAP", "STRUCT")):
        raise ValueError(f"a field of csv can't hold a {type_}; append JSON lines or Parquet")
    if type_ == "BOOLEAN":
        words = {"true": True, "false": False}
        return lambda value: words[value.lower()] if value.lower() in words else _fail(value, type_)
    if type_ in _BITS:
        return lambda value: convert(int(value)) if _INTEGER.match(value) else _fail(value, type_)
    if type_ in ("FLOAT", "DOUBLE"):
        return lambda value: convert(value if value in _FLOATS else _number(value, type_))
    return convert


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _fail(value: Any, type_: str) -> NoReturn:
    shown = repr(value) if not isinstance(value, Decimal) else str(value)
    if isinstance(value, dict | list):
        shown = "an object" if isinstance(value, dict) else "a list"
    raise ValueFormError(f"is {shown if len(shown) <= 40 else shown[:39] + '…'}, not {type_}")


def _integer(value: Any, type_: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        _fail(value, type_)
    limit = 1 << (_BITS[type_] - 1)
    if not -limit <= value < limit:
        _fail(value, type_)
    return value


def _float(value: Any, type_: str) -> float:
    if isinstance(value, str) and value in _FLOATS:
        return _FLOATS[value]
    if not isinstance(value, int | Decimal) or isinstance(value, bool):
        _fail(value, type_)
    try:
        return float(value)
    except OverflowError:
        _fail(value, type_)


def _number(value: Any, type_: str) -> Decimal:
    try:
        number = Decimal(value)
    except (InvalidOperation, ValueError, TypeError):
        _fail(value, type_)
    return number if number.is_finite() else _fail(value, type_)


def _decimal(type_: str) -> Convert:
    precision, scale = (int(part) for part in type_[8:-1].split(","))
    least = Decimal(1).scaleb(-scale)

    def convert(value: Any) -> Decimal:
        if not isinstance(value, int | Decimal | str) or isinstance(value, bool):
            _fail(value, type_)
        number = _number(value, type_)
        if number.adjusted() >= precision - scale and number:
            raise ValueFormError(f"is {number}, which has more digits than {type_} before the point")
        rounded = number.quantize(least, context=_DIGITS)
        if rounded != number:
            raise ValueFormError(f"is {number}, which has more digits than {type_} after the point")
        return rounded

    return convert


def _string(type_: str) -> Convert:
    limit = longest(type_)

    def convert(value: Any) -> str:
        if not isinstance(value, str):
            _fail(value, type_)
        if limit is not None and len(value) > limit:
            raise ValueFormError(f"has {len(value)} characters, more than {type_}")
        if not value.isascii() and any("\ud800" <= sign <= "\udfff" for sign in value):
            raise ValueFormError("is not Unicode text: it contains half of a surrogate pair")
        return value

    return convert


def _binary(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise ValueFormError("is not base64, the form of a BINARY") from None


def _time(type_: str) -> Convert:
    def convert(value: Any) -> date | datetime:
        if not isinstance(value, str):
            _fail(value, type_)
        try:
            if type_ == "DATE":
                return date.fromisoformat(value)
            moment = datetime.fromisoformat(value)
        except ValueError:
            how = "2024-01-31" if type_ == "DATE" else "2024-01-31T12:00:00Z"
            raise ValueFormError(f"is {value[:40]!r}, not a {type_} such as {how!r}") from None
        if type_ == "TIMESTAMP":  # without a zone: UTC, as everywhere in mzplan
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        if moment.tzinfo is not None:
            raise ValueFormError(f"is {value[:40]!r}, but a TIMESTAMP_NTZ has no time zone")
        return moment

    return convert


def _array(type_: str, convert: Convert) -> Convert:
    def converted(value: Any) -> list[Any]:
        if not isinstance(value, list):
            _fail(value, type_)
        return [_convert_at(f"[{i}]", convert, item) for i, item in enumerate(value)]

    return converted


def _map(type_: str) -> Convert:
    key_type, value_type = map_types(type_)
    key, value_of = _of_text(key_type), _nullable(_of_json(value_type))

    def convert(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, dict):
            _fail(value, type_)
        return [(_convert_at(f".{k}", key, k), _convert_at(f".{k}", value_of, v)) for k, v in value.items()]

    return convert


def _struct(type_: str, fields: tuple[Column, ...]) -> Convert:
    converters = {field.name: converter(field, text=False) for field in fields}

    def convert(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            _fail(value, type_)
        unknown = next((key for key in value if key not in converters), None)
        if unknown is not None:
            raise ValueFormError(f"has {unknown!r}, which is not one of its fields")
        return {
            name: _convert_at(f".{name}", convert_field, value.get(name))
            for name, convert_field in converters.items()
        }

    return convert


def _convert_at(path: str, convert: Convert, value: Any) -> Any:
    try:
        return convert(value)
    except ValueFormError as problem:
        raise ValueFormError(str(problem), f"{path}{problem.path}") from None
