"""Words around numbers, in texts for people."""

from __future__ import annotations


def count(number: int, noun: str, plural: str = "") -> str:
    """`1 query`, `2 queries`."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
