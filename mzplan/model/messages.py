"""The texts of messages: the tables in mzplan/messages, with one file for each section of docs/errors.md.

A message is named by its code, as in `MZ002`, or by its code and a variant, as in `MZ002.tag`, if a code has
several texts. The texts have placeholders:

- `{name}`: a value, as text.
- `{name:FORMAT}`: a value in a format below, `{number:count query}` for `2 queries`, or a format of Python.
- `{name|text}`: the text stands for an empty value.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from mzplan.model.words import count, joined, kind_of, listed, shown

_FOLDER = Path(__file__).parent.parent / "messages"
# Neither `${env:NAME}` nor `{type: kafka}` is a placeholder.
PLACEHOLDER = re.compile(
    r"(?<!\$)\{(?P<name>[a-z]\w*)(?::(?P<format>[^\s{}|][^{}|]*))?(?:\|(?P<empty>[^{}]*))?\}"
)


_FORMATS: Mapping[str, Callable[[Any], str]] = {
    "": str,
    "and": lambda names: joined(names, "and"),
    "kind": kind_of,
    "list": lambda names: ", ".join(map(str, names)),
    "listed": listed,
    "or": lambda names: joined(names, "or"),
    "plain": lambda value: shown(value, quote=False),
    "r": repr,
    "shown": shown,
}


def row(message: str) -> Mapping[str, str]:
    """Return the texts of a message. Raises KeyError."""
    code, _, variant = message.partition(".")
    entry = section(code)[code]
    found: Mapping[str, str] = entry[variant] if variant else entry
    return found


def filled(text: str, values: Mapping[str, object]) -> str:
    """Return a text with values in place of its placeholders."""
    return PLACEHOLDER.sub(lambda match: _formatted(match, values), text)


def section(code: str) -> Mapping[str, Any]:
    """Return the section of a code: its name as `section`, and a table for each code."""
    return read_section(section_files()[bisect(section_files(), f"{code[2:]}~") - 1])


@cache
def section_files() -> Sequence[str]:
    """Return the names of the files, which begin with their first code, in order."""
    return sorted(path.name for path in _FOLDER.glob("*.toml"))


@cache
def read_section(file: str) -> Mapping[str, Any]:
    import tomllib  # most commands show no message

    return tomllib.loads((_FOLDER / file).read_text(encoding="utf-8"))


def _formatted(match: re.Match[str], values: Mapping[str, object]) -> str:
    value: Any = values[match["name"]]
    format_ = match["format"] or ""
    if match["empty"] is not None and not value:
        return match["empty"]
    if format_.startswith("count "):
        return count(value, *format_.removeprefix("count ").split("/"))
    if format_.startswith("listed "):
        return listed(value, int(format_.removeprefix("listed ")))
    return _FORMATS[format_](value) if format_ in _FORMATS else format(value, format_)
