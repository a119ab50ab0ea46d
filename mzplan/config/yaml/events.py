"""The YAML parser's events, one by one or by the path of each value; and the values of plain scalars.

Scalars are those of YAML 1.2's core schema: `yes`, `on` and dates stay text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml
from yaml.events import (
    AliasEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from mzplan.config.findings import Path, Span


def events(text: str) -> Iterator[Any]:
    """Yield every event of the text. Raises yaml.YAMLError if the text is broken.

    PyYAML's C parser makes the events. If PyYAML was built without it, its Python parser does, about ten
    times slower.
    """
    return yaml.parse(text, Loader=yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader)


def span_of(event: Any) -> Span:
    """Return where an event is written; for the start of a block or flow collection, its first character."""
    start, end = event.start_mark, event.end_mark
    if isinstance(event, MappingStartEvent | SequenceStartEvent):
        return Span(start.line, start.column, start.line, start.column + 1)
    return Span(start.line, start.column, end.line, end.column)


class Visit(NamedTuple):
    """A value in a text: its path, the event of its key (None without one), and its event.

    A collection has two visits, for its first and its last event.
    """

    path: Path
    key: Any
    event: Any

    @property
    def is_end(self) -> bool:
        return isinstance(self.event, MappingEndEvent | SequenceEndEvent)


@dataclass(slots=True)
class _Level:
    """A collection on the path to the current value.

    `key`: the key of the next value; None before a mapping's key, and for the document.
    """

    path: Path
    is_map: bool
    key: str | int | None = None
    key_event: Any = None

    def visit(self, event: Any) -> Visit:
        return Visit(self.path if self.key is None else (*self.path, self.key), self.key_event, event)

    def advance(self) -> None:
        """Go to the next item or key. A collection in place of a key counts as the key `?`."""
        if self.is_map:
            self.key = "?" if self.key is None else None
            self.key_event = None
        elif isinstance(self.key, int):
            self.key += 1


def walk(text: str) -> Iterator[Visit]:
    """Yield every value of the text in order, up to the place where the text is broken."""
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
    except yaml.YAMLError:
        return


_WORDS: dict[str, Any] = {
    "": None,
    "~": None,
    **dict.fromkeys(("null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
# A plain scalar with another first character is text. This check avoids the slower patterns below.
SPECIAL_START = frozenset("0123456789+-.tTfFnN~")
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_LARGEST = 2**63 - 1
_MAX_DIGITS = 100

TAGS = {f"tag:yaml.org,2002:{name}": name for name in ("str", "int", "float", "bool", "null", "seq", "map")}


class ScalarError(ValueError):
    """A scalar without a valid value. The text completes \"This is …\" in a message."""


def resolve(text: str) -> Any:
    """Return the value of a plain scalar: `"5"` → 5, `"true"` → True, `""` → None, `"yes"` → `"yes"`.

    Raises ScalarError for a number without a finite 64-bit value.
    """
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in SPECIAL_START:
        return text
    if _INTEGER.fullmatch(text):
        number = _integer(text)
        if number is None:
            raise ScalarError("a whole number of more than 64 bits: quote it if it is text")
        return number
    if _NOT_FINITE.fullmatch(text):
        raise ScalarError("infinity or not a number, which isn't allowed here: quote it if it is text")
    if len(text) <= _MAX_DIGITS and _FLOAT.fullmatch(text):
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise ScalarError("a number that is too large: quote it if it is text")
        return value
    return text


def loses_digits(value: Any, text: str) -> bool:
    """Return whether the number that `resolve` gives for a text prints as another text: 010, 1.10, 1e3."""
    return isinstance(value, int | float) and not isinstance(value, bool) and str(value) != text


def resolve_tagged(text: str, kind: str) -> Any:
    """Return the value of a scalar with a tag of YAML's core schema, such as `!!int "5"`.

    Raises ScalarError for a text that doesn't fit the tag.
    """
    if kind == "str":
        return text
    value = resolve(text)
    wanted = {"int": (int,), "float": (int, float), "bool": (bool,), "null": (type(None),)}.get(kind, ())
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind in ("int", "float")):
        raise ScalarError(f"not a value of the tag !!{kind}")
    return float(text) if kind == "float" else value


def _integer(text: str) -> int | None:
    if len(text) > _MAX_DIGITS:
        return None
    number = int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    return number if -_LARGEST - 1 <= number <= _LARGEST else None


def document(value: Any) -> str:
    """Return the value in block style, in its own order, ending in a newline."""
    text: str = yaml.safe_dump(
        value, sort_keys=False, allow_unicode=True, default_flow_style=False, width=100
    )
    return text
