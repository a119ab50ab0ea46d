"""Times convert to Kafka's options and back without a change."""

from __future__ import annotations

import itertools
from datetime import date, timedelta

import pytest

from mzplan.model.times import instant, instant_text
from mzplan.schema.validators import is_valid

SOURCE = {"connection": "k", "topic": "t", "format": {"type": "raw"}}


@pytest.mark.parametrize(
    ("text", "milliseconds", "back"),
    [
        ("2026-11-01T08:00:00+01:00", 1_793_516_400_000, "2026-11-01T07:00:00Z"),
        ("2026-11-01T07:00:00.25Z", 1_793_516_400_250, "2026-11-01T07:00:00.250Z"),
        # A record of the millisecond in which it lies would be before it.
        ("2026-11-01T07:00:00.000001Z", 1_793_516_400_001, "2026-11-01T07:00:00.001Z"),
        ("1970-01-01T00:00:00+01:00", 0, "1970-01-01T00:00:00Z"),
    ],
)
def test_a_time_is_read_and_written(text: str, milliseconds: int, back: str) -> None:
    assert instant(text) == milliseconds
    assert instant_text(milliseconds) == back
    assert is_valid("source.kafka", {**SOURCE, "start_offsets": text})


@pytest.mark.parametrize(
    "text", ["earliest", "", "2026-11-01", "2026-11-01T08:00:00", "2026-11-01T25:00:00Z"]
)
def test_a_time_without_a_zone_is_refused(text: str) -> None:
    assert instant(text) is None
    assert is_valid("source.kafka", {**SOURCE, "start_offsets": text}) == (text == "earliest")


def test_the_schema_accepts_existing_days_only() -> None:
    existing = {str(date(1970, 1, 1) + timedelta(days)) for days in range(50_000)}
    for year, month, day in itertools.product(range(1970, 2106), range(1, 13), (1, 28, 29, 30, 31)):
        text = f"{year}-{month:02}-{day:02}"
        accepted = is_valid("source.kafka", {**SOURCE, "start_offsets": f"{text}T00:00:00Z"})
        assert accepted == (text in existing), text
