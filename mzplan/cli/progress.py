"""Progress on stderr: a line when something happens, and a live line of what is awaited on a terminal."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Mapping

import click

from mzplan.cli.context import Invocation
from mzplan.following import Outcome
from mzplan.model.address import Address

_MARKS = {"applied": "✓", "pending": "…", "rejected": "✗", "failed": "✗"}
_EVERY = 10.0  # seconds between lines where there is no terminal


class LineReporter:
    """One line per event; where stderr is a terminal, the last line lives."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty()
        self._drawn = False
        self._said_at = 0.0

    def stage(self, text: str) -> None:
        self._clear()
        click.echo(text, err=True)

    def outcome(self, outcome: Outcome) -> None:
        self._clear()
        text = f"  {_MARKS[outcome.status]} {outcome.address}: {outcome.status} after {outcome.seconds:.1f} s"
        if outcome.reason:
            text += f": {outcome.reason.splitlines()[0]}"
        click.echo(text, err=True)

    def waiting(self, waiting: Mapping[Address, str], seconds: float) -> None:
        if seconds < 1.0:
            return
        counts = Counter(waiting.values())
        what = ", ".join(f"{n} {condition}" for condition, n in sorted(counts.items()))
        first = ", ".join(str(address) for address in list(waiting)[:3])
        more = f" and {len(waiting) - 3} more" if len(waiting) > 3 else ""
        text = f"  … {seconds:.0f} s: {what} ({first}{more})"
        if self.live:
            width = shutil.get_terminal_size().columns
            click.echo(f"\r\x1b[K{text[: width - 1]}", err=True, nl=False)
            self._drawn = True
        elif seconds - self._said_at >= _EVERY:
            self._said_at = seconds
            click.echo(text, err=True)

    def _clear(self) -> None:
        if self._drawn:
            click.echo("\r\x1b[K", err=True, nl=False)
            self._drawn = False


def reporter(invocation: Invocation) -> LineReporter:
    """Where this command's progress goes."""
    return LineReporter()
