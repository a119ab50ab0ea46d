"""Builds plain dicts, lists and scalars from a YAML parser's events, within limits.

It doesn't recurse, and keeps neither nodes nor positions, so a large project loads quickly. Only its own
findings, such as a repeated key, have a position at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from mzplan.config.documents import MAX_NODES, Document
from mzplan.config.findings import Findings, Location, Path, SourceFile
from mzplan.config.project_files import SECTIONS
from mzplan.config.yaml.events import (
    SPECIAL_START,
    TAGS,
    ScalarError,
    events,
    loses_digits,
    resolve,
    resolve_tagged,
    span_of,
)
from mzplan.model.address import Address, is_valid_name
from mzplan.model.words import did_you_mean, shown, unusable_character

MAX_DEPTH = 64
MAX_REPEATED = 1_000_000  # keys and values of one file that aliases and merges repeat


class StopError(Exception):
    """The file can't be read any further. The reason has been reported."""


@dataclass(slots=True)
class _Frame:
    """A mapping or sequence that is being filled, its container, and its anchor."""

    container: Any
    key: Any
    anchor: str | None
    started: int
    merges: list[dict[str, Any]] | None = None


# In place of a key: the mapping has no key yet; the value is to be merged; the value is to be dropped.
_NONE_YET, _MERGE, _TWICE = None, object(), object()


def _fills_text(path: Path) -> bool:
    """Return whether a value belongs to a variable or a `for_each`, so that it may be filled into text."""
    section, inner = path[:1], path[2:3]
    return (
        section == ("variables",)
        or (section == ("environments",) and inner == ("variables",))
        or inner == ("for_each",)
    )


