"""Where things are written: a second pass over a file, made only when there is something to point at.

Keeps the places that are wanted and nothing else, so that an error in a large file costs time, not memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from mzplan.config.findings import Path, Span
from mzplan.config.yaml.events import ScalarEvent, span_of, walk


@dataclass(frozen=True, slots=True)
class Found:
    """A key (None for a list item or the document) and its value, as written."""

    key: Span | None
    value: Span
    text: str | None  # of a scalar: its value, for finding an offset in what is written


def find(text: str, paths: Iterable[Path]) -> dict[Path, Found]:
    """The places of these paths and of every path above them; of equal keys the first.

    A path that comes in by an alias or a merge is not there: what is written is the alias.
    """
    wanted: set[Path] = {()} | {path[:length] for path in paths for length in range(1, len(path) + 1)}
    found: dict[Path, Found] = {}
    for visit in walk(text):
        path, key, event = visit
        if path in wanted and path not in found and not visit.is_end:
            value = event.value if isinstance(event, ScalarEvent) else None
            found[path] = Found(span_of(key) if key is not None else None, span_of(event), value)
            if len(found) == len(wanted):
                break
    return found


def scalars_on(text: str, lines: Mapping[int, int]) -> Iterator[tuple[Path, Span, str]]:
    """Every scalar value that touches one of the lines (number from 0 → how many columns of it count): its
    path, place and value."""
    last = max(lines.items(), default=(-1, 0))
    for path, _, event in walk(text):
        if (event.start_mark.line, event.start_mark.column) >= last:
            return
        if isinstance(event, ScalarEvent):
            span = span_of(event)
            if span.line in lines or any(line in lines for line in range(span.line + 1, span.end_line + 1)):
                yield path, span, event.value


def offset_span(lines: list[str], found: Found, offset: int, length: int = 1) -> Span:
    """Where the character at `offset` of a scalar's value is written; the whole scalar where
    that can't be known (escapes, filled-in variables)."""
    span, value = found.value, found.text or ""
    line, column = span.line, span.column
    opening = lines[line][column : column + 1] if line < len(lines) else ""
    if opening in ("'", '"'):
        column += 1
    elif opening in ("|", ">"):
        line, column = line + 1, 0
    # Both texts are walked through at once; white space may be folded, so it is passed over.
    for char in value[: max(0, offset)]:
        if char.isspace():
            continue
        line, column = _skip_space(lines, line, column)
        if line > span.end_line or lines[line][column] != char:
            return span
        column += 1
    if offset < len(value):
        line, column = _skip_space(lines, line, column)
    if line > span.end_line or line >= len(lines):
        return span
    return Span(line, column, line, column + max(1, min(length, len(value) - offset)))


def _skip_space(lines: list[str], line: int, column: int) -> tuple[int, int]:
    """The place of the first character at or after (line, column) that is no white space."""
    while line < len(lines):
        text = lines[line]
        while column < len(text):
            if not text[column].isspace():
                return line, column
            column += 1
        line, column = line + 1, 0
    return line, column
