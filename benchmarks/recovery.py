"""A runner of 200 queries is killed: how long until everything runs again?

One embedded runner has 100 Kafka sources, and a sink for each: 50 to PostgreSQL and 50 to Delta. A query runs
again when the Status shows that its new run is past a first trigger.

- restart: a Kafka connection that 40 of the sources use moves; `mzplan apply`, from the start of its process
  to its end.
- up: kill -9 of the runner's Python (its JVM ends by itself), then `mzplan up`, from its start.
- up, records: as before, with new records for each source, so that the first trigger of each source is a
  micro-batch. A query has caught up when it has done a micro-batch with these records.
- standby: the runner's processes are frozen, which looks as if their machine had failed. A second runner
  stands by, and leads when the lease has expired.

CPU seconds count the runner's Python and JVM since their start. On a busy machine they are more reliable than
elapsed seconds. The limits are measured while all queries are idle.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Table, say, verdict
from benchmarks.many_queries import java_of, resident, settled
from benchmarks.restart import Move, Queries, seconds_restarting, write_project
from benchmarks.stage import Project, Stage, wait_until
from examples.servers import KafkaBroker, produce_json
from mzplan.model.address import Address
from mzplan.model.observed import Lease, Status
from mzplan.operations.project import open_project
from mzplan.store.backends.local import STATE_KEY
from mzplan.store.leases import LEASE_TTL
from mzplan.store.store import Store

NAME = "recovery"
INSTANCE = "local"
RECORDS = 10  # records per topic that arrive while no query runs
LIMIT = 900.0  # seconds until a measurement fails

UP_AIM, STANDBY_AIM, RESTART_AIM = 90.0, LEASE_TTL + 5.0, 6.0  # seconds


@dataclass(frozen=True, slots=True)
class Size:
    """The size of the benchmark."""

    queries: Queries
    trigger: str
    restarts: int
    """Measurements of a restart."""
    statuses: int
    """Measurements of `mzplan status`."""
    look_s: float
    """Seconds between two reads of the Status."""
    rest_s: float
    """Seconds without work before a measurement."""


FULL = Size(Queries(100, 40, 50), trigger="10s", restarts=4, statuses=5, look_s=0.25, rest_s=15.0)
SMALL = Size(Queries(2, 1, 1), trigger="500ms", restarts=1, statuses=1, look_s=0.02, rest_s=0.0)


@dataclass(frozen=True, slots=True)
class Recovered:
    """Seconds until a new runner reached each point of its start, and its CPU time."""

    leads: float
    ready: float
    """Its Spark was ready."""
    first: float
    """The first query ran."""
    half: float
    """Half of the queries ran."""
    running: float
    """All queries ran."""
    caught_up: float
    """All queries had done a micro-batch."""
    cpu: Mapping[str, float]
    """CPU seconds of its Python and its JVM when all queries ran."""


def measure(stage: Stage) -> Table:
    size = SMALL if stage.small else FULL
    kafka = stage.kafka
    folder = stage.folder / NAME
    common = {"trigger": {"interval": size.trigger}}
    project = write_project(folder, kafka, stage.postgres, size.queries, NAME, common)
    try:
        began = time.monotonic()
        project.run("apply", "--auto-approve", "--wait", f"{LIMIT:.0f}s")
        settled(project, 2 * size.queries.sources)
        rows = [_first(time.monotonic() - began)]
        time.sleep(size.rest_s)
        rows += _limits(project, size)
        moving = Move("moving", "brokers", ([kafka.bootstrap], [kafka.bootstrap2]), size.queries.moving)
        rows += _restarts(project, moving, size)
        rows += _shown("up", _up(project, kafka, size, fed=False), "running", UP_AIM)
        time.sleep(size.rest_s)
        rows += _shown("up, records", _up(project, kafka, size, fed=True), "running", UP_AIM)
        time.sleep(size.rest_s)
        rows += _shown("standby", _standby(project, kafka, size), "leads", STANDBY_AIM)
        return Table(("what", "figure", "aim"), rows)
    finally:
        project.down()


def _first(seconds: float) -> tuple[str, ...]:
    return ("the first start, each past its first micro-batch", f"{seconds:.1f} s{_load()}", "")


def _limits(project: Project, size: Size) -> list[tuple[str, ...]]:
    taken = []
    for _ in range(size.statuses):
        began = time.monotonic()
        project.run("status")
        taken.append(time.monotonic() - began)
    memory = resident(project)
    state = (project.folder / "state" / STATE_KEY).stat().st_size
    return [
        ("memory in all", ", ".join(f"{name} {mib:,.0f} MiB" for name, mib in memory.items()), ""),
        ("the state's file", f"{state / 1024:,.0f} KiB", ""),
        ("`mzplan status --json`", f"{statistics.median(taken):.2f} s", ""),
    ]


def _restarts(project: Project, move: Move, size: Size) -> list[tuple[str, ...]]:
    took, within, used = [], [], []
    for _ in range(size.restarts):
        move.make(project.folder / "connections.yaml")
        before = _cpu(_lease(_store(project)).pid)
        began = time.monotonic()
        document = project.apply()
        took.append(time.monotonic() - began)
        within.append(seconds_restarting(document, move))
        used.append(sum(_cpu(_lease(_store(project)).pid).values()) - sum(before.values()))
        say(f"    restart {took[-1]:8.2f} s, of it {within[-1]:.2f} s; runner's CPU {used[-1]:.2f} s")
        time.sleep(size.rest_s)
    middle = statistics.median(took)
    listed = ", ".join(f"{one:.2f}" for one in took)
    what = f"restart: {move.queries} of {2 * size.queries.sources} queries"
    return [
        (what, f"{middle:.2f} s ({listed}){_load()}", verdict(f"{RESTART_AIM:.0f} s", middle <= RESTART_AIM)),
        ("restart: of it from the commit on", f"{statistics.median(within):.2f} s", ""),
        ("restart: CPU of the runner", f"{statistics.median(used):.2f} s", ""),
    ]


def _up(project: Project, kafka: KafkaBroker, size: Size, *, fed: bool) -> Recovered:
    store = _store(project)
    before, led = _steps(store), _lease(store)
    os.kill(led.pid, signal.SIGKILL)
    if fed:
        _feed(kafka, size)
    began = time.monotonic()
    project.run("up")
    return _recovered(store, began, led, before if fed else dict.fromkeys(before, -1), size)


def _standby(project: Project, kafka: KafkaBroker, size: Size) -> Recovered:
    store = _store(project)
    with _standing_by(project):
        before, led = _steps(store), _lease(store)
        frozen = (led.pid, *java_of(led.pid))
        for pid in frozen:
            os.kill(pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            _feed(kafka, size)
            return _recovered(store, began, led, before, size)
        finally:
            for pid in frozen:
                os.kill(pid, signal.SIGKILL)


@contextmanager
def _standing_by(project: Project) -> Iterator[None]:
    """Run a second runner, which stands by; stop it afterwards."""
    command = [sys.executable, "-m", "mzplan", "-C", str(project.folder), "run", "--instance", INSTANCE]
    log = project.folder / "standby.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=project.environment)
        try:
            wait_until("a runner stands by", lambda: b"standing by" in log.read_bytes())
            yield
        finally:
            process.terminate()
            process.wait()


def _feed(kafka: KafkaBroker, size: Size) -> None:
    rows = [{"id": i, "name": f"m{i}", "amount": "1.00"} for i in range(RECORDS)]

    def feed(number: int) -> None:
        produce_json(kafka.bootstrap, f"{NAME}{number}", rows, key="id")

    # Each producer takes half a second, so running them one after the other would delay the measurement.
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(feed, range(size.queries.sources)))


def _recovered(
    store: Store, began: float, led: Lease, before: Mapping[Address, int], size: Size
) -> Recovered:
    """Measure a runner that succeeds the leader `led`, until each query is past its step in `before`."""
    marks: dict[str, float] = {}
    cpu: dict[str, float] = {}

    def mark(name: str, holds: bool) -> None:
        if holds and name not in marks:
            marks[name] = time.monotonic() - began
            say(f"    {name:<24} {marks[name]:8.2f} s{_load()}")

    def caught_up() -> bool:
        lease = _lease(store)
        mark("leads", lease.epoch > led.epoch)
        status = store.read_status(INSTANCE)
        if status is None or status.epoch < lease.epoch or lease.epoch == led.epoch:
            return False
        run = sum(one.condition == "running" for one in status.observations.values())
        mark("ready", status.opening_since is None)
        mark("first", run > 0)
        mark("half", 2 * run >= len(before))
        mark("running", run == len(before))
        if "running" in marks and not cpu:
            cpu.update(_cpu(lease.pid))
        mark("caught_up", run == len(before) and _are_past(status, before))
        return "caught_up" in marks

    wait_until("all has caught up", caught_up, LIMIT, size.look_s)
    return Recovered(**marks, cpu=cpu)


def _are_past(status: Status, before: Mapping[Address, int]) -> bool:
    return all(status.observations[address].step > step for address, step in before.items())


def _shown(way: str, found: Recovered, judged: str, aim: float) -> list[tuple[str, ...]]:
    words = {
        "leads": "until it leads",
        "ready": "until its Spark is ready",
        "first": "until the first query runs",
        "half": "until half of them run",
        "running": "until all run",
        "caught_up": "until all have caught up",
    }
    rows = []
    for name, word in words.items():
        seconds = getattr(found, name)
        cell = verdict(f"{aim:.0f} s", seconds <= aim) if name == judged else ""
        rows.append((f"{way}: {word}", f"{seconds:.1f} s", cell))
    used = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in found.cpu.items())
    return [*rows, (f"{way}: CPU when all run", f"{used}{_load()}", "")]


def _store(project: Project) -> Store:
    return open_project(str(project.folder)).store


def _lease(store: Store) -> Lease:
    lease = store.leases.read(INSTANCE)
    assert lease is not None
    return lease


def _steps(store: Store) -> dict[Address, int]:
    """Return the last step of each query."""
    status = store.read_status(INSTANCE)
    assert status is not None
    return {address: one.step for address, one in status.observations.items()}


def _cpu(pid: int) -> dict[str, float]:
    """Return the CPU seconds of a runner's Python process and of its JVM, which has the Python workers."""
    return {"Python": _seconds(pid), "JVM": sum(map(_seconds, java_of(pid)))}


def _seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def _load() -> str:
    return f" at load {os.getloadavg()[0]:.0f}"
