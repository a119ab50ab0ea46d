"""Durations (`500ms`, `7d`) and instants (`2026-11-01T08:00:00Z`) as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
DURATION_FORM = re.compile(r"([0-9]+)(ms|s|m|h|d)")


def seconds(duration: str) -> float:
    """Return the seconds of a duration: `"500ms"` → 0.5, `"7d"` → 604800.0.

    Returns 0.0 for invalid text; the schema has already rejected it.
    """
    match = DURATION_FORM.fullmatch(duration)
    return float(match[1]) * _UNITS[match[2]] if match else 0.0


def milliseconds(duration: str) -> int:
    """Return the milliseconds of a duration: `"500ms"` → 500, `"2m"` → 120000."""
    return round(seconds(duration) * 1000)


def shortest(duration: float) -> str:
    """Format seconds in the largest unit without a fraction: 604800.0 → `7d`, 5400.0 → `90m`, 0 → `0s`."""
    for unit, length in reversed(_UNITS.items()):
        if duration >= length and duration % length == 0:
            return f"{duration / length:.0f}{unit}"
    return f"{duration:g}s"


def brief_duration(text: str) -> str:
    """Format a duration like `shortest`: `"600 seconds"` → `10m`. Other text is unchanged."""
    match = re.fullmatch(r"([0-9]{1,9})(?: ([smhd])[a-z]+|([smhd]))", text)
    return shortest(seconds(f"{match[1]}{match[2] or match[3]}")) if match else text


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
LAST_INSTANT = _LAST / 1000  # in seconds since the epoch


def instant(text: str) -> int | None:
    """Return the milliseconds since the epoch of a time: `"1970-01-01T00:00:01Z"` → 1000.

    Fractions of a millisecond are rounded up, so that "at or after" stays true. Earlier times give 0. Returns
    None for invalid text, a time without a zone, and times after the year 9999 (UTC), which can't be
    displayed.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    milliseconds = max(0, -((_EPOCH - moment) // _MILLISECOND))
    return milliseconds if milliseconds <= _LAST else None


def instant_text(milliseconds: int) -> str:
    """Format milliseconds since the epoch in UTC: 1000 → `"1970-01-01T00:00:01Z"`, 1 → `"…:00.001Z"`."""
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    text = moment.isoformat(timespec="milliseconds" if milliseconds % 1000 else "seconds")
    return text.replace("+00:00", "Z")
