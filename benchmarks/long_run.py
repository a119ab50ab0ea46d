"""A collection that is fed in small steps for a long time: does it rot?

A Kafka source, as many micro-batches as it can do one after the other, 2,000 of them, under constant load; a
Delta sink that follows, and another that is paused for half of the time, and then has to catch up. The source
keeps 200 steps for whoever wants to read them; what the paused sink has still to read stays beside that.

- step: how long a micro-batch takes, the median of the last 200 against that of 200 after the warm-up.
- files: those that the collection's newest version has; and of its log the versions, and all files. (What is
  not needed any more stays for an hour at least, so a run as short as this keeps every version.)
- rows: each sink has each row once.
"""

from __future__ import annotations

import itertools
import statistics
import threading
import time
from functools import partial
from pathlib import Path

from deltalake import DeltaTable

from benchmarks.stage import Project, kafka_at, say, scratch, verdict, wait_until
from examples.servers import KafkaBroker, create_topic, produce_json
from mzplan.connectors.checkpoints import collection_path
from mzplan.steps.history import StepHistory

STEPS = 2_000
WINDOW = 200
PAUSED = range(500, 1_500)  # steps
ROWS = 20  # of each record batch
EVERY = 0.05  # seconds


def main() -> None:
    say(f"long_run: {STEPS} steps")
    with scratch() as folder, kafka_at(folder) as kafka:
        project = Project(folder / "project", {})
        create_topic(kafka.bootstrap, "t")
        load = Load(kafka)
        try:
            _declare(project, kafka)
            project.apply()
            load.start()
            _run(project, load)
        finally:
            load.stop()
            project.down()


class Load:
    """Rows that come all the time."""

    def __init__(self, kafka: KafkaBroker):
        self.kafka = kafka
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
            produce_json(self.kafka.bootstrap, "t", rows, key="id")
            self.rows += ROWS


def _declare(project: Project, kafka: KafkaBroker) -> None:
    trigger = {"interval": "100ms"}
    source = {
        "connection": "k",
        "topic": "t",
        "format": {"type": "json", "schema": "id BIGINT"},
        "retention": {"steps": WINDOW},
        "trigger": trigger,
    }
    sink = {"from": "s", "connection": "lake", "type": "delta", "trigger": trigger}
    project.write(
        "queries",
        {
            "connections": {
                "k": {"type": "kafka", "brokers": [kafka.bootstrap]},
                "lake": {"type": "files", "path": "./lake"},
            },
            "sources": {"s": source},
            "sinks": {name: {**sink, "path": name} for name in ("live", "late")},
        },
    )


def _run(project: Project, load: Load) -> None:
    record = project.run("state", "show", "source.s")
    place = (record["id"], record["generation"])
    history = StepHistory(str(project.folder / "warehouse"), place)
    times: dict[int, float] = {}
    paused = False
    while not times or max(times) < STEPS:
        time.sleep(2.0)
        times |= {r.step: r.time for r in history.read(WINDOW).records if r.committed and r.time is not None}
        step = max(times, default=0)
        if not paused and step in PAUSED:
            project.run("pause", "sink.late")
            paused = True
        elif paused and step >= PAUSED.stop:
            project.run("resume", "sink.late")
            paused = False
    load.stop()
    _tell(project, place, times)
    for sink in ("live", "late"):
        table = str(project.folder / "lake" / sink)
        wait_until(f"{load.rows} rows in {sink}", partial(_holds, table, load.rows), 300.0)
        ids = DeltaTable(table).to_pyarrow_table(columns=["id"]).column("id").to_pylist()
        say(f"  {sink}: {len(ids)} rows; each once: {sorted(ids) == list(range(load.rows))}")


def _tell(project: Project, place: tuple[str, int], times: dict[int, float]) -> None:
    steps = sorted(times)
    taken = [times[b] - times[a] for a, b in itertools.pairwise(steps) if b == a + 1]
    first, last = statistics.median(taken[WINDOW : 2 * WINDOW]), statistics.median(taken[-WINDOW:])
    aim = f"{verdict(last <= 1.25 * first)}: 1.25"
    say(f"  step     {first:.3f} s at first, {last:.3f} s at last: {last / first:.2f}; {aim}")
    each = (statistics.median(taken[at : at + WINDOW]) for at in range(0, len(taken) - WINDOW // 2, WINDOW))
    say(f"           by {WINDOW}: {', '.join(f'{one:.2f}' for one in each)}")
    collection = Path(collection_path(str(project.folder / "warehouse"), *place))
    log = [path.name for path in (collection / "_delta_log").iterdir()]
    versions = sum(name.endswith(".json") for name in log)
    files = len(DeltaTable(str(collection)).file_uris())
    say(f"  files    {files} of the newest version; of the log {versions} versions in {len(log)} files")


def _holds(table: str, rows: int) -> bool:
    return int(DeltaTable(table).to_pyarrow_dataset().count_rows()) >= rows
