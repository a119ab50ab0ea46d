"""One resource of a file as a tree of nodes with exact places: what an edit of the text needs to know."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from mzplan.config.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    events,
)

# An anchor or a tag in front of a node.
_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)+")


@dataclass(slots=True)
class Node:
    """A value as written. `start` and `end` are offsets of characters, the end exclusive; of a block
    collection the end is that of its last value. `text` is a scalar's value, `style` its quote."""

    kind: Literal["scalar", "list", "map", "alias"]
    start: int
    end: int
    flow: bool = False
    text: str = ""
    style: str = ""
    entries: list[Entry] = field(default_factory=list)

    def entry(self, key: str) -> Entry | None:
        """The mapping's own entry of a key (not one that a merge brings in)."""
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
    """The entry of a resource; None when the file writes out none of this name."""
    found = _at_key(events_of(text), section, name)
    if found is None:
        return None
    key, rest, first = found
    return Entry(key, _node(text, first, rest))


def properties_before(text: str, node: Node) -> str:
    """The anchor and the tag that are written in front of a value, with the space after them."""
    found = _PROPERTIES.match(text, node.start, node.end)
    return found.group() if found else ""


def events_of(text: str) -> Iterator[Any]:
    """The events of the document's content."""
    begun = False
    for event in events(text):
        if begun:
            yield event
        begun |= isinstance(event, DocumentStartEvent)


def _at_key(stream: Iterator[Any], section: str, name: str) -> tuple[Node, Iterator[Any], Any] | None:
    if not isinstance(next(stream, None), MappingStartEvent):
        return None
    for key in stream:
        if isinstance(key, MappingEndEvent):
            return None
        value = next(stream)
        if not (isinstance(key, ScalarEvent) and key.value == section):
            _skip(stream, value)
            continue
        if not isinstance(value, MappingStartEvent):
            return None
        for inner in stream:
            if isinstance(inner, MappingEndEvent):
                return None
            value = next(stream)
            if isinstance(inner, ScalarEvent) and inner.value == name:
                return _scalar(inner), stream, value
            _skip(stream, value)
    return None


def _skip(stream: Iterator[Any], event: Any) -> None:
    """Pass over the rest of a value whose first event this is."""
    depth = 0
    while True:
        if isinstance(event, MappingStartEvent | SequenceStartEvent):
            depth += 1
        elif isinstance(event, MappingEndEvent | SequenceEndEvent):
            depth -= 1
        if depth == 0:
            return
        event = next(stream)


def _scalar(event: Any) -> Node:
    return Node(
        kind="scalar",
        start=_start(event),
        end=_end(event),
        text=event.value,
        style=event.style or "",
    )


def _node(text: str, event: Any, stream: Iterator[Any]) -> Node:
    """The node that begins with this event. Recursion is bounded: the builder refuses what is deeper."""
    if isinstance(event, ScalarEvent):
        return _trimmed(text, _scalar(event))
    if isinstance(event, AliasEvent):
        return Node(kind="alias", start=_start(event), end=_end(event))
    is_map = isinstance(event, MappingStartEvent)
    node = Node(
        kind="map" if is_map else "list",
        start=_start(event),
        end=_end(event),
        flow=bool(event.flow_style),
    )
    for first in stream:
        if isinstance(first, MappingEndEvent | SequenceEndEvent):
            node.end = _end(first) if node.flow else _last_end(node)
            return node
        inner = _node(text, first, stream)
        key = inner if is_map else None
        node.entries.append(Entry(key, _node(text, next(stream), stream) if is_map else inner))
    return node


def _start(event: Any) -> int:
    return int(event.start_mark.index)


def _end(event: Any) -> int:
    return int(event.end_mark.index)


def _last_end(node: Node) -> int:
    return node.entries[-1].value.end if node.entries else node.end


def _trimmed(text: str, node: Node) -> Node:
    """A block scalar's end, as the parser tells it, is past the lines that follow it."""
    if node.style in ("|", ">"):
        node.end = node.start + len(text[node.start : node.end].rstrip())
    return node
