"""Progress on stderr: a line when something happens; on a terminal, below them, one live block for what takes
time. There, of many queries that have converged the first few have a line, and the others are counted."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from mzplan.cli.streams import Streams, width
from mzplan.model.address import Address
from mzplan.model.words import count
from mzplan.operations.project import Outcome
from mzplan.render.text import cut, paragraph, safe

PATIENCE = 1.0  # seconds that something may take in silence
EVERY = 10.0  # seconds between lines where there is no terminal
_TICK = 0.25
_LINES = 3  # of queries that have converged, on a terminal
_NAMED = 3  # queries of a line of the block
_MARKS = {"applied": "✓", "pending": "…", "rejected": "✗", "failed": "✗"}


class ProgressLines:
    """Implements mzplan.operations.project.Reporter. A thread draws what takes longer than a second, so that
    no operation has to think of it."""

    def __init__(self, output: Streams, verbose: int = 0, clock: Callable[[], float] = time.monotonic):
        self.output = output
        self.verbose = verbose
        self.clock = clock
        self.serial: int | None = None  # committed, or about to be
        self.is_committed = False
        self._began = clock()
        self._lock = threading.RLock()
        self._doing: list[tuple[str | Callable[[], str], float]] = []
        self._drawn: list[str] = []
        self._applied = 0
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
            self._sum_up()
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
        """On a terminal the many that have simply converged are only counted; in a log each is a line."""
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
        """Clear the live line, and end."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._lock:
            self._sum_up()
            self._clear()

    # --- drawing

    def _sum_up(self) -> None:
        """Say how many have converged without a line of their own."""
        more, self._applied = self._applied - _LINES, 0
        if more > 0:
            self._line(f"  {_MARKS['applied']} {count(more, 'query', 'queries')} more: applied")

    def _start(self) -> None:
        if self._thread is None:
            self._closing.clear()
            thread = threading.Thread(target=self._tick, name="progress", daemon=True)
            thread.start()  # an interrupt may come in here, and then `close`
            self._thread = thread

    def _tick(self) -> None:
        while not self._closing.wait(_TICK):
            with self._lock:
                if self._closing.is_set() or not self._doing:
                    continue
                text, began = self._doing[-1]
                seconds = self.clock() - began
                if seconds >= PATIENCE:
                    self._draw(text if isinstance(text, str) else text(), seconds)

    def _draw(self, text: str, seconds: float, below: Sequence[str] = ()) -> None:
        done = f"; {self._applied} applied" if self._applied > _LINES else ""
        line = f"  … {seconds:.0f} s: {text}{done}"
        if self.output.is_live:
            lines = [cut(row, width() - 1) for row in (line, *below)]
            if lines != self._drawn:
                self.output.live(self._erased() + "\n".join(lines))
                self._drawn = lines
        elif self.clock() - self._said_at >= EVERY:
            self._said_at = self.clock()
            self.output.err(line)

    def _line(self, text: str) -> None:
        with self._lock:
            self._clear()
            self._said_at = max(self._said_at, self.clock() - EVERY + PATIENCE)
            self.output.err(text)

    def _clear(self) -> None:
        if self._drawn:
            self.output.live(self._erased())
            self._drawn = []

    def _erased(self) -> str:
        """Back to where the block begins, and clear from there."""
        above = len(self._drawn) - 1
        return "\r" + (f"\x1b[{above}A\x1b[J" if above > 0 else "\x1b[K")


def _awaited(waiting: Mapping[Address, str], *, named: bool) -> str:
    counts = Counter(waiting.values())
    conditions = ", ".join(f"{n} {safe(condition)}" for condition, n in sorted(counts.items()))
    names = f" ({named_first(list(waiting))})" if named else ""
    return f"{count(len(waiting), 'query', 'queries')} awaited: {conditions}{names}"


def _by_condition(waiting: Mapping[Address, str]) -> list[str]:
    """A line for each condition, of several: how many are in it, and which."""
    by_condition: dict[str, list[Address]] = {}
    for address, condition in waiting.items():
        by_condition.setdefault(condition, []).append(address)
    if len(by_condition) < 2:
        return []
    return [
        f"    {len(addresses)} {safe(name)}: {named_first(addresses)}"
        for name, addresses in sorted(by_condition.items())
    ]


def named_first(addresses: Sequence[Address]) -> str:
    """The first of them, and how many more there are."""
    first = ", ".join(map(str, addresses[:_NAMED]))
    return first + (f" and {len(addresses) - _NAMED} more" if len(addresses) > _NAMED else "")
