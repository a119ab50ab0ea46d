"""Printable text: long values are cut, control characters escaped, and colours added only on request."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection, Sequence
from difflib import unified_diff
from typing import TYPE_CHECKING, Any

from mzplan.model.words import changed_parts, ends, escaped, safe

if TYPE_CHECKING:
    from mzplan.model.plan import FieldChange

__all__ = [
    "MAX_SERVER_VALUE",
    "MAX_VALUE",
    "Paint",
    "aligned_lines",
    "brief",
    "cut",
    "edit_of",
    "elided",
    "full_length",
    "paragraph",
    "safe",
    "safe_json",
    "value",
]
MAX_VALUE = 80
MAX_SERVER_VALUE = 300  # characters of a value that names a server; a host name has at most 253
MAX_LINES = 500  # longer text isn't compared line by line
_MAX_MESSAGE = 20_000  # characters of a message; enough for a table with hundreds of columns
_SERVER = re.compile(r'"?[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*')
_COLOURS = {
    "green": "32",
    "yellow": "33",
    "red": "31",
    "cyan": "36",
    "bold": "1",
    "dim": "2",
    "magenta": "35",
}


class Paint:
    """Colours text with plain ANSI codes, or leaves it unchanged."""

    def __init__(self, colour: bool):
        self._colour = colour

    def __call__(self, text: str, *styles: str) -> str:
        if not self._colour or not styles or not text:
            return text
        codes = ";".join(_COLOURS[style] for style in styles)
        return f"\x1b[{codes}m{text}\x1b[0m"


def safe_json(text: str) -> str:
    """Escape in JSON what `safe` escapes. People see every character, and a parser gets the same values."""
    if text.isascii():
        return text
    return "".join(c if c == "\n" or escaped(c) == c else json.dumps(c)[1:-1] for c in text)


def paragraph(text: str, indent: str = "  ") -> str:
    """Indent all lines after the first, so that none looks like a line of another kind."""
    return f"\n{indent}".join(map(safe, cut(text, _MAX_MESSAGE).splitlines()))


def brief(text: str, length: int) -> str:
    """Return the beginning of a message on one line, for lists."""
    return cut(safe(" ".join(text.split())), length)


def cut(text: str, length: int = MAX_VALUE) -> str:
    """Return the text, or its beginning and an ellipsis."""
    return text if len(text) <= length else text[: length - 1] + "…"


def aligned_lines(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Return each row as a line, with its cells in columns. `right`: the columns aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place in right else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def elided(text: str, length: int) -> str:
    """Return the text, or its beginning and its end around an ellipsis, because the end identifies a host.

    In a URL, the path is cut. The server is shown with up to MAX_SERVER_VALUE characters.
    """
    if len(text) <= length:
        return text
    if server := _SERVER.match(text):
        shown = ends(server[0], MAX_SERVER_VALUE)
        return shown + ends(text[server.end() :], max(1, length - len(shown)))
    return ends(text, length)


def value(leaf: Any, length: int = MAX_VALUE) -> str:
    """Format a leaf's value on one line. Text is quoted only if it could be mistaken for another type."""
    if isinstance(leaf, str):
        return elided(f'"{safe(leaf)}"' if _needs_quotes(leaf) else safe(leaf), length)
    return elided(safe(json.dumps(leaf, ensure_ascii=False)), length)


def _needs_quotes(text: str) -> bool:
    if text != text.strip() or text in ("", "true", "false", "null", "~"):
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


def lines_of(leaf: Any) -> list[str]:
    """Return the lines of a multi-line text, made printable; none for any other value."""
    if not isinstance(leaf, str) or "\n" not in leaf.strip("\n") or leaf.count("\n") > MAX_LINES:
        return []
    return [safe(line) for line in leaf.rstrip("\n").split("\n")]


def lines_changed(before: Any, after: Any) -> list[str]:
    """Return the differing lines of two multi-line texts, as `- line` and `+ line`; none for other values."""
    lines = lines_of(before), lines_of(after)
    if not all(lines):
        return []
    differing = list(unified_diff(*lines, n=0, lineterm=""))[2:]
    return [f"{line[0]} {line[1:]}" for line in differing if not line.startswith("@@")]


def full_length(field: FieldChange) -> int:
    """Return the length to cut a field's values to: no limit, except for a `description`, which is prose."""
    return MAX_VALUE if field.path == "description" else sys.maxsize


def edit_of(field: FieldChange, length: int | None = None) -> str:
    """Format a change on one line: `before → after`. Values are cut only if a length is given.

    Of longer text, the changed part is shown. A value without spaces may name a server, so its ends are
    shown unless they're equal.
    """
    if field.sensitive:
        return "(sensitive)"
    length = full_length(field) if length is None else length
    if field.before is None:
        return f"added {value(field.after, length)}"
    if field.after is None:
        return f"removed {value(field.before, length)}"
    old, new = value(field.before, length), value(field.after, length)
    if old == new or " " in old:
        old, new = changed_parts(value(field.before, sys.maxsize), value(field.after, sys.maxsize), length)
    return f"{old} → {new}"
