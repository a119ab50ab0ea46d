"""Durations as people write them: `500ms`, `30s`, `15m`, `24h`, `7d`."""

from __future__ import annotations

import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
DURATION_FORM = re.compile(r"([0-9]+)(ms|s|m|h|d)")


def seconds(duration: str) -> float:
    """`"500ms"` → 0.5, `"7d"` → 604800.0; 0.0 for what is no duration (a schema has refused that before)."""
    found = DURATION_FORM.fullmatch(duration)
    return float(found[1]) * _UNITS[found[2]] if found else 0.0


def milliseconds(duration: str) -> int:
    """`"500ms"` → 500, `"2m"` → 120000."""
    return round(seconds(duration) * 1000)


def shortest(duration: float) -> str:
    """604800.0 → `7d`, 5400.0 → `90m`: in the largest unit that needs no fraction; `0s` for nothing."""
    for unit, length in reversed(_UNITS.items()):
        if duration >= length and duration % length == 0:
            return f"{duration / length:.0f}{unit}"
    return f"{duration:g}s"
