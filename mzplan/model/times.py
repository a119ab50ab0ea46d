"""Times as people write them: durations (`500ms`, `7d`), and points in time (`2026-11-01T08:00:00Z`)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
DURATION_FORM = re.compile(r"([0-9]+)(ms|s|m|h|d)")


def seconds(duration: str) -> float:
    """`"500ms"` → 0.5, `"7d"` → 604800.0; 0.0 for anything but a duration (a schema has refused that
    before)."""
    match = DURATION_FORM.fullmatch(duration)
    return float(match[1]) * _UNITS[match[2]] if match else 0.0


def milliseconds(duration: str) -> int:
    """`"500ms"` → 500, `"2m"` → 120000."""
    return round(seconds(duration) * 1000)


def shortest(duration: float) -> str:
    """604800.0 → `7d`, 5400.0 → `90m`: in the largest unit that needs no fraction; `0s` for nothing."""
    for unit, length in reversed(_UNITS.items()):
        if duration >= length and duration % length == 0:
            return f"{duration / length:.0f}{unit}"
    return f"{duration:g}s"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND
LAST_INSTANT = _LAST / 1000  # in seconds since the epoch


def instant(text: str) -> int | None:
    """`"1970-01-01T00:00:01Z"` → 1000, milliseconds since the epoch, as Kafka counts: what is finer is
    rounded up, so that "at or after" stays true; what is before, 0. None for anything but a time with its
    zone, and for one that is in the year 10000 in UTC, which nothing here could show."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        return None
    milliseconds = max(0, -((_EPOCH - moment) // _MILLISECOND))
    return milliseconds if milliseconds <= _LAST else None


def instant_text(milliseconds: int) -> str:
    """The inverse, in UTC: `"1970-01-01T00:00:01Z"`, with a fraction only where there is one."""
    moment = _EPOCH + timedelta(milliseconds=milliseconds)
    text = moment.isoformat(timespec="milliseconds" if milliseconds % 1000 else "seconds")
    return text.replace("+00:00", "Z")
