"""YAML 1.2 core schema: what a plain scalar means. `yes`, `on` and dates stay text."""

from __future__ import annotations

import re
from typing import Any

_WORDS: dict[str, Any] = {
    "": None,
    "~": None,
    **dict.fromkeys(("null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
# A plain scalar that starts with anything else is text: most never meet the patterns below.
SPECIAL_START = frozenset("0123456789+-.tTfFnN~")
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_LARGEST = 2**63 - 1
_MAX_DIGITS = 100

TAGS = {f"tag:yaml.org,2002:{name}": name for name in ("str", "int", "float", "bool", "null", "seq", "map")}


class ScalarError(ValueError):
    """A scalar that has no value here; the text says why, for a person."""


def resolve(text: str) -> Any:
    """`"5"` → 5, `"true"` → True, `""` → None, `"yes"` → `"yes"`. Raises ScalarError for a number without
    a finite 64-bit value."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in SPECIAL_START:
        return text
    if _INTEGER.fullmatch(text):
        number = _integer(text)
        if number is None:
            raise ScalarError("a whole number of more than 64 bits: quote it if it is text")
        return number
    if _NOT_FINITE.fullmatch(text):
        raise ScalarError("infinity and not-a-number are no values here: quote it if it is text")
    if len(text) <= _MAX_DIGITS and _FLOAT.fullmatch(text):
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise ScalarError("a number that is too large: quote it if it is text")
        return value
    return text


def resolve_tagged(text: str, kind: str) -> Any:
    """The value of a scalar with a core tag, as `!!int "5"`. Raises ScalarError when it is none."""
    if kind == "str":
        return text
    value = resolve(text)
    wanted = {"int": (int,), "float": (int, float), "bool": (bool,), "null": (type(None),)}.get(kind, ())
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind in ("int", "float")):
        raise ScalarError(f"not a value of the tag !!{kind}")
    return float(text) if kind == "float" else value


def _integer(text: str) -> int | None:
    if len(text) > _MAX_DIGITS:
        return None
    number = int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    return number if -_LARGEST - 1 <= number <= _LARGEST else None
