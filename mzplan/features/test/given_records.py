"""The records that a test gives to a source's format."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from mzplan.config.findings import Findings, Location, Path
from mzplan.model.trials import FIRST_TIME, GivenRecord

_KEYS = ("value", "key", "headers", "topic", "timestamp")


def read_records(
    written: Sequence[Any], locate: Callable[[Path], Location], findings: Findings
) -> tuple[GivenRecord, ...]:
    """Return the records of a test. Reports records that can't be read. `locate`: by a path in the list."""
    records = []
    for index, item in enumerate(written):
        try:
            records.append(_record(item))
        except ValueError as problem:
            findings.add("MZ350.record", locate((index,)), problem=problem)
    return tuple(records)


def _record(item: Any) -> GivenRecord:
    if isinstance(item, str):
        return GivenRecord(value=item.encode())
    unknown = [key for key in item if key not in _KEYS]
    if unknown or "value" not in item:
        raise ValueError(f"It has {unknown[0]!r}" if unknown else "It has no `value`")
    headers = item.get("headers") or {}
    if not isinstance(headers, dict):
        raise ValueError("Its `headers` aren't a mapping")
    return GivenRecord(
        value=_bytes(item["value"]),
        key=_bytes(item.get("key")),
        topic=str(item.get("topic", "")),
        timestamp=_time(item["timestamp"]) if "timestamp" in item else FIRST_TIME,
        headers=tuple((str(key), _bytes(value) or b"") for key, value in headers.items()),
    )


def _bytes(value: Any) -> bytes | None:
    """Return the bytes of a key or value: text as it is, anything else as JSON."""
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value, default=_number)).encode()


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, Decimal) else str(value)


def _time(text: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        raise ValueError(f"Its `timestamp` is {text!r}, not a time such as '2026-01-31 12:00:00'") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
