"""A keyed collection whose runner is killed around the commit of a step: each change is there once, also
downstream."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from mzplan.host.failpoints import Failpoint
from tests.faults.doomed import Doomed
from tests.integration.committed import committed
from tests.support import (
    Project,
    eventually,
    execute,
    kafka_connection,
    postgres_connection,
    rows_of,
)

if TYPE_CHECKING:
    from examples.servers import KafkaBroker, PostgresServer

Make = Callable[..., str]
POINTS = [point for point in Failpoint if point.value.startswith("source.")]
SECONDS = 240.0
IDS = 40


class Keyed(Doomed):
    """A topic of the latest of each id, copied into PostgreSQL and another topic."""

    def __init__(self, folder: Path, kafka: KafkaBroker, topic: Make, postgres: PostgresServer, name: str):
        super().__init__(Project(folder, "keyed", {"TEST_PG_PASSWORD": postgres.password}))
        self.kafka, self.dsn = kafka, postgres.dsn(name)
        # One partition: what a consumer sees of an id is in the order in which it was written.
        self.input, self.output = topic("keyed-in", partitions=1), topic("keyed-out", partitions=1)
        execute(self.dsn, "CREATE TABLE latest (id bigint PRIMARY KEY, v bigint)")
        connections = kafka_connection("k", kafka.bootstrap) + postgres_connection("pg", postgres, name)
        upsert = "mode: upsert, key: [id], trigger: {interval: 500ms}"
        self.project.write(
            "keyed",
            f"connections:\n{connections}"
            f"sources:\n  s:\n    connection: k\n    topic: {self.input}\n"
            '    format: {type: json, schema: "id BIGINT, v BIGINT"}\n'
            "    envelope: {type: upsert, key: [id]}\n    trigger: {interval: 500ms}\n"
            f"sinks:\n  kafka: {{from: s, connection: k, topic: {self.output}, {upsert}}}\n"
            f"  pg: {{from: s, connection: pg, table: latest, {upsert}}}\n",
        )
        self.round = 0
        self.wanted: dict[int, int] = {}

    def change(self) -> None:
        """Every id gets a value that none had before, and every fifth one goes; those that went come back."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for id_ in range(IDS):
            value = self.round * IDS + id_
            producer.produce(self.input, json.dumps({"id": id_, "v": value}), key=str(id_))
            self.wanted[id_] = value
            if id_ % 5 == self.round % 5:
                producer.produce(self.input, None, key=str(id_))
                del self.wanted[id_]
        assert producer.flush(30) == 0
        self.round += 1

    def arrives(self) -> None:
        """Wait until both targets are as the topic says."""

        def latest() -> dict[int, int]:
            found = {int(key or ""): value for _, key, value in committed(self.kafka.bootstrap, self.output)}
            return {key: value["v"] for key, value in found.items() if value is not None}

        eventually(
            "postgres", lambda: dict(rows_of(self.dsn, "SELECT * FROM latest")) == self.wanted, SECONDS
        )
        eventually("kafka", lambda: latest() == self.wanted, SECONDS)


@pytest.fixture
def keyed(
    tmp_path: Path, kafka: KafkaBroker, topic: Make, postgres: PostgresServer, database: Make
) -> Iterator[Keyed]:
    keyed = Keyed(tmp_path / "p", kafka, topic, postgres, database("keyed"))
    yield keyed
    keyed.close()


@pytest.mark.smoke
@pytest.mark.timeout(1500)
def test_killed_around_the_commit_of_a_step(keyed: Keyed) -> None:
    keyed.change()
    keyed.project.apply()
    keyed.arrives()
    keyed.project.down()
    for point in POINTS:
        keyed.change()
        doomed = keyed.runner(point.value)
        assert doomed.wait(SECONDS) == -signal.SIGKILL, (keyed.project.folder / "runner.log").read_text()
    keyed.change()
    keyed.project.run("up")
    keyed.arrives()
    keyed.project.down()
    # Each value, and so each change, was written once: a step that was merged twice would write it again.
    written = Counter(
        (key, value and value["v"]) for _, key, value in committed(keyed.kafka.bootstrap, keyed.output)
    )
    twice = {change: count for change, count in written.items() if count > 1 and change[1] is not None}
    assert not twice
    steps = keyed.project.json("steps", "source.s")["steps"]
    assert [step["step"] for step in steps] == list(range(len(steps)))
    assert len({step["version"] for step in steps}) == len(steps)
    for address in ("source.s", "sink.kafka", "sink.pg"):
        found = keyed.project.json("verify", address)
        assert found["difference"] is None and found["verified"] > 0, found
