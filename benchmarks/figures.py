"""Compares the sides of a benchmark, and formats its figures as a table for README.md."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Side = Callable[[], float]
"""Does the work of one side once, and returns its seconds."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """The number of rounds of a comparison: first to warm up, then for the figures."""

    warm_up: int
    counted: int


@dataclass(frozen=True, slots=True)
class Table:
    """The figures of a benchmark. Each row has a cell for each name of the header."""

    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def markdown(self) -> str:
        """Return the table in Markdown, with the first column on the left and figures aligned right."""
        assert all(len(row) == len(self.header) for row in self.rows), self
        rule = ("---", *("---:" for _ in self.header[1:]))
        return "\n".join(f"| {' | '.join(cells)} |" for cells in (self.header, rule, *self.rows))


def alternate(sides: Mapping[str, Side], rounds: Rounds) -> dict[str, list[float]]:
    """Run the sides in turns (A B B A A B …), and return the seconds of the counted rounds.

    In turns, because other load on the machine then disturbs all sides alike. Each round reverses the order,
    because a JVM gets faster for minutes: the second side of each round would look faster than it is.
    """
    taken: dict[str, list[float]] = {name: [] for name in sides}
    order = list(sides)
    for _ in range(rounds.warm_up + rounds.counted):
        for name in order:
            taken[name].append(sides[name]())
            say(f"    {name:<24} {taken[name][-1]:8.2f} s")
        order.reverse()
    return {name: seconds[rounds.warm_up :] for name, seconds in taken.items()}


def ratio(a: list[float], b: list[float]) -> float:
    """Return the median of the ratios per round: a slow moment that hits both sides doesn't change it."""
    return statistics.median(x / y for x, y in zip(a, b, strict=True))


def rate(rows: int, seconds: list[float]) -> str:
    """Return the rows per second, from the median of the seconds."""
    return f"{rows / statistics.median(seconds):,.0f}"


def verdict(aim: str, met: bool) -> str:
    """Return the table cell for an aim."""
    return f"{aim}: {'met' if met else '**missed**'}"


def say(text: str) -> None:
    """Print a line about the progress to stderr, because stdout contains only the tables."""
    print(text, file=sys.stderr, flush=True)
