"""Measures: the numbers that a runner measures for a query, and how each is shown.

`status`, /metrics and `mzplan ui` show each field that has a measure as its metadata, without further code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mzplan.model.times import instant_text
from mzplan.model.words import size


def in_seconds(number: float) -> str:
    """Format a number as `1,500.0 s`."""
    return f"{number:,.1f} s"


def in_digits(number: float) -> str:
    """Format a number as `1,234`."""
    return f"{number:,.0f}"


def in_bytes(number: float) -> str:
    """Format a number as `5.2 MiB`."""
    return size(int(number))


def as_instant(seconds: float) -> str:
    """Format seconds since the epoch as `1970-01-01T00:00:01Z`."""
    return instant_text(round(seconds * 1000))


class Measure(NamedTuple):
    """How one number is shown.

    - `title`: its name for people. `text` formats the number for them.
    - `help`: its description for Prometheus.
    - `text_name`: the JSON key of the formatted text; "" if JSON has the number under the field's name.
    - `is_stateful`: whether only stateful queries have the number. `status` shows it below its table.
    """

    title: str
    help: str
    text: Callable[[float], str] = in_seconds
    text_name: str = ""
    is_stateful: bool = False

    def to_json(self, name: str, number: float | None) -> tuple[str, float | str | None]:
        """Return the JSON key and value of a number. `name` is the name of its field."""
        if not self.text_name:
            return name, number
        return self.text_name, None if number is None else self.text(number)


def measure(title: str, help_: str) -> dict[str, Measure]:
    """Return the metadata of a field that holds seconds."""
    return {"measure": Measure(title, help_)}


def measure_of_state(
    title: str, help_: str, text: Callable[[float], str] = in_digits, text_name: str = ""
) -> dict[str, Measure]:
    """Return the metadata of a field that only stateful queries have."""
    return {"measure": Measure(title, help_, text, text_name, is_stateful=True)}
