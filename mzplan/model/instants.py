"""Points in time as people write them: `2026-11-01T08:00:00Z`, ISO 8601 with a zone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def instant(text: str) -> int | None:
    """`"1970-01-01T00:00:01Z"` → 1000, milliseconds since the epoch, as Kafka counts: what is finer is
    rounded up, so that "at or after" stays true; what is before, 0. None for anything but a time with its
    zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if found.tzinfo is None:
        return None
    return max(0, -((_EPOCH - found) // _MILLISECOND))


def instant_text(milliseconds: int) -> str:
    """The inverse, in UTC: `"1970-01-01T00:00:01Z"`, with a fraction only where there is one."""
    found = _EPOCH + timedelta(milliseconds=milliseconds)
    text = found.isoformat(timespec="milliseconds" if milliseconds % 1000 else "seconds")
    return text.replace("+00:00", "Z")
