"""Two projects in a row: one writes a topic exactly once, and the other reads it; both are killed."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer

from examples.servers import produce_json
from mzplan.host.failpoints import Failpoint
from tests.faults.doomed import Doomed
from tests.integration.spark_lab import read_delta
from tests.support import Project, eventually, kafka_connection, orders, orders_source

if TYPE_CHECKING:
    from examples.servers import KafkaBroker

Make = Callable[..., str]
# Around a step; between them its records are in the topic, and their transaction is open.
AROUND = (Failpoint.SINK_BEFORE_STEP, Failpoint.SINK_WRITTEN)
SECONDS = 240.0
TRIGGER = "trigger: {interval: 500ms}"


class Chain:
    """A project that copies a topic into a second one, which another project reads."""

    def __init__(self, folder: Path, kafka: KafkaBroker, topic: Make):
        self.kafka, self.input, self.between = kafka, topic("chain-in"), topic("chain-between")
        self.writer, self.reader = Doomed(Project(folder / "w", "w")), Doomed(Project(folder / "r", "r"))
        connection = f"connections:\n{kafka_connection('k', kafka.bootstrap)}"
        self.writer.project.write(
            "all",
            f"{connection}sources:\n{orders_source('s', 'k', self.input)}sinks:\n"
            f"  out: {{from: s, connection: k, topic: {self.between}, {TRIGGER}}}\n",
        )
        self.reader.project.write("all", f"{connection}sources:\n{orders_source('s', 'k', self.between)}")
        self.produced = 0

    def produce(self, count: int) -> None:
        produce_json(self.kafka.bootstrap, self.input, orders(self.produced, self.produced + count))
        self.produced += count

    def arrives(self) -> None:
        """Wait until the reader has each row, and fail if it has one twice."""

        def all_there() -> bool:
            collections = self.reader.project.folder.glob("warehouse/collections/*/g1")
            found = Counter(row["id"] for table in collections for row in read_delta(table))
            assert max(found.values(), default=1) == 1, "a row is there twice"
            return len(found) == self.produced

        eventually(f"{self.produced} rows", all_there, SECONDS)

    def written(self) -> int:
        """The records of the topic between them, also those that were given up."""
        settings = {
            "bootstrap.servers": self.kafka.bootstrap,
            "group.id": "chain",
            "isolation.level": "read_uncommitted",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
        }
        consumer = Consumer(settings)
        consumer.subscribe([self.between])
        count = 0
        ended: set[int | None] = set()
        try:
            while len(ended) < 2:
                message = consumer.poll(30)
                assert message is not None
                if message.error() is not None:
                    ended.add(message.partition())
                else:
                    count += 1
        finally:
            consumer.close()
        return count


@pytest.mark.nightly
@pytest.mark.timeout(1500)
def test_a_reader_sees_each_row_of_a_killed_writer_once(
    tmp_path: Path, kafka: KafkaBroker, topic: Make
) -> None:
    chain = Chain(tmp_path, kafka, topic)
    try:
        chain.produce(50)
        for end in (chain.writer, chain.reader):
            end.project.apply()
        chain.arrives()
        for end in (chain.writer, chain.reader):
            end.project.down()
        reader = chain.reader.runner()
        # The worker of a task dies with its records sent: their transaction is given up.
        chain.produce(50)
        writer = chain.writer.runner(Failpoint.TASK_SENT.value)
        log = chain.writer.project.folder / "runner.log"
        eventually("a task has died", lambda: "(crashed)" in log.read_text(errors="replace"), SECONDS)
        writer.kill()
        writer.wait(30)
        for point in AROUND:
            chain.produce(50)
            assert chain.writer.runner(point.value).wait(SECONDS) == -signal.SIGKILL
        reader.kill()
        reader.wait(30)
        chain.reader.runner()
        chain.writer.runner()
        chain.produce(50)
        chain.arrives()
        assert chain.written() > chain.produced, "no transaction was given up: nothing was tried"
        assert chain.reader.project.json("verify", "source.s", "--from-upstream")["difference"] is None
    finally:
        chain.writer.close()
        chain.reader.close()
