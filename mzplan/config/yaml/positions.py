"""Finds the positions of keys and values in a second pass over a file, for errors and edits.

`find` and `scalars_on` return lines and columns; `compose` returns one resource as a tree of nodes. They keep
only the positions that the caller needs, so an error in a large file costs time, but little memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from yaml.events import AliasEvent, MappingStartEvent, ScalarEvent

from mzplan.config.findings import Path, Span
from mzplan.config.yaml.events import span_of, walk


@dataclass(frozen=True, slots=True)
class WrittenEntry:
    """A key (None for a list item or the document) and its value, as written."""

    key: Span | None
    value: Span
    text: str | None  # a scalar's value; None for other values


def find(text: str, paths: Iterable[Path]) -> dict[Path, WrittenEntry]:
    """Return the entries at these paths and at each path above them. Of repeated keys, the first counts.

    A path below an alias or a merge has no entry, because the file only has the alias there.
    """
    wanted: set[Path] = {()} | {path[:length] for path in paths for length in range(1, len(path) + 1)}
    places: dict[Path, WrittenEntry] = {}
    for visit in walk(text):
        path, key, event = visit
        if path in wanted and path not in places and not visit.is_end:
            value = event.value if isinstance(event, ScalarEvent) else None
            places[path] = WrittenEntry(span_of(key) if key is not None else None, span_of(event), value)
            if len(places) == len(wanted):
                break
    return places


def scalars_on(text: str, lines: Mapping[int, int]) -> Iterator[tuple[Path, Span, str]]:
    """Return the path, place and value of every scalar that touches one of the lines.

    `lines`: by line number from 0, how many of its columns count.
    """
    last = max(lines.items(), default=(-1, 0))
    for path, _, event in walk(text):
        if (event.start_mark.line, event.start_mark.column) >= last:
            return
        if isinstance(event, ScalarEvent):
            span = span_of(event)
            if span.line in lines or any(line in lines for line in range(span.line + 1, span.end_line + 1)):
                yield path, span, event.value


def offset_span(lines: list[str], found: WrittenEntry, offset: int, length: int = 1) -> Span:
    """Return where the character at `offset` of a scalar's value is written.

    Returns the span of the whole scalar if that isn't known, as with escapes or filled-in variables.
    """
    span, value = found.value, found.text or ""
    line, column = span.line, span.column
    opening = lines[line][column : column + 1] if line < len(lines) else ""
    if opening in ("'", '"'):
        column += 1
    elif opening in ("|", ">"):
        line, column = line + 1, 0
    # Walk through the value and the written text together. YAML may fold white space, so skip it.
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
    """Return the place of the first character at or after (line, column) that isn't white space."""
    while line < len(lines):
        text = lines[line]
        while column < len(text):
            if not text[column].isspace():
                return line, column
            column += 1
        line, column = line + 1, 0
    return line, column


# An anchor or a tag in front of a node.
_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)+")


@dataclass(slots=True)
class Node:
    """A value as written.

    - `start`, `end`: offsets of characters, the end exclusive. A block collection ends with its last value.
    - `text`: a scalar's value.
    - `style`: the quote around a scalar.
    """

    kind: Literal["scalar", "list", "map", "alias"]
    start: int
    end: int
    flow: bool = False
    text: str = ""
    style: str = ""
    entries: list[Entry] = field(default_factory=list)

    def entry(self, key: str) -> Entry | None:
        """Return the mapping's own entry for a key, not one from a merge."""
        return next((e for e in self.entries if e.key is not None and e.key.text == key), None)


@dataclass(slots=True)
class Entry:
    """A key (None: an item of a list) and its value."""

    key: Node | None
    value: Node

    @property
    def start(self) -> int:
        return self.key.start if self.key is not None else self.value.start


def compose(text: str, section: str, name: str) -> Entry | None:
    """Return the entry of a resource; None if the file has none of this name."""
    resource: Entry | None = None
    above: list[Node] = []
    for visit in walk(text):
        path, key, event = visit
        if path[:2] != (section, name):
            continue
        if visit.is_end:
            node = above.pop()
            if node.flow:
                node.end = event.end_mark.index
            elif node.entries:
                node.end = node.entries[-1].value.end
        else:
            node = _node(text, event)
            entry = Entry(_node(text, key) if key is not None else None, node)
            if above:
                above[-1].entries.append(entry)
            else:
                resource = entry
            if node.kind in ("map", "list"):
                above.append(node)
        if not above:
            return resource
    return None


def properties_before(text: str, node: Node) -> str:
    """Return the anchor and the tag in front of a value, with the space after them."""
    match = _PROPERTIES.match(text, node.start, node.end)
    return match.group() if match else ""


def _node(text: str, event: Any) -> Node:
    """Return the node that begins with this event, still without its content."""
    start, end = event.start_mark.index, event.end_mark.index
    if isinstance(event, AliasEvent):
        return Node("alias", start, end)
    if isinstance(event, ScalarEvent):
        if event.style in ("|", ">"):  # the parser's end is past the lines that follow it
            end = start + len(text[start:end].rstrip())
        return Node("scalar", start, end, text=event.value, style=event.style or "")
    kind: Literal["map", "list"] = "map" if isinstance(event, MappingStartEvent) else "list"
    return Node(kind, start, end, flow=bool(event.flow_style))
