"""Times and durations mean the same on the command line, in the files and in Kafka's options."""

from __future__ import annotations

import itertools
from datetime import date, timedelta

import click
import pytest

from mzplan.cli.arguments import DURATION
from mzplan.model.times import instant, instant_text, milliseconds, seconds
from mzplan.schema.validators import is_valid

SOURCE = {"connection": "k", "topic": "t", "format": {"type": "raw"}}


@pytest.mark.parametrize(
    ("text", "since_1970", "back"),
    [
        ("2026-11-01T08:00:00+01:00", 1_793_516_400_000, "2026-11-01T07:00:00Z"),
        ("2026-11-01T07:00:00.25Z", 1_793_516_400_250, "2026-11-01T07:00:00.250Z"),
        # A record of the millisecond in which it lies would be before it.
        ("2026-11-01T07:00:00.000001Z", 1_793_516_400_001, "2026-11-01T07:00:00.001Z"),
        ("1970-01-01T00:00:00+01:00", 0, "1970-01-01T00:00:00Z"),
    ],
)
def test_a_time_is_read_and_written(text: str, since_1970: int, back: str) -> None:
    assert instant(text) == since_1970
    assert instant_text(since_1970) == back
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


@pytest.mark.parametrize(
    ("text", "expected"), [("500ms", 0.5), ("90s", 90.0), ("5m", 300.0), ("2h", 7200.0), ("1d", 86_400.0)]
)
def test_a_duration_is_read_alike_everywhere(text: str, expected: float) -> None:
    assert seconds(text) == DURATION.convert(text, None, None) == expected
    assert milliseconds(text) == expected * 1000


@pytest.mark.parametrize("text", ["", "5", "soon", "-1s", "1.5s", "5 m", "1w"])
def test_a_wrong_duration_is_refused_on_the_command_line(text: str) -> None:
    assert seconds(text) == 0.0
    with pytest.raises(click.BadParameter, match="is not a duration"):
        DURATION.convert(text, None, None)
