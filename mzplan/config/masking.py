"""Masks secrets in files, so that no excerpt and no message shows one.

An excerpt masks every value that is a secret, or may be one by its name, whatever the error in its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from mzplan.config.findings import LIKE_A_REFERENCE, Path
from mzplan.config.project_files import SECTIONS
from mzplan.config.yaml.positions import scalars_on
from mzplan.schema.kinds import resource_kind
from mzplan.schema.loading import types_of
from mzplan.schema.properties import walk_properties
from mzplan.secrets.references import is_reference

_SOUNDS_SECRET = re.compile(r"(?i)pass|pwd|secret|token|jaas|credential|private|api.?key")
# For text that can't be parsed: a name with its colon anywhere, and one at the start of a line. The patterns
# are possessive, so they read a long word only once.
_KEY = re.compile(r"(?<![\w.-])([\w.-]++)[\"']?\s*+[:=]")
_SECRET_WORD = re.compile(_SOUNDS_SECRET.pattern + r"|\bkey\b")
_OWN_KEY = re.compile(r"\s*(?:- +)*[\"']?[\w.-]+[\"']?\s*:(?:\s|$)")
_BLOB = re.compile(r"[A-Za-z0-9+/=_-]{32,}")
_LINES_UP = 200  # lines above that may have the key of a line
_MIN_SCRUBBED = 4  # characters: scrubbing shorter secrets would make messages unreadable


def masked_lines(text: str, lines: dict[int, str], concealed: set[Path]) -> dict[int, str]:
    """Return these lines of a well-formed file, by number from 0, with secrets masked.

    `concealed`: paths whose values are also masked.
    """
    hidden: dict[int, list[tuple[int, int]]] = {}
    for path, span, value in scalars_on(text, {number: len(line) for number, line in lines.items()}):
        if is_reference(value) or LIKE_A_REFERENCE.fullmatch(value):
            continue
        if not may_be_secret(path) and not any(path[:end] in concealed for end in range(len(path) + 1)):
            continue
        for number in range(span.line, span.end_line + 1):
            if number in lines:
                start = span.column if number == span.line else 0
                end = span.end_column if number == span.end_line else len(lines[number])
                hidden.setdefault(number, []).append((start, end))
    return {number: _mask(line, hidden.get(number, [])) for number, line in lines.items()}


def masked_broken(lines: list[str], number: int, line: str, private: bool = False) -> str:
    """Return the visible part of a line in a file that can't be parsed, with secrets masked.

    Nothing shows where a value ends, so everything after a name that sounds secret is masked, and so is a
    line that may continue such a value.
    """
    if private:
        return _mask(line, [(line.find(":") + 1, len(line))])
    if at := _after_secret_key(line):
        return _mask(line, [(at, len(line))])
    if _continues_secret(lines, number):
        return _mask(line, [(_indent(line), len(line))])
    return _BLOB.sub(lambda match: "*" * len(match.group()), line)


def _continues_secret(lines: list[str], number: int) -> bool:
    """Return whether a line belongs to a key that sounds secret.

    That is the next key above with less indentation or, for a line without a key, the next key above.
    """
    line = lines[number]
    own_key = _OWN_KEY.match(line) is not None
    for above in reversed(lines[max(0, number - _LINES_UP) : number]):
        if not above.strip():
            continue
        if _indent(above) < _indent(line) or (not own_key and _OWN_KEY.match(above)):
            return _after_secret_key(above) is not None
    return False


def _after_secret_key(line: str) -> int | None:
    """Return where the value of the first name that sounds secret begins; None without such a name."""
    return next((key.end() for key in _KEY.finditer(line) if _SECRET_WORD.search(key[1])), None)


def scrub(text: str, secrets: Iterable[str], same_length: bool = False) -> str:
    """Return the text with these secrets replaced by asterisks."""
    for secret in secrets:
        if len(secret) >= _MIN_SCRUBBED and secret in text:
            text = text.replace(secret, "*" * len(secret) if same_length else "***")
    return text


def may_be_secret(path: Path) -> bool:
    """Return whether the value at a path of a file is a secret, by its schema or by its name."""
    section = SECTIONS.get(str(path[0])) if path else None
    below = path[2:] if section else path
    if any(isinstance(key, str) and _SOUNDS_SECRET.search(key) for key in below):
        return True
    if section is not None and section != "connection":
        return any(resource_kind(section, type_).is_sensitive(below) for type_ in types_of(section))
    return any(key in _secret_names() for key in below)


@cache
def _secret_names() -> frozenset[str]:
    """Return the name of every property that is a secret in some connection."""
    return frozenset(
        path[-1]
        for type_ in types_of("connection")
        for path, schema in walk_properties(resource_kind("connection", type_).schema)
        if schema.get("x-sensitive")
    )


def _mask(line: str, hidden: list[tuple[int, int]]) -> str:
    """Return the line with asterisks for these parts, given in order by start and end."""
    parts, at = [], 0
    for start, end in hidden:
        first, last = max(start, at), min(end, len(line))
        if last > first:
            parts += [line[at:first], "*" * (last - first)]
            at = last
    return "".join([*parts, line[at:]])


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
