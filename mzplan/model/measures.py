"""Measures: the numbers that a runner measures of a query, and how each is shown.

A field with a measure as its metadata is shown by `status`, /metrics and `mzplan ui` without further code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mzplan.model.times import instant_text
from mzplan.model.words import size


def in_seconds(number: float) -> str:
    """`1,500.0 s`."""
    return f"{number:,.1f} s"


def in_digits(number: float) -> str:
    """`1,234`."""
    return f"{number:,.0f}"


def in_bytes(number: float) -> str:
    """`5.2 MiB`."""
    return size(int(number))


def as_instant(seconds: float) -> str:
    """Seconds since the epoch as `1970-01-01T00:00:01Z`."""
    return instant_text(round(seconds * 1000))


class Measure(NamedTuple):
    """How one number is shown.

    - `title`: its name for people, who read it as `text` writes it. `help`: for Prometheus.
    - `text_name`: under which JSON has that text; "" where it has the number, under the field's name.
    - `is_of_state`: whether only a stateful query has it: `status` then shows it below its table.
    """

    title: str
    help: str
    text: Callable[[float], str] = in_seconds
    text_name: str = ""
    is_of_state: bool = False

    def to_json(self, name: str, number: float | None) -> tuple[str, float | str | None]:
        """Return the name and the value of a number in a document; `name`: that of its field."""
        if not self.text_name:
            return name, number
        return self.text_name, None if number is None else self.text(number)


def measure(title: str, help_: str) -> dict[str, Measure]:
    """The metadata of a field with a number of seconds."""
    return {"measure": Measure(title, help_)}


def measure_of_state(
    title: str, help_: str, text: Callable[[float], str] = in_digits, text_name: str = ""
) -> dict[str, Measure]:
    """The metadata of a field that only stateful queries have."""
    return {"measure": Measure(title, help_, text, text_name, is_of_state=True)}
