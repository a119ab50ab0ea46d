"""Names of PostgreSQL's objects, and the formats (`format`) of the properties that hold them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

_MAX_BYTES = 63
_PART = r'"(?:[^"]|"")+"|[^."\s](?:[^."]*[^."\s])?'
_TABLE = re.compile(rf"(?:({_PART})\.)?({_PART})")

CUT = f"PostgreSQL cuts names to {_MAX_BYTES} bytes, and the cut name may be another object's."


def table_parts(table: str) -> list[str]:
    """Split a table's name at its dot, and remove the quotes: `public."a.b"` → `["public", "a.b"]`.

    Returns text that isn't the name of a table as it is.
    """
    found = _TABLE.fullmatch(table)
    return [_unquoted(part) for part in found.groups() if part is not None] if found else [table]


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part.startswith('"') else part


def too_long(names: Sequence[str]) -> list[str]:
    """Return the names that PostgreSQL cuts."""
    return [name for name in names if len(name.encode()) > _MAX_BYTES]


# By format, the names in a text of this format.
_NAMES_IN: Mapping[str, Callable[[str], list[str]]] = {
    "postgres-name": lambda text: [text],
    "postgres-table": table_parts,
}


def _accepts(names_in: Callable[[str], list[str]]) -> Callable[[str], bool]:
    """Return the check of a format. Only the query's process knows the value of a secret reference."""
    return lambda text: "${" in text or not too_long(names_in(text))


FORMATS = {name: _accepts(names_in) for name, names_in in _NAMES_IN.items()}
"""The check of each format, for the validators."""


def identity(format_: str, text: str) -> tuple[str, ...]:
    """Return what two texts of this format have in common if they name one object.

    A table without a schema is assumed to be in `public`.
    """
    names = _NAMES_IN[format_](text) if format_ in _NAMES_IN else [text]
    return ("public", *names)[-2:] if format_ == "postgres-table" else tuple(names)


def shorten_hint(format_: str, text: str) -> str:
    """Return how to mend a text that isn't of this format."""
    return f"shorten it: {' and '.join(map(size_of, too_long(_NAMES_IN[format_](text))))}."


def size_of(name: str) -> str:
    """Return a name with its size, for people."""
    return f"{name} has {len(name.encode())} bytes"
