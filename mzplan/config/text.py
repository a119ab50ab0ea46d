"""Small helpers for texts: how values are shown in messages, and what a line is."""

from __future__ import annotations

import re
from collections.abc import Iterable

from mzplan.model.printable import safe

# What YAML's parser counts as the end of a line.
LINE_BREAK = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
# What was meant to be a reference, well-formed or not: it is no secret.
LIKE_A_REFERENCE = re.compile(r"\$\{(?:var|env|file|vault|aws-sm|each)\b[^{}]*\}")
_MAX_SHOWN = 60


def shown(value: object, quote: bool = True) -> str:
    """A value as messages show it: `"text"` on one line, shortened, control characters escaped."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        text, quote = str(value), False
    elif isinstance(value, str):
        text = value
    else:
        return kind_of(value)
    if len(text) > _MAX_SHOWN:
        text = text[: _MAX_SHOWN - 1] + "…"
    text = safe(text)
    return f'"{text}"' if quote else text


def kind_of(value: object) -> str:
    """What a value is, in YAML's words: `a list`, `text`, `a whole number`."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int):
        return "a whole number"
    if isinstance(value, float):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "a mapping"


def listed(words: Iterable[str], limit: int = 20) -> str:
    """`a, b, c`, with the number of those left out when there are more than `limit`."""
    every = list(words)
    text = ", ".join(shown(word, quote=False) for word in every[:limit])
    return f"{text} and {len(every) - limit} more" if len(every) > limit else text
