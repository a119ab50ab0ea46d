"""One resource of a file as a tree of nodes with exact places: what an edit of the text needs to know."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from mzplan.config.yaml.events import AliasEvent, MappingStartEvent, ScalarEvent, walk

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
    """The anchor and the tag that are written in front of a value, with the space after them."""
    found = _PROPERTIES.match(text, node.start, node.end)
    return found.group() if found else ""


def _node(text: str, event: Any) -> Node:
    """What begins with this event, still without what is in it."""
    start, end = event.start_mark.index, event.end_mark.index
    if isinstance(event, AliasEvent):
        return Node("alias", start, end)
    if isinstance(event, ScalarEvent):
        if event.style in ("|", ">"):  # the parser's end is past the lines that follow it
            end = start + len(text[start:end].rstrip())
        return Node("scalar", start, end, text=event.value, style=event.style or "")
    kind: Literal["map", "list"] = "map" if isinstance(event, MappingStartEvent) else "list"
    return Node(kind, start, end, flow=bool(event.flow_style))
