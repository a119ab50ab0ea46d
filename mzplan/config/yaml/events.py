"""The YAML parser's events, one by one or by the path of each value; its errors in plain words.

The only module that uses yaml.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from mzplan.config.findings import Path, Span

__all__ = [
    "AliasEvent",
    "DocumentStartEvent",
    "MappingEndEvent",
    "MappingStartEvent",
    "ScalarEvent",
    "SequenceEndEvent",
    "SequenceStartEvent",
    "Visit",
    "YamlError",
    "events",
    "explain",
    "span_of",
    "walk",
]


class YamlError(Exception):
    """Text that is not YAML, with what the parser says of it."""

    def __init__(self, problem: str, context: str, problem_mark: Any, context_mark: Any):
        super().__init__(problem)
        self.problem, self.context = problem, context
        self.problem_mark, self.context_mark = problem_mark, context_mark


def parser_class() -> Any:
    """PyYAML's C parser, or the pure-Python one (some ten times slower) where it was built without."""
    if yaml.__with_libyaml__:
        from yaml._yaml import CParser

        return CParser
    from yaml.parser import Parser
    from yaml.reader import Reader
    from yaml.scanner import Scanner

    class PythonParser(Reader, Scanner, Parser):
        def __init__(self, text: str):
            Reader.__init__(self, text)
            Scanner.__init__(self)
            Parser.__init__(self)

    return PythonParser


def events(text: str) -> Iterator[Any]:
    """Every event of the text. Raises YamlError where it is broken."""
    try:
        get_event = parser_class()(text).get_event
        while (event := get_event()) is not None:
            yield event
    except yaml.MarkedYAMLError as failure:
        raise YamlError(
            failure.problem or "", failure.context or "", failure.problem_mark, failure.context_mark
        ) from None
    except yaml.YAMLError as failure:
        raise YamlError(str(failure), "", None, None) from None


def span_of(event: Any) -> Span:
    """Where an event is written; for the start of a block or flow collection, its first character."""
    start, end = event.start_mark, event.end_mark
    if isinstance(event, MappingStartEvent | SequenceStartEvent):
        return Span(start.line, start.column, start.line, start.column + 1)
    return Span(start.line, start.column, end.line, end.column)


class Visit(NamedTuple):
    """A value on the way through a text: the event with which it begins (a collection has one more, with
    which it ends), and the event of its key, None for what has none."""

    path: Path
    key: Any
    event: Any

    @property
    def is_end(self) -> bool:
        return isinstance(self.event, MappingEndEvent | SequenceEndEvent)


@dataclass(slots=True)
class _Level:
    """A collection on the way down. `key` is that of the next value: None where a mapping's key comes first,
    and of the document, whose value has none."""

    path: Path
    is_map: bool
    key: str | int | None = None
    key_event: Any = None

    def visit(self, event: Any) -> Visit:
        return Visit(self.path if self.key is None else (*self.path, self.key), self.key_event, event)

    def advance(self) -> None:
        """To the next item, or to the next key. (A collection as a key ends here too: it has no name.)"""
        if self.is_map:
            self.key = "?" if self.key is None else None
            self.key_event = None
        elif isinstance(self.key, int):
            self.key += 1


def walk(text: str) -> Iterator[Visit]:
    """Every value of the text in order. Ends quietly where the text is broken."""
    levels = [_Level((), is_map=False)]
    try:
        for event in events(text):
            level = levels[-1]
            if isinstance(event, ScalarEvent) and level.is_map and level.key is None:
                level.key, level.key_event = event.value, event
            elif isinstance(event, ScalarEvent | AliasEvent):
                yield level.visit(event)
                level.advance()
            elif isinstance(event, MappingStartEvent | SequenceStartEvent):
                yield (visit := level.visit(event))
                is_map = isinstance(event, MappingStartEvent)
                levels.append(_Level(visit.path, is_map, None if is_map else 0))
            elif isinstance(event, MappingEndEvent | SequenceEndEvent):
                levels.pop()
                yield levels[-1].visit(event)
                levels[-1].advance()
    except YamlError:
        return


class _Words(NamedTuple):
    summary: str
    detail: str
    hint: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """A broken place: (summary, detail, hint), and where."""

    words: _Words
    span: Span


# What the parsers (both word alike) say → what a person needs to know. The first that is contained wins.
# `True`: point to where the broken thing begins, not to where the parser gave up.
_PROBLEMS: tuple[tuple[str, bool, str, str], ...] = (
    (
        "quoted scalar",
        True,
        "A quote is opened here and never closed.",
        "close the quote.",
    ),
    (
        "tab character",
        False,
        "Lines may not be indented with tabs.",
        "indent with spaces.",
    ),
    (
        "character that cannot start any token",
        False,
        "No value may begin with this character.",
        "put the value in quotes; indent with spaces, not tabs.",
    ),
    (
        "mapping values are not allowed",
        False,
        "A colon is not allowed here.",
        "put the value in quotes if the colon belongs to it; else check the indentation.",
    ),
    (
        "could not find expected ':'",
        True,
        "This line looks like a key, but no colon follows it.",
        "write `key: value`, with a space after the colon.",
    ),
    (
        "block sequence entries are not allowed",
        False,
        "A list item is not allowed here.",
        "begin the list on a line of its own, below its key.",
    ),
    (
        "flow sequence",
        True,
        "The list that begins here is not closed, or a comma is missing in it.",
        "close it with `]`, and separate its items with commas.",
    ),
    (
        "flow mapping",
        True,
        "The mapping that begins here is not closed, or a comma is missing in it.",
        "close it with `}`, and separate its keys with commas.",
    ),
    (
        "flow node",
        False,
        "A value is missing here, or a bracket above is not closed.",
        "write the value, or close the bracket.",
    ),
    (
        "unknown escape character",
        False,
        "This is no escape that YAML knows.",
        "write a backslash as \\\\ inside double quotes, or use single quotes.",
    ),
    (
        "block mapping",
        False,
        "A key was expected here.",
        "indent all keys of one mapping alike, and close what is open above.",
    ),
    (
        "block collection",
        False,
        "A list item (`- …`) was expected here.",
        "indent all items of one list alike.",
    ),
    (
        "did not find expected <document start>",
        False,
        "Something follows where the document has ended.",
        "check the indentation, and remove what does not belong here.",
    ),
)


def explain(failure: YamlError) -> Explanation:
    """A parser's error as summary, detail and hint, and the place to point to."""
    wording = f"{failure.context} {failure.problem}"
    mark = failure.problem_mark or failure.context_mark
    detail = f"The parser says: {failure.problem or 'not YAML'}."
    hint = "check the indentation, quotes and brackets here and on the lines above."
    for part, at_start, plain, fix in _PROBLEMS:
        if part in wording:
            detail, hint = plain, fix
            if at_start and failure.context_mark is not None:
                mark = failure.context_mark
            break
    if mark is None:
        return Explanation(_Words("Broken YAML", detail, hint), Span(0, 0, 0, 1))
    span = Span(mark.line, mark.column, mark.line, mark.column + 1)
    return Explanation(_Words("Broken YAML", detail, hint), span)


def document(value: Any) -> str:
    """The value in block style, in its own order, ending in a newline."""
    text: str = yaml.safe_dump(
        value, sort_keys=False, allow_unicode=True, default_flow_style=False, width=100
    )
    return text
