"""How a benchmark compares, and what it hands back: a table of figures, as README.md shows it."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Side = Callable[[], float]
"""One way of doing a thing, done once; returns its seconds."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """How often the sides of a comparison run: first to warm up, then for the figures."""

    warm_up: int
    counted: int


@dataclass(frozen=True, slots=True)
class Table:
    """What a benchmark has measured: each row has a cell for each name of the header."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def markdown(self) -> str:
        """The table as it stands in README.md: the first column to the left, figures to the right."""
        assert all(len(row) == len(self.header) for row in self.rows), self
        rule = ("---", *("---:" for _ in self.header[1:]))
        return "\n".join(f"| {' | '.join(cells)} |" for cells in (self.header, rule, *self.rows))


def alternate(sides: Mapping[str, Side], rounds: Rounds) -> dict[str, list[float]]:
    """Run the sides in turns (A B A B …): what disturbs the machine meanwhile disturbs all of them. Returns
    the seconds of the rounds that count."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds.warm_up + rounds.counted):
        for name, side in sides.items():
            taken[name].append(side())
            say(f"    {name:<24} {taken[name][-1]:8.2f} s")
    return {name: seconds[rounds.warm_up :] for name, seconds in taken.items()}


def ratio(a: list[float], b: list[float]) -> float:
    """The median of the ratios of neighbours: a slow moment that hits both sides leaves it as it is."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def rate(rows: int, seconds: list[float]) -> str:
    """Rows per second, by the median."""
    return f"{rows / statistics.median(seconds):,.0f}"


def verdict(aim: str, met: bool) -> str:
    """The cell of an aim."""
    return f"{aim}: {'met' if met else '**missed**'}"


def say(text: str) -> None:
    """A line on how far it is, at once. Not on stdout, which has the tables and nothing else."""
    print(text, file=sys.stderr, flush=True)
