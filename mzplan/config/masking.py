"""Secrets that someone wrote into a file are never shown: not in an excerpt, not in a message.

A line is shown with every value masked that is, or by its name may be, a secret, whatever the error on that
line is about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from mzplan.config.files import SECTIONS
from mzplan.config.findings import Path
from mzplan.config.positions import scalars_on
from mzplan.kinds import resource_kind, types_of, walk_properties
from mzplan.secrets import is_reference

_SOUNDS_SECRET = re.compile(r"(?i)pass|pwd|secret|token|jaas|credential|private|api.?key")
_VARIABLE = re.compile(r"\$\{var\.\w+\}")
# For text that can't be parsed: a name that sounds secret, and all that follows on its line.
_WRITTEN = re.compile(
    r"(?i)([\w.\"'-]*(?:pass|pwd|secret|token|jaas|credential|private|\bkey\b|api.?key)[\w.\"'-]*\s*[:=]\s*)(\S.*)"
)
_BLOB = re.compile(r"[A-Za-z0-9+/=_-]{32,}")
_MIN_SCRUBBED = 4  # shorter ones would make messages unreadable, and are masked by their place


def masked_lines(text: str, lines: dict[int, str], concealed: set[Path]) -> dict[int, str]:
    """These lines (number from 0 → text) of a well-formed file, with what may be secret as asterisks."""
    shown = dict(lines)
    for path, span, value in scalars_on(text, set(lines)):
        if not may_be_secret(path, value) and not any(path[: len(one)] == one for one in concealed):
            continue
        if is_reference(value) or _VARIABLE.fullmatch(value):
            continue
        for number in range(span.line, span.end_line + 1):
            if number in shown:
                start = span.column if number == span.line else 0
                end = span.end_column if number == span.end_line else len(shown[number])
                shown[number] = _starred(shown[number], start, end)
    return shown


def masked_broken(lines: list[str], number: int) -> str:
    """A line of a file that can't be parsed, with what may be secret as asterisks.

    Where it ends can't be known, so everything after a name that sounds secret goes, and so does a line
    that continues such a value.
    """
    line = lines[number]
    for before in range(number, -1, -1):
        above = lines[before]
        if before < number and (not above.strip() or _indent(above) >= max(1, _indent(line))):
            continue
        if match := _WRITTEN.search(above) or _OPEN.search(above):
            return _starred(
                line, match.start(2) if before == number and match.lastindex == 2 else 0, len(line)
            )
        if before < number:
            break
    return _BLOB.sub(lambda match: "*" * len(match.group()), line)


_OPEN = re.compile(
    r"(?i)([\w.\"'-]*(?:pass|pwd|secret|token|jaas|credential|private|\bkey\b)[\w.\"'-]*\s*:\s*)$"
)


def scrub(text: str, secrets: Iterable[str], same_length: bool = False) -> str:
    """The text without any of the secrets that were met in this run."""
    for secret in secrets:
        if len(secret) >= _MIN_SCRUBBED and secret in text:
            text = text.replace(secret, "*" * len(secret) if same_length else "***")
    return text


def may_be_secret(path: Path, value: object = None) -> bool:
    """Whether the value at a path of a file is a secret, by its schema or by its name."""
    section = SECTIONS.get(str(path[0])) if path else None
    below = path[2:] if section else path
    if any(isinstance(key, str) and _SOUNDS_SECRET.search(key) for key in below):
        return True
    if section in ("source", "sink"):
        return any(resource_kind(section, type_).is_sensitive(below) for type_ in types_of(section))
    return any(key in _secret_names() for key in below)


@cache
def _secret_names() -> frozenset[str]:
    """The names of every property that is a secret in some connection."""
    return frozenset(
        path[-1]
        for type_ in types_of("connection")
        for path, schema in walk_properties(resource_kind("connection", type_).schema)
        if schema.get("x-sensitive")
    )


def _starred(line: str, start: int, end: int) -> str:
    return line[:start] + "*" * max(0, min(end, len(line)) - start) + line[end:]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
