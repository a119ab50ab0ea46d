"""Follows the store for the pages: one thread reads it, and all pages show the latest result.

It keeps rates and lag of the last hour. This process's own samples take a fixed amount of memory. Earlier
samples come from the runners' records.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import secrets
import threading
import time
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from starlette.concurrency import run_in_threadpool

from mzplan.features.ui.overview import Overview, OverviewReader
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.observed import MAX_SAMPLES as MINUTES
from mzplan.model.observed import SAMPLE_INTERVAL, Condition, Recent
from mzplan.model.state import QueryStatus
from mzplan.render.status import COLUMNS, row

SAMPLE_SECONDS = 10.0  # seconds between two samples
SAMPLES = 360  # samples of each query: one hour
MAX_RUNS = 20  # starts remembered for each query

Point = tuple[float, float | None]  # seconds since the epoch, and a value


class Samples:
    """A ring of samples for each query: 360 samples of two numbers, 6 KB.

    One thread adds. A concurrent reader may see one sample more or less."""

    def __init__(self, size: int = SAMPLES):
        self._size = size
        self._added = 0
        self._times = array("d", [math.nan]) * size
        self._values: dict[Address, tuple[array[float], array[float]]] = {}
        self._runs: dict[Address, deque[tuple[float, str]]] = {}
        self.recalled: Recent = {}  # the runners' records, which also cover the time before this process

    def add(self, queries: Iterable[QueryStatus], now: float) -> None:
        """Add a sample of every query at `now` (seconds since the epoch), and forget removed queries."""
        at = self._added % self._size
        self._times[at] = now
        present = set()
        for query in queries:
            address, observation = query.resource.address, query.observation
            present.add(address)
            rates, lags = self._ring(address)
            rates[at] = observation.input_rows_per_second if observation is not None else math.nan
            lags[at] = (
                observation.lag if observation is not None and observation.lag is not None else math.nan
            )
        for gone in self._values.keys() - present:
            del self._values[gone]
            self._runs.pop(gone, None)
        self._added += 1

    def started(self, address: Address, run_id: str, now: float) -> None:
        """Record that a run of a query was seen at `now`; a known run changes nothing."""
        runs = self._runs.setdefault(address, deque(maxlen=MAX_RUNS))
        if not runs or runs[-1][1] != run_id:
            runs.append((now, run_id))

    def runs(self, address: Address) -> list[float]:
        """Return when each run was first seen, the oldest first. The first may have begun earlier."""
        return [at for at, _ in list(self._runs.get(address, ()))]

    def rates(self, address: Address) -> list[Point]:
        """Return rows per second, the oldest first."""
        return self._points(address, 0)

    def lags(self, address: Address) -> list[Point]:
        """Return the unread input, in the query's own unit."""
        return self._points(address, 1)

    def conditions(self, address: Address) -> list[tuple[float, Condition]]:
        """Return the times, to the minute, at which the condition changed, the oldest first."""
        changes: list[tuple[float, Condition]] = []
        for at, _, _, condition in self.recalled.get(address, ())[-MINUTES:]:
            if not changes or changes[-1][1] != condition:
                changes.append((at, condition))
        return changes

    def _points(self, address: Address, index: int) -> list[Point]:
        """Return the runners' records up to this process's first sample, then its own samples."""
        own = self._own_points(address, index)
        first = own[0][0] if own else math.inf
        recalled = self.recalled.get(address, ())[-MINUTES:]
        return [*((at, (rate, lag)[index]) for at, rate, lag, _ in recalled if at < first), *own]

    def _own_points(self, address: Address, index: int) -> list[Point]:
        if address not in self._values:
            return []
        values, added = self._values[address][index], self._added
        order = (n % self._size for n in range(max(0, added - self._size), added))
        return [(self._times[n], None if math.isnan(values[n]) else values[n]) for n in order]

    def _ring(self, address: Address) -> tuple[array[float], array[float]]:
        if address not in self._values:
            empty = array("d", [math.nan]) * self._size
            self._values[address] = (empty, array("d", empty))
        return self._values[address]


log = logging.getLogger("mzplan.ui")

POLL_SECONDS = 1.0  # seconds between two reads while a page is open
OPEN_SECONDS = 10.0  # seconds after a page's last request for which it counts as open
MAX_WAIT_SECONDS = 8.0  # maximum seconds for which a request for changes waits
FIRST_WAIT_SECONDS = 20.0  # seconds that the first page waits for the first read
_NUMBERS = tuple(COLUMNS.index(name) for name in ("STEP", "ROWS", "ROWS/S", "LAG"))