class Builder:
    def __init__(self, file: SourceFile, findings: Findings):
        self.file = file
        self.findings = findings
        self.document = Document(file)
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.words: dict[str, str] = {}  # each key once in memory, however often it is used
        self.nodes = self.repeated = 0
        self.most = MAX_NODES - findings.nodes

    def build(self, text: str) -> None:
        """Set `document.data`. Raises StopError, or yaml.YAMLError if the text is broken.

        The loop itself handles plain scalars, which are most of a file; methods handle other events.
        """
        frames: list[_Frame] = []
        container: Any = []  # the document's own place
        key: Any = 0
        for event in events(text):
            cls = event.__class__
            if cls is ScalarEvent:
                self.nodes += 1
                if key is _NONE_YET:
                    key = self._key(event, container, frames)
                    continue
                value = event.value
                if event.anchor is not None or event.tag is not None or not value.isprintable():
                    value = self._scalar(event, frames, key)
                elif event.implicit[0] and (not value or value[0] in SPECIAL_START):
                    value = self._resolve(event, "", frames, key)
            elif cls is MappingStartEvent or cls is SequenceStartEvent:
                frames.append(_Frame(container, key, event.anchor, self.nodes + self.repeated))
                container, key = self._start(event, key, len(frames))
                continue
            elif cls is MappingEndEvent or cls is SequenceEndEvent:
                frame = frames.pop()
                if frame.merges is not None:
                    self._merge(container, frame.merges)
                value, container, key = container, frame.container, frame.key
                if frame.anchor is not None:
                    self.anchors[frame.anchor] = (value, self.nodes + self.repeated - frame.started)
            elif cls is AliasEvent:
                value = self._alias(event, key)
            else:
                if cls is DocumentStartEvent and container:
                    self._stop(event, "MZ002.several-documents")
                continue
            if self.nodes + self.repeated > self.most:
                self._report_too_many(event)
            if value.__class__ is str and "${" in value and key is not _TWICE and key is not _MERGE:
                self.document.references.append((container, key))
            if container.__class__ is list:
                container.append(value)
                key += 1
                continue
            if key is _MERGE:
                self._note_merge(event, frames[-1], value)
            elif key is not _TWICE:
                container[key] = value
            key = _NONE_YET
        self.document.data = container[0] if container else None
        self.findings.nodes += self.nodes + self.repeated

    def _start(self, event: Any, key: Any, depth: int) -> tuple[Any, Any]:
        """Return a new container, and its first key."""
        self.nodes += 1
        if key is _NONE_YET:
            self._stop(event, "MZ002.key-not-word")
        if depth > MAX_DEPTH:
            self._stop(event, "MZ007.depth", most=MAX_DEPTH)
        is_map = event.__class__ is MappingStartEvent
        if event.tag is not None and TAGS.get(event.tag) != ("map" if is_map else "seq"):
            self._report_tag(event)
        return ({}, _NONE_YET) if is_map else ([], 0)

    def _key(self, event: Any, container: dict[str, Any], frames: list[_Frame]) -> Any:
        word = self.words.setdefault(event.value, event.value)
        if word in container or word == "<<" or event.anchor or event.tag or not word.isprintable():
            return self._special_key(event, container, frames)
        return word

    def _special_key(self, event: Any, container: dict[str, Any], frames: list[_Frame]) -> Any:
        """Handle a merge, a repeated key, and a key with an anchor or a tag."""
        word: str = event.value
        if event.anchor is not None:
            self.anchors[event.anchor] = (word, 1)
        if event.tag is not None and TAGS.get(event.tag) != "str":
            self._report_tag(event)
        if unusable_character(word):
            self._stop(event, "MZ002.key-control-character")
        if word == "<<" and event.implicit[0]:
            return _MERGE
        if word in container:
            self._report_twice(event, (*(frame.key for frame in frames[1:]), word))
            return _TWICE
        return word

    def _report_twice(self, event: Any, path: tuple[str | int, ...]) -> None:
        word, kind = str(path[-1]), SECTIONS.get(str(path[0]))
        is_resource = len(path) == 2 and kind is not None and is_valid_name(word)
        address = Address(kind, word) if is_resource and kind is not None else None
        self.findings.add(
            "MZ003.resource" if is_resource else "MZ003.key",
            Location(self.file),
            address=address,
            span=span_of(event),
            related=Location(self.file, path, at_key=True),
            word=word,
        )

    def _scalar(self, event: Any, frames: list[_Frame], key: Any) -> Any:
        """Return a scalar with an anchor, a tag or unprintable characters."""
        value = event.value
        kind = TAGS.get(event.tag or "", "")
        if event.tag not in (None, "!") and kind in ("", "map", "seq"):
            self._report_tag(event)
        if bad := unusable_character(value):
            self._bad(event, "MZ002.text-control-character", character=ord(bad))
            value = ""
        elif kind or (event.implicit[0] and event.tag is None):
            value = self._resolve(event, kind, frames, key)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, 1)
        return value

    def _resolve(self, event: Any, kind: str, frames: list[_Frame], key: Any) -> Any:
        try:
            if kind:
                return resolve_tagged(event.value, kind)
            value = resolve(event.value)
        except ScalarError as failure:
            self._bad(event, "MZ002.unusable-scalar", failure=failure)
            return 0
        if not loses_digits(value, event.value):
            return value
        path = (*(frame.key for frame in frames[1:]), key)
        self.findings.original_texts[self.file.full_path, path] = event.value
        return event.value if _fills_text(path) else value

    def _alias(self, event: Any, key: Any) -> Any:
        if key is _NONE_YET:
            self._stop(event, "MZ002.alias-key")
        if event.anchor not in self.anchors:
            near = did_you_mean(event.anchor, self.anchors, shown)
            self._stop(event, "MZ002.near-alias" if near else "MZ002.alias", name=event.anchor, near=near)
        value, size = self.anchors[event.anchor]
        # Aliases share memory, but code that walks through the data visits each use.
        self.repeated += size
        if self.repeated > MAX_REPEATED:
            self._report_too_many(event)
        return value

    def _note_merge(self, event: Any, frame: _Frame, value: Any) -> None:
        """Note the mappings of `<<`. They are merged when the mapping ends, and its own keys win."""
        merged = value if isinstance(value, list) else [value]
        if not all(isinstance(mapping, dict) for mapping in merged):
            self._bad(event, "MZ002.merge")
            return
        frame.merges = [*(frame.merges or []), *merged]

    def _merge(self, container: dict[str, Any], merges: list[dict[str, Any]]) -> None:
        for merged in merges:
            self.repeated += len(merged)
            for word, inner in merged.items():
                if word not in container:
                    container[word] = inner
                    if isinstance(inner, str) and "${" in inner:
                        self.document.references.append((container, word))

    def _bad(self, event: Any, message: str, **values: Any) -> None:
        self.findings.add(message, Location(self.file), span=span_of(event), **values)

    def _report_too_many(self, event: Any) -> NoReturn:
        self._stop(event, "MZ007.values", most=MAX_NODES, most_repeated=MAX_REPEATED)

    def _report_tag(self, event: Any) -> None:
        self._stop(event, "MZ002.tag", tag=event.tag.replace("tag:yaml.org,2002:", "!!"))

    def _stop(self, event: Any, message: str, **values: Any) -> NoReturn:
        self._bad(event, message, **values)
        raise StopError
