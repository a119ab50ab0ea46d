"""`mzplan ui` on 1,000 queries, in a headless Chromium.

Measures how soon pages appear, how soon they show a changed status, and the CPU that an open page takes while
nothing changes. Runs no Spark: the benchmark writes the status as a runner would.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.figures import Table, say, verdict
from benchmarks.plan_scale import run, write_project
from benchmarks.stage import BenchmarkError, Stage
from mzplan.model.address import Address
from mzplan.model.observed import Condition
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store
from tests.browser.chromium import missing
from tests.browser.pages import Browser

RESOURCES = 1_010  # 1,000 queries, 10 connections
PATHS = ("/", "/?all=1", "/queries", "/resources/source.s0", "/open")
PAINT, SEEN, IDLE = 2.0, 2.0, 0.02  # seconds, seconds, fraction of a core
CHANGED = Address("source", "s0")


def measure(stage: Stage) -> Table:
    if (lacking := missing()) is not None:
        raise BenchmarkError(f"{lacking}; the pages are shown in one")
    folder = stage.folder / "pages"
    write_project(folder / "project", 100 if stage.small else RESOURCES)
    run(folder / "project", "apply", "--auto-approve")
    store = Store(LocalBackend(folder / "project" / "state"), "bench")
    rounds = 1 if stage.small else 5
    browser = Browser(folder)
    try:
        with _served(folder / "project") as (address, process):
            browser.open(address)  # the first page also reads the store, which happens only once
            rows = [_paint(browser, f"{address}{path}", path, rounds) for path in PATHS]
            rows += [_seen(browser, store, f"{address}{path}", path, rounds) for path in ("/", "/queries")]
            rows += _idle(browser, f"{address}/", process, 3.0 if stage.small else 30.0)
    finally:
        browser.close()
    return Table(("page", "figure", "aim"), rows)


@contextmanager
def _served(project: Path) -> Iterator[tuple[str, int]]:
    """Serve the pages; yield their address and the process id of the server."""
    command = [sys.executable, "-m", "mzplan", "-C", str(project), "ui", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[4].rstrip("/"), process.pid
        process.terminate()


def _paint(browser: Browser, url: str, path: str, rounds: int) -> tuple[str, ...]:
    """Measure the time to the first contentful paint, as the browser reports it."""
    taken = []
    for _ in range(rounds):
        browser.open("about:blank#")
        browser.open(url)
        browser.until("performance.getEntriesByName('first-contentful-paint').length > 0")
        taken.append(
            browser.run("performance.getEntriesByName('first-contentful-paint')[0].startTime") / 1000
        )
    return _row(f"{path}: first paint, s", statistics.median(taken), PAINT)


def _seen(browser: Browser, store: Store, url: str, path: str, rounds: int) -> tuple[str, ...]:
    """Measure the time from the write of a status until the page shows it."""
    browser.open(url)
    shown = "document.querySelector('main .chips').textContent.includes('1 failed')"
    taken = []
    for number in range(2 * rounds):
        fails = number % 2 == 0
        began = time.monotonic()
        _report(store, "failed" if fails else "running")
        browser.until(shown if fails else f"!{shown}")
        taken.append(time.monotonic() - began)
    return _row(f"{path}: a condition is shown after, s", statistics.median(taken), SEEN)


def _idle(browser: Browser, url: str, process: int, seconds: float) -> list[tuple[str, ...]]:
    """Measure the CPU of the server and of all browser processes while the page is open."""
    browser.open(url)
    time.sleep(2)  # exclude the work to open the page
    before = _cpu(process), sum(map(_cpu, _processes_of(browser)))
    time.sleep(seconds)
    after = _cpu(process), sum(map(_cpu, _processes_of(browser)))
    served, drawn = ((b - a) / seconds for a, b in zip(before, after, strict=True))
    return [
        _row("/: open, nothing changes: server, of a core", served, IDLE),
        _row("/: open, nothing changes: browser, of a core", drawn, IDLE),
    ]


def _row(what: str, found: float, aim: float) -> tuple[str, ...]:
    say(f"    {what:<48} {found:8.3f}")
    return (what, f"{found:.3f}", verdict(f"≤ {aim:g}", found <= aim))


def _report(store: Store, condition: Condition) -> None:
    status = store.read_status("local")
    assert status is not None
    observations = {**status.observations}
    observations[CHANGED] = replace(observations[CHANGED], condition=condition)
    store.write_status(replace(status, observations=observations))


def _cpu(process: int) -> float:
    """Return the process's CPU seconds, user and system; 0.0 if the process has ended."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _processes_of(browser: Browser) -> list[int]:
    """Return the process ids of the browser and of all its descendants."""
    found = [browser.pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            found += map(int, task.read_text().split())
    return found
