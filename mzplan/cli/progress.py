"""Progress on stderr: a line for each event. A terminal also shows a live block for slow work.

If many queries converge, a terminal shows lines for the first few and counts the other queries.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from mzplan.cli.streams import Streams, width
from mzplan.model.address import Address
from mzplan.model.words import count, first_names
from mzplan.operations.project import Outcome
from mzplan.render.text import cut, paragraph, safe

PATIENCE = 1.0  # seconds of work without output
EVERY = 10.0  # seconds between lines without a terminal
_TICK = 0.25
_LINES = 3  # lines for converged queries, on a terminal
NAMED = 3  # queries named in a line
_MARKS = {"applied": "✓", "pending": "…", "rejected": "✗", "failed": "✗"}


class ProgressLines:
    """Implements mzplan.operations.project.Reporter.

    A thread shows work that takes longer than a second.
    """

    def __init__(self, output: Streams, verbose: int = 0, clock: Callable[[], float] = time.monotonic):
        self.output = output
        self.verbose = verbose
        self.clock = clock
        self.serial: int | None = None  # committed, or about to be committed
        self.is_committed = False
        self._began = clock()
        self._lock = threading.RLock()
        self._work: list[tuple[str | Callable[[], str], float]] = []
        self._drawn: list[str] = []
        self._applied = 0
        self._printed_at = float("-inf")
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    # --- reports of operations

    def stage(self, text: str) -> None:
        self._line(text)

    def detail(self, text: str) -> None:
        """Print a detail and the seconds since the command's start; only with -v."""
        if self.verbose:
            self._line(f"[{self.clock() - self._began:6.2f} s] {safe(text)}")

    @contextlib.contextmanager
    def working(self, text: str | Callable[[], str]) -> Iterator[None]:
        """Show a text while the work runs, once the work takes longer than a second.

        If `text` is a function, it is called again for each update.
        """
        self._start()
        with self._lock:
            self._sum_up()
            self._work.append((text, self.clock()))
        try:
            yield
        finally:
            with self._lock:
                self._work.pop()
                self._clear()

    def committing(self, serial: int) -> None:
        self.serial = serial

    def committed(self, serial: int) -> None:
        self.serial, self.is_committed = serial, True
        self._line(f"Committed serial {serial}")

    def outcome(self, outcome: Outcome) -> None:
        """Print an outcome. On a terminal, many plainly converged queries are only counted."""
        if self.output.is_live and outcome.status == "applied" and not outcome.warning:
            with self._lock:
                self._applied += 1
            if self._applied > _LINES:
                return
        text = f"  {_MARKS[outcome.status]} {outcome.address}: {outcome.status} after {outcome.seconds:.1f} s"
        if outcome.reason:
            text += f": {paragraph(outcome.reason, '    ')}"
        if outcome.warning:
            text += f"\n    warning{paragraph(outcome.warning, '    ')}"
        self._line(text)

    def waiting(self, waiting: Mapping[Address, str], seconds: float) -> None:
        if seconds < PATIENCE:
            return
        with self._lock:
            below = _by_condition(waiting) if self.output.is_live else []
            self._draw(_awaited(waiting, named=not below), seconds, below)

    def close(self) -> None:
        """Clear the live line and stop the thread."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._lock:
            self._sum_up()
            self._clear()

    # --- drawing

    def _sum_up(self) -> None:
        """Print how many queries have converged without a line of their own."""
        more, self._applied = self._applied - _LINES, 0
        if more > 0:
            self._line(f"  {_MARKS['applied']} {count(more, 'query', 'queries')} more: applied")

    def _start(self) -> None:
        if self._thread is None:
            self._closing.clear()
            thread = threading.Thread(target=self._tick, name="progress", daemon=True)
            thread.start()  # an interrupt, followed by `close`, may happen here
            self._thread = thread

    def _tick(self) -> None:
        while not self._closing.wait(_TICK):
            with self._lock:
                if self._closing.is_set() or not self._work:
                    continue
                text, began = self._work[-1]
                seconds = self.clock() - began
                if seconds >= PATIENCE:
                    self._draw(text if isinstance(text, str) else text(), seconds)

    def _draw(self, text: str, seconds: float, below: Sequence[str] = ()) -> None:
        suffix = f"; {self._applied} applied" if self._applied > _LINES else ""
        line = f"  … {seconds:.0f} s: {text}{suffix}"
        if self.output.is_live:
            lines = [cut(row, width() - 1) for row in (line, *below)]
            if lines != self._drawn:
                self.output.live(self._erased() + "\n".join(lines))
                self._drawn = lines
        elif self.clock() - self._printed_at >= EVERY:
            self._printed_at = self.clock()
            self.output.err(line)

    def _line(self, text: str) -> None:
        with self._lock:
            self._clear()
            self._printed_at = max(self._printed_at, self.clock() - EVERY + PATIENCE)
            self.output.err(text)

    def _clear(self) -> None:
        if self._drawn:
            self.output.live(self._erased())
            self._drawn = []

    def _erased(self) -> str:
        """Return the codes that move to the start of the block and clear it."""
        above = len(self._drawn) - 1
        return "\r" + (f"\x1b[{above}A\x1b[J" if above > 0 else "\x1b[K")


def _awaited(waiting: Mapping[Address, str], *, named: bool) -> str:
    counts = Counter(waiting.values())
    conditions = ", ".join(f"{n} {safe(condition)}" for condition, n in sorted(counts.items()))
    names = f" ({first_names(list(waiting), NAMED)})" if named else ""
    return f"waiting for {count(len(waiting), 'query', 'queries')}: {conditions}{names}"


def _by_condition(waiting: Mapping[Address, str]) -> list[str]:
    """Return a line per condition with its queries; empty for a single condition."""
    by_condition: dict[str, list[Address]] = {}
    for address, condition in waiting.items():
        by_condition.setdefault(condition, []).append(address)
    if len(by_condition) < 2:
        return []
    return [
        f"    {len(addresses)} {safe(name)}: {first_names(addresses, NAMED)}"
        for name, addresses in sorted(by_condition.items())
    ]
