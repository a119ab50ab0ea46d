"""Durations mean the same on the command line and in the files."""

import click
import pytest

from mzplan.cli.arguments import DURATION
from mzplan.model.times import milliseconds, seconds


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