Numbers = tuple[str, ...]  # latency, step, rows, rows/s and lag, as `status` shows them


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The content of the pages.

    - `overview`: the last overview that could be read; None before the first read.
    - `problem`: why the last read failed; empty if `overview` is current.
    - `version`: increases with every change; `page`: increases unless only numbers changed.
    """

    overview: Overview | None = None
    problem: tuple[Diagnostic, ...] = ()
    version: int = 0
    page: int = 0
    numbers: Mapping[Address, Numbers] = field(default_factory=dict)
    changed_in: Mapping[Address, int] = field(default_factory=dict)  # the version that changed its numbers


class Follower:
    """Reads the store every second while a page is open, and otherwise every ten, for the plots."""

    def __init__(self, reader: OverviewReader):
        self.boot = secrets.token_hex(4)  # tells this process's versions from another's
        self.samples = Samples()
        self._reader = reader
        self._view = View()
        self._requested_at = 0.0
        self._sampled_at = self._recalled_at = 0.0
        self._wake = threading.Event()
        self._ready = threading.Event()
        self.is_ended = False
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.end()
        self._thread.join(5)

    def end(self) -> None:
        """Stop reading, and release waiting requests."""
        self.is_ended = True
        self._wake.set()

    def view(self) -> View:
        """Return the current view and keep the reading active. Any thread may call this."""
        idle = time.monotonic() - self._requested_at > POLL_SECONDS
        self._requested_at = time.monotonic()
        if idle:
            self._wake.set()
        self._ready.wait(FIRST_WAIT_SECONDS)
        return self._view

    async def view_after(self, version: int) -> View:
        """Return the view once its version changes, or unchanged after some seconds."""
        view = await run_in_threadpool(self.view)
        until = time.monotonic() + MAX_WAIT_SECONDS
        while view.version == version and time.monotonic() < until and not self.is_ended:
            await asyncio.sleep(POLL_SECONDS / 5)
            self._requested_at = time.monotonic()
            view = self._view
        return view

    def _follow(self) -> None:
        while not self.is_ended:
            began = time.monotonic()
            self._wake.clear()
            self._poll()
            is_open = began - self._requested_at < OPEN_SECONDS
            pause = max(POLL_SECONDS, self._reader.pause) if is_open else SAMPLE_SECONDS
            # Keep a minimum pause even if woken: a reader must not be able to make this loop spin.
            elapsed = time.monotonic() - began
            if self._wake.wait(max(0.0, pause - elapsed)) and not self.is_ended:
                time.sleep(max(0.0, min(POLL_SECONDS, self._reader.pause) - elapsed))

    def _poll(self) -> None:
        try:
            overview = self._reader.read()
        except MzplanError as problem:
            self._show(self._view.overview, problem.diagnostics)
        except Exception:  # a defect: the page says that it isn't current, and the next read may succeed
            defect = Diagnostic.of("MZ079.mzplan-defect-store-not")
            if self._view.problem != (defect,):
                log.exception("can't read the store")
            self._show(self._view.overview, (defect,))
        else:
            self._sample(overview)
            self._show(overview, ())
        self._ready.set()

    def _sample(self, overview: Overview) -> None:
        now = time.time()
        if now - self._recalled_at >= SAMPLE_INTERVAL:
            self._recalled_at = now
            with contextlib.suppress(MzplanError):  # plots are optional, so their failure hides nothing else
                self.samples.recalled = self._reader.recent()
        for query in overview.status.queries:
            if query.observation is not None and query.observation.run_id:
                self.samples.started(query.resource.address, query.observation.run_id, now)
        if now - self._sampled_at >= SAMPLE_SECONDS:
            self._sampled_at = now
            self.samples.add(overview.status.queries, now)

    def _show(self, overview: Overview | None, problem: tuple[Diagnostic, ...]) -> None:
        before = self._view
        if overview is before.overview and problem == before.problem:
            return
        version = before.version + 1
        numbers, changed = before.numbers, before.changed_in
        if overview is not None and overview is not before.overview:
            numbers = {query.resource.address: _numbers(query) for query in overview.status.queries}
            changed = {
                address: version if cells != before.numbers.get(address) else before.changed_in[address]
                for address, cells in numbers.items()
            }
        is_unchanged = problem == before.problem and list(_page_values(overview)) == list(
            _page_values(before.overview)
        )
        self._view = View(
            overview=overview,
            problem=problem,
            version=version,
            page=before.page if is_unchanged else before.page + 1,
            numbers=numbers,
            changed_in=changed,
        )


def _numbers(query: QueryStatus) -> Numbers:
    cells = row(query, query.as_of or 0.0)
    latency = query.observation.latency_seconds if query.observation is not None else None
    shown = f"{latency:,.1f} s" if latency is not None else "-"
    return (shown, *(cells[n] for n in _NUMBERS))


def _page_values(overview: Overview | None) -> Iterator[object]:
    """Yield the values whose change affects more than a page's numbers."""
    if overview is None:
        return
    status = overview.status
    yield from (status.serial, overview.pending, overview.drift)
    yield from ((instance.name, instance.alive, instance.serial) for instance in status.instances)
    for query in status.queries:
        yield query.condition
        if (seen := query.observation) is not None:
            yield from (seen.at_fault, seen.error, seen.held, seen.warning, seen.run_id)
            yield from (seen.failures, seen.retry_at)
