"""What a test or a preview gives to a query: rows for its inputs, or records for its format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

FIRST_TIME = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class GivenRow:
    """A row of an input. `values` has the Python types that mzplan.endpoints.arrow takes.

    `is_deleted`: the row with this key is removed.
    """

    values: Mapping[str, Any]
    is_deleted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRecord:
    """A record of an upstream. `topic`: "" for the source's own topic."""

    value: bytes | None
    key: bytes | None = None
    topic: str = ""
    timestamp: datetime = FIRST_TIME
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """What one step of a trial did.

    - `late_rows`: how many rows it dropped as late.
    - `watermark`: the watermark after it, in milliseconds since the epoch; None without one.
    - `violations`: how many of its rows violate each expectation, by name.
    """

    late_rows: int = 0
    watermark: int | None = None
    violations: Mapping[str, int] = field(default_factory=dict)
