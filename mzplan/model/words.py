"""Words around numbers, in texts for people."""

from __future__ import annotations


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
