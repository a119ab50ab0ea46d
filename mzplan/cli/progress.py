"""Progress on stderr: a line when something happens; on a terminal, a last line for what takes time."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from mzplan.cli.output import Output, width
from mzplan.model.address import Address
from mzplan.model.words import count
from mzplan.operations.follower import Outcome
from mzplan.render.text import cut, safe

PATIENCE = 1.0  # seconds that something may take in silence
EVERY = 10.0  # seconds between lines where there is no terminal
_TICK = 0.25
_WARNING = 600  # characters
_MARKS = {"applied": "✓", "pending": "…", "rejected": "✗", "failed": "✗"}


class Progress:
    """Implements mzplan.operations.Reporter. A thread draws what takes longer than a second, so that no
    operation has to think of it."""

    def __init__(self, output: Output, verbose: int = 0, clock: Callable[[], float] = time.monotonic):
        self.output = output
        self.verbose = verbose
        self.clock = clock
        self.serial: int | None = None  # committed, or about to be
        self.is_committed = False
        self._began = clock()
        self._lock = threading.RLock()
        self._doing: list[tuple[str | Callable[[], str], float]] = []
        self._drawn = ""
        self._said_at = float("-inf")
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    # --- what operations report

    def stage(self, text: str) -> None:
        self._line(text)

    def detail(self, text: str) -> None:
        """Only with -v, with the seconds since the command began."""
        if self.verbose:
            self._line(f"[{self.clock() - self._began:6.2f} s] {safe(text)}")

    @contextlib.contextmanager
    def working(self, text: str | Callable[[], str]) -> Iterator[None]:
        """Said only when it takes longer than a second; what changes meanwhile is asked for anew."""
        self._start()
        with self._lock:
            self._doing.append((text, self.clock()))
        try:
            yield
        finally:
            with self._lock:
                self._doing.pop()
                self._clear()

    def committing(self, serial: int) -> None:
        self.serial = serial

    def committed(self, serial: int) -> None:
        self.serial, self.is_committed = serial, True
        self._line(f"Committed serial {serial}")

    def outcome(self, outcome: Outcome) -> None:
        text = f"  {_MARKS[outcome.status]} {outcome.address}: {outcome.status} after {outcome.seconds:.1f} s"
        if outcome.reason:
            text += f": {safe(outcome.reason.splitlines()[0])}"
        if outcome.warning:
            text += f"\n    warning{cut(safe(outcome.warning), _WARNING)}"
        self._line(text)

    def waiting(self, waiting: Mapping[Address, str], seconds: float) -> None:
        if seconds < PATIENCE:
            return
        with self._lock:
            self._draw(_awaited(waiting), seconds)

    def close(self) -> None:
        """Clear the live line, and end."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._lock:
            self._clear()

    # --- drawing

    def _start(self) -> None:
        if self._thread is None:
            self._closing.clear()
            self._thread = threading.Thread(target=self._tick, name="progress", daemon=True)
            self._thread.start()

    def _tick(self) -> None:
        while not self._closing.wait(_TICK):
            with self._lock:
                if not self._doing:
                    continue
                text, began = self._doing[-1]
                seconds = self.clock() - began
                if seconds >= PATIENCE:
                    self._draw(text if isinstance(text, str) else text(), seconds)

    def _draw(self, text: str, seconds: float) -> None:
        line = cut(f"  … {seconds:.0f} s: {text}", width() - 1)
        if self.output.is_live:
            if line != self._drawn:
                self.output.live(f"\r\x1b[K{line}")
                self._drawn = line
        elif self.clock() - self._said_at >= EVERY:
            self._said_at = self.clock()
            self.output.err(f"  … {seconds:.0f} s: {text}")

    def _line(self, text: str) -> None:
        with self._lock:
            self._clear()
            self._said_at = max(self._said_at, self.clock() - EVERY + PATIENCE)
            self.output.err(text)

    def _clear(self) -> None:
        if self._drawn:
            self.output.live("\r\x1b[K")
            self._drawn = ""


def _awaited(waiting: Mapping[Address, str]) -> str:
    counts = Counter(waiting.values())
    what = ", ".join(f"{n} {safe(condition)}" for condition, n in sorted(counts.items()))
    first = ", ".join(str(address) for address in list(waiting)[:3])
    more = f" and {len(waiting) - 3} more" if len(waiting) > 3 else ""
    return f"{count(len(waiting), 'query', 'queries')} awaited: {what} ({first}{more})"
