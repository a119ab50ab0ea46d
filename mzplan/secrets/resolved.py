"""The values that this process has resolved secret references to, and the filter that takes them out of text.

Servers, drivers and libraries repeat what they were given in their errors. So whatever leaves the process as
text for people goes through `scrub`, whoever wrote it: statuses and answers (mzplan.store), the runner's log
(mzplan.runner.logs, and Java's lines in mzplan.spark.session), its error file, and what a command shows of
errors (mzplan.cli.streams, mzplan.render.diagnostics).
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

BLOT = "***"
_LEAST = 4  # characters; a shorter value says nothing, and text without it could not be read
_ANYWHERE = 8  # characters from which a value is also found inside a word: `app` is in `applied`
_BEGINNING = 8  # characters of a value that a server cut off, from which it is found: with a digit in them
_LONG_BEGINNING = 16  # without one: `password` may be how a value begins, and is a word
_MOST = 4096  # values that are remembered: providers may give another one each time

_values: dict[str, tuple[tuple[str, re.Pattern[str]], ...]] = {}  # the newest last
_lock = threading.Lock()


def remember(value: str) -> None:
    """That this value must not be shown by this process, from now on."""
    with _lock:
        known = _values.pop(value, None)
        _values[value] = known if known is not None else tuple(_patterns(value))
        if len(_values) > _MOST:
            del _values[next(iter(_values))]


def scrub(text: str) -> str:
    """The text with `***` for every value that was resolved, in each form in which it may be repeated."""
    if not _values:
        return text
    with _lock:
        known = [pattern for patterns in _values.values() for pattern in patterns]
    matching = [pattern for pattern in known if pattern[0] in text]
    for form, pattern in sorted(matching, key=lambda pair: len(pair[0]), reverse=True):
        if form in text:
            text = pattern.sub(BLOT, text)
    for form, _ in known:
        if len(form) > _BEGINNING and form[:_BEGINNING] in text and not form.startswith("-----"):
            text = _without_beginnings(form, text)
    return text


def _without_beginnings(form: str, text: str) -> str:
    """The text without what a server has cut off of a value (PostgreSQL shows 63 bytes of a user's name).
    What goes on otherwise, as another name does, is left."""
    kept, begin = [], 0
    while (at := text.find(form[:_BEGINNING], begin)) >= 0:
        alike = zip(form, text[at : at + len(form)], strict=False)
        end = at + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], alike))
        alone = not (text[at - 1 : at] + " ")[0].isalnum() and not (text[end : end + 1] + " ")[0].isalnum()
        part = text[at:end]
        if alone and (len(part) >= _LONG_BEGINNING or any(map(str.isdigit, part))):
            kept += [text[begin:at], BLOT]
        else:
            kept.append(text[begin:end])
        begin = end
    return "".join((*kept, text[begin:]))


def shortened(text: str, most: int) -> str:
    """At most so many characters of a text, without secrets: to be cut first would leave the half of one."""
    text = scrub(text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def scrubbed(found: Diagnostic) -> Diagnostic:
    """The diagnostic with `***` for every value that was resolved."""
    return replace(found, summary=scrub(found.summary), detail=scrub(found.detail), hint=scrub(found.hint))


def _patterns(value: str) -> Iterator[tuple[str, re.Pattern[str]]]:
    for form in dict.fromkeys(_forms(value)):
        if len(form) >= _LEAST:
            literal = re.escape(form)
            yield form, re.compile(literal if len(form) >= _ANYWHERE else rf"(?<!\w){literal}(?!\w)")


def _forms(value: str) -> Iterator[str]:
    """A value as it is, as it stands in JSON, Python, Java or a URL, and its lines: a key has several, and is
    shown in pieces."""
    lines = [line for line in map(str.strip, value.splitlines()) if len(line) >= _ANYWHERE]
    for text in (value, *(line for line in lines if not line.startswith("-----"))):
        yield text
        yield repr(text)[1:-1]
        yield json.dumps(text)[1:-1]
        yield json.dumps(text, ensure_ascii=False)[1:-1]
        yield quote(text, safe="")
        yield quote_plus(text)
