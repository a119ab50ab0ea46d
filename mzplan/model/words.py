"""Words around numbers, in texts for people; and what no text may hold."""

from __future__ import annotations

import re

_UNUSABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 query`, `2 queries`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def size(number: int) -> str:
    """Bytes as `1.5 MiB`."""
    value, unit = float(number), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {_UNITS[unit]}" if unit else f"{number} B"


def label_value(value: str | float) -> str:
    """The value of a label as it is written: `true`, `3`, `billing`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def unusable_character(text: str) -> str:
    """The first control character or half surrogate pair of a text; "" when there is none."""
    bad = _UNUSABLE.search(text)
    return bad.group() if bad else ""
