"""An exactly-once Kafka sink: its runner killed around the transaction, or frozen while another leads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.servers import produce_json
from mzplan.failpoints import Failpoint
from tests.faults.soak import _descendants
from tests.integration.committed import committed
from tests.support import Project, eventually, kafka_connection, orders, orders_source

if TYPE_CHECKING:
    from examples.servers import KafkaBroker

POINTS = [point for point in Failpoint if point.value.startswith("sink.")]
SECONDS = 240.0


class Copy:
    """A project that copies a topic into another one, and the runners of it that were started here."""

    def __init__(self, folder: Path, kafka: KafkaBroker, topic: Callable[..., str]):
        self.kafka, self.input, self.output = kafka, topic("copy-in"), topic("copy-out")
        self.project = Project(folder, "copy")
        self.project.write(
            "copy",
            "connections:\n"
            + kafka_connection("k", kafka.bootstrap)
            + "sources:\n"
            + orders_source("s", "k", self.input)
            + f"sinks:\n  t:\n    from: s\n    connection: k\n    topic: {self.output}\n"
            + "    trigger: {interval: 500ms}\n",
        )
        self.produced = 0
        self.started: list[subprocess.Popen[bytes]] = []

    def produce(self, count: int) -> None:
        produce_json(self.kafka.bootstrap, self.input, orders(self.produced, self.produced + count))
        self.produced += count

    def arrives(self) -> None:
        """Wait until each row is there; none may be there twice."""

        def all_there() -> bool:
            rows = committed(self.kafka.bootstrap, self.output)
            found = Counter(value["id"] for _, _, value in rows)
            assert max(found.values(), default=1) == 1, "a row is there twice"
            return len(found) == self.produced

        eventually(f"{self.produced} rows", all_there, SECONDS)

    def runner(self, failpoint: str = "") -> subprocess.Popen[bytes]:
        log = (self.project.folder / "runner.log").open("ab")
        command = [
            sys.executable,
            "-m",
            "mzplan",
            "-C",
            str(self.project.folder),
            "run",
            "--instance",
            "local",
        ]
        environment = {**os.environ, "MZPLAN_FAILPOINT": failpoint}
        self.started.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
        return self.started[-1]

    def close(self) -> None:
        self.project.down()
        for process in self.started:
            for pid in (*_descendants(process.pid), process.pid):
                if process.poll() is None:
                    os.kill(pid, signal.SIGKILL)
            process.wait(30)


@pytest.fixture
def copy(tmp_path: Path, kafka: KafkaBroker, topic: Callable[..., str]) -> Iterator[Copy]:
    copy = Copy(tmp_path / "p", kafka, topic)
    yield copy
    copy.close()


@pytest.mark.timeout(1500)
def test_killed_around_the_transaction(copy: Copy) -> None:
    copy.produce(50)
    copy.project.apply()
    copy.arrives()
    copy.project.down()
    for point in POINTS:
        copy.produce(50)
        doomed = copy.runner(point.value)
        assert doomed.wait(SECONDS) == -signal.SIGKILL, (copy.project.folder / "runner.log").read_text()
    copy.project.run("up")
    copy.arrives()


@pytest.mark.timeout(1500)
def test_a_frozen_runner_that_wakes_up_writes_no_more(copy: Copy) -> None:
    copy.produce(50)
    copy.project.apply()
    copy.arrives()
    copy.project.down()
    frozen = copy.runner()
    copy.produce(50)
    copy.arrives()
    # Some 50,000 rows, so that it is frozen in the middle of something.
    copy.produce(50_000)
    family = [frozen.pid, *_descendants(frozen.pid)]
    for pid in family:
        os.kill(pid, signal.SIGSTOP)
    epoch = copy.project.lease()["epoch"]
    copy.runner()
    eventually("another one leads", lambda: copy.project.lease()["epoch"] > epoch, SECONDS)
    copy.arrives()
    for pid in family:
        os.kill(pid, signal.SIGCONT)
    copy.produce(1000)
    copy.arrives()
    assert frozen.wait(SECONDS) is not None  # it has learned that it leads no more
    copy.produce(10)
    copy.arrives()
