"""Where things are written: a second pass over a file, made only when there is something to point at.

Keeps the places that are asked for and nothing else, so that an error in a large file costs time, not memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from mzplan.config.findings import Path, Span
from mzplan.config.yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    YamlError,
    events,
    span_of,
)


@dataclass(frozen=True, slots=True)
class Found:
    """A key (None for a list item or the document) and its value, as written."""

    key: Span | None
    value: Span
    text: str | None  # of a scalar: its value, for finding an offset in what is written


@dataclass(slots=True)
class _Frame:
    """A collection on the way down. `wanted` is the part of the question that lies below it, if any."""

    is_map: bool
    wanted: Any
    key: str | int | None = None
    key_span: Span | None = None


@dataclass(slots=True)
class _Node:
    """A value met on the way: its event, its key and the frames around it."""

    event: Any
    frames: list[_Frame]
    wanted: Any = None
    key: Span | None = None

    @property
    def path(self) -> Path:
        return tuple(frame.key for frame in self.frames if frame.key is not None)


@dataclass(slots=True)
class _Wanted:
    """A tree of the paths that are asked for."""

    below: dict[str | int, _Wanted] = field(default_factory=dict)


def find(text: str, paths: Iterable[Path]) -> dict[Path, Found]:
    """The places of these paths and of every path above them; of equal keys the first.

    A path that comes in by an alias or a merge is not there: what is written is the alias.
    """
    root = _Wanted()
    count = 1
    for path in paths:
        node = root
        for key in path:
            count += key not in node.below
            node = node.below.setdefault(key, _Wanted())
    found: dict[Path, Found] = {}
    for node_met in _nodes(text, root):
        if node_met.wanted is not None:
            event = node_met.event
            value = event.value if isinstance(event, ScalarEvent) else None
            found.setdefault(node_met.path, Found(node_met.key, span_of(event), value))
            if len(found) == count:
                break
    return found


def scalars_on(text: str, lines: set[int]) -> Iterator[tuple[Path, Span, str]]:
    """Every scalar value that touches one of the lines (from 0): its path, place and value."""
    last = max(lines, default=-1)
    for node in _nodes(text, None):
        event = node.event
        if event.start_mark.line > last:
            return
        if isinstance(event, ScalarEvent):
            span = span_of(event)
            if span.line in lines or any(line in lines for line in range(span.line + 1, span.end_line + 1)):
                yield node.path, span, event.value


def _nodes(text: str, wanted: _Wanted | None) -> Iterator[_Node]:
    """Every value of a file in order. Ends quietly where the file is broken."""
    frames: list[_Frame] = []
    # The document counts as the one item of a list whose index is no part of a path.
    top = _Frame(is_map=False, wanted=None)
    try:
        for event in events(text):
            frame = frames[-1] if frames else top
            if isinstance(event, ScalarEvent) and frame.is_map and frame.key is None:
                frame.key, frame.key_span = event.value, span_of(event)
            elif isinstance(event, ScalarEvent | AliasEvent):
                yield _Node(event, frames, _below(frame, wanted, frames), frame.key_span)
                _advance(frame)
            elif isinstance(event, MappingStartEvent | SequenceStartEvent):
                inner = _below(frame, wanted, frames)
                yield _Node(event, frames, inner, frame.key_span)
                is_map = isinstance(event, MappingStartEvent)
                frames.append(_Frame(is_map, inner, None if is_map else 0))
            elif isinstance(event, MappingEndEvent | SequenceEndEvent):
                frames.pop()
                _advance(frames[-1] if frames else top)
    except YamlError:
        return


def _below(frame: _Frame, root: _Wanted | None, frames: list[_Frame]) -> _Wanted | None:
    if not frames:
        return root
    return frame.wanted.below.get(frame.key) if frame.wanted is not None else None


def _advance(frame: _Frame) -> None:
    """To the next item, or to the next key. (A collection as a key ends here too: it has no name.)"""
    if frame.is_map:
        frame.key = "?" if frame.key is None else None
        frame.key_span = None
    elif isinstance(frame.key, int):
        frame.key += 1


def offset_span(lines: list[str], found: Found, offset: int, length: int = 1) -> Span:
    """Where the character at `offset` of a scalar's value is written; the whole scalar when that can't
    be told (escapes, filled-in variables)."""
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
