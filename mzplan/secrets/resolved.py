"""The secret values that this process has resolved, and the filter that hides them in text.

Servers, drivers and libraries repeat their input in errors. So all text for people goes through `scrub`
before it leaves the process. These modules call it:

- mzplan.store for statuses and answers;
- mzplan.runner.logs for the runner's log, and mzplan.spark.process.session for Java's lines in it;
- mzplan.runner.embedded for the runner's error file;
- mzplan.cli.streams and mzplan.render.diagnostics for the errors that a command shows.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile
from urllib.parse import quote, quote_plus

from mzplan.model.diagnostics import Diagnostic

MASK = "***"
_MIN_LENGTH = 4  # characters; scrubbing shorter values would make text unreadable
_MIN_INSIDE_WORD = 8  # characters; shorter values only match whole words, because `applied` contains `app`
_TRUNCATED = 8  # characters; the shortest part of a truncated value that is hidden, if it has a digit
_TRUNCATED_WORD = 16  # the same without a digit, because a value may begin with `password`
_MAX_VALUES = 4096  # a limit, because a provider may return a new value each time

_values: dict[str, tuple[tuple[str, re.Pattern[str]], ...]] = {}  # newest last
_lock = threading.Lock()


def remember(value: str) -> None:
    """Hide this value in all text that `scrub` returns from now on."""
    with _lock:
        compiled = _values.pop(value, None)
        _values[value] = compiled if compiled is not None else tuple(_patterns(value))
        if len(_values) > _MAX_VALUES:
            del _values[next(iter(_values))]


def scrub(text: str) -> str:
    """Return the text with `***` in place of every resolved value, in each form that errors may contain."""
    if not _values:
        return text
    with _lock:
        patterns = [pattern for compiled in _values.values() for pattern in compiled]
    matching = [pattern for pattern in patterns if pattern[0] in text]
    for form, pattern in sorted(matching, key=lambda pair: len(pair[0]), reverse=True):
        if form in text:
            text = pattern.sub(MASK, text)
    for form, _ in patterns:
        if len(form) > _TRUNCATED and form[:_TRUNCATED] in text and not form.startswith("-----"):
            text = _scrub_truncated(form, text)
    return text


def _scrub_truncated(form: str, text: str) -> str:
    """Replace truncated values in the text. For example, PostgreSQL shows 63 bytes of a user's name.

    A word that begins like the value but continues differently stays.
    """
    parts, begin = [], 0
    while (at := text.find(form[:_TRUNCATED], begin)) >= 0:
        pairs = zip(form, text[at : at + len(form)], strict=False)
        end = at + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        is_word = not (text[at - 1 : at] + " ")[0].isalnum() and not (text[end : end + 1] + " ")[0].isalnum()
        part = text[at:end]
        if is_word and (len(part) >= _TRUNCATED_WORD or any(map(str.isdigit, part))):
            parts += [text[begin:at], MASK]
        else:
            parts.append(text[begin:end])
        begin = end
    return "".join((*parts, text[begin:]))


def shortened(text: str, max_length: int) -> str:
    """Scrub a text, then shorten it. Shortening it first could leave half of a secret."""
    text = scrub(text)
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def scrub_diagnostic(diagnostic: Diagnostic) -> Diagnostic:
    """Return the diagnostic with `***` in place of every resolved value."""
    return replace(
        diagnostic,
        summary=scrub(diagnostic.summary),
        detail=scrub(diagnostic.detail),
        hint=scrub(diagnostic.hint),
    )


def _patterns(value: str) -> Iterator[tuple[str, re.Pattern[str]]]:
    for form in dict.fromkeys(_forms(value)):
        if len(form) >= _MIN_LENGTH:
            literal = re.escape(form)
            yield form, re.compile(literal if len(form) >= _MIN_INSIDE_WORD else rf"(?<!\w){literal}(?!\w)")


def _forms(value: str) -> Iterator[str]:
    """Yield the value, and how JSON, Python, Java and URLs write it.

    Do the same for its long lines, because errors may contain single lines of a key.
    """
    lines = [line for line in map(str.strip, value.splitlines()) if len(line) >= _MIN_INSIDE_WORD]
    for text in (value, *(line for line in lines if not line.startswith("-----"))):
        yield text
        yield repr(text)[1:-1]
        yield json.dumps(text)[1:-1]
        yield json.dumps(text, ensure_ascii=False)[1:-1]
        yield quote(text, safe="")
        yield quote_plus(text)
