"""A collection that grows in small steps for a long time: does it become slower?

A Kafka source does 2,000 micro-batches as fast as it can, under constant load. One Delta sink follows it.
Another is paused for half of the time, and then has to catch up. The source retains 200 steps, and beside
these the steps that the paused sink has not read yet.

- step: the median time of the last 200 micro-batches, compared with 200 after the warm-up.
- files: the files of the collection's newest version, and the versions and files of its log. (Files that are
  no longer needed stay for at least an hour, so such a short run keeps every version.)
- rows: each sink has each row once.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from deltalake import DeltaTable

from benchmarks.figures import Table, say, verdict
from benchmarks.stage import Project, Stage, wait_until
from examples.servers import create_topic, produce_json
from mzplan.warehouse.checkpoints import collection_path
from mzplan.warehouse.step_history import StepHistory

TOPIC = "long_run"
KEPT = 200  # steps that the source retains; the benchmark can't read older ones
ROWS = 20  # rows that are produced at once
EVERY = 0.05  # seconds between two of these


@dataclass(frozen=True, slots=True)
class Size:
    """Numbers of steps, and `look_s`, the seconds between two reads of the step history."""

    steps: int
    window: int
    paused: range
    look_s: float


FULL = Size(steps=2_000, window=200, paused=range(500, 1_500), look_s=2.0)
SMALL = Size(steps=8, window=2, paused=range(2, 5), look_s=0.2)


def measure(stage: Stage) -> Table:
    size = SMALL if stage.small else FULL
    brokers = stage.kafka.bootstrap
    project = Project(stage.folder / "long_run", {})
    create_topic(brokers, TOPIC)
    load = Load(brokers)
    try:
        _declare(project, brokers)
        project.apply()
        load.start()
        return Table(("what", "figure", "aim"), _run(project, load, size))
    finally:
        load.stop()
        project.down()


class Load:
    """Produces rows at a constant rate until it is stopped."""

    def __init__(self, brokers: str):
        self.brokers = brokers
        self.rows = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._feed, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(30.0)

    def _feed(self) -> None:
        while not self._stopping.wait(EVERY):
            rows = [{"id": n} for n in range(self.rows, self.rows + ROWS)]
            produce_json(self.brokers, TOPIC, rows, key="id")
            self.rows += ROWS


def _declare(project: Project, brokers: str) -> None:
    trigger = {"interval": "100ms"}
    source = {
        "connection": "k",
        "topic": TOPIC,
        "format": {"type": "json", "schema": "id BIGINT"},
        "retention": {"steps": KEPT},
        "trigger": trigger,
    }
    sink = {"from": "s", "connection": "lake", "type": "delta", "trigger": trigger}
    project.write(
        "queries",
        {
            "connections": {
                "k": {"type": "kafka", "brokers": [brokers]},
                "lake": {"type": "files", "path": "./lake"},
            },
            "sources": {"s": source},
            "sinks": {name: {**sink, "path": name} for name in ("live", "late")},
        },
    )


def _run(project: Project, load: Load, size: Size) -> list[tuple[str, ...]]:
    record = project.run("state", "show", "source.s")
    place = (record["id"], record["generation"])
    history = StepHistory(str(project.folder / "warehouse"), place)
    times: dict[int, float] = {}
    paused = False
    while not times or max(times) < size.steps:
        time.sleep(size.look_s)
        read = history.read(KEPT).records
        times |= {r.step: r.time for r in read if r.committed and r.time is not None}
        step = max(times, default=0)
        if not paused and step in size.paused:
            project.run("pause", "sink.late")
            say(f"    step {step}: paused")
            paused = True
        elif paused and step >= size.paused.stop:
            project.run("resume", "sink.late")
            say(f"    step {step}: resumed")
            paused = False
    load.stop()
    return [
        *_steps(times, size.window),
        *_files(Path(collection_path(str(project.folder / "warehouse"), *place))),
        *(_rows(project, load.rows, sink) for sink in ("live", "late")),
    ]


def _steps(times: dict[int, float], window: int) -> list[tuple[str, ...]]:
    steps = sorted(times)
    taken = [times[b] - times[a] for a, b in itertools.pairwise(steps) if b == a + 1]
    first, last = statistics.median(taken[window : 2 * window]), statistics.median(taken[-window:])
    each = (statistics.median(taken[at : at + window]) for at in range(0, len(taken) - window // 2, window))
    return [
        (f"seconds for a step (median), steps {window} – {2 * window - 1}", f"{first:.2f}", ""),
        (
            f"the last {window}, while the paused sink catches up",
            f"{last:.2f}",
            verdict(f"1.25 × that; {last / first:.2f} ×", last <= 1.25 * first),
        ),
        (f"by {window} steps", ", ".join(f"{one:.2f}" for one in each), ""),
    ]


def _files(collection: Path) -> list[tuple[str, ...]]:
    log = [path.name for path in (collection / "_delta_log").iterdir()]
    versions = sum(name.endswith(".json") for name in log)
    files = len(DeltaTable(str(collection)).file_uris())
    return [
        ("files of the newest version", f"{files:,}", ""),
        ("the log", f"{versions:,} versions in {len(log):,} files", ""),
    ]


def _rows(project: Project, rows: int, sink: str) -> tuple[str, ...]:
    table = str(project.folder / "lake" / sink)
    wait_until(f"{rows} rows in {sink}", partial(_holds, table, rows), 300.0)
    ids = DeltaTable(table).to_pyarrow_table(columns=["id"]).column("id").to_pylist()
    once = sorted(ids) == list(range(rows))
    what = {"live": "rows in the sink that ran", "late": "rows in the sink that was paused"}[sink]
    return (what, f"{len(ids):,}", verdict(f"each of {rows:,} once", once))


def _holds(table: str, rows: int) -> bool:
    return int(DeltaTable(table).to_pyarrow_dataset().count_rows()) >= rows
