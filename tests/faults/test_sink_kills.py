"""The runner of exactly-once sinks and of a keyed collection is killed around a step, or frozen while another
one leads."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from examples.servers import produce_json
from examples.servers.process import frozen
from mzplan.connectors.files.manifest import committed_files
from mzplan.host.failpoints import Failpoint
from tests.faults.doomed import (
    SECONDS,
    Doomed,
    arrive,
    ids_in_delta,
    ids_in_files,
    ids_in_table,
    ids_in_topic,
    points,
    steps_of,
    verify,
)
from tests.integration.committed import committed
from tests.integration.spark_lab import read_delta
from tests.support import (
    Make,
    Project,
    eventually,
    execute,
    kafka_connection,
    orders,
    orders_source,
    postgres_connection,
    rows_of,
)

if TYPE_CHECKING:
    from examples.servers import KafkaBroker, PostgresServer

EVERY = "trigger: {interval: 500ms}"
KEYS = 40
_TABLES = """
CREATE TABLE straight (id bigint, customer text, amount numeric(10,2));
CREATE TABLE staged (id bigint, customer jsonb);
CREATE TABLE latest (id bigint PRIMARY KEY, v bigint);
"""


class Copies(Doomed):
    """A topic that is copied into each kind of target, and a keyed one, of which the latest is copied."""

    def __init__(self, folder: Path, kafka: KafkaBroker, topic: Make, postgres: PostgresServer, name: str):
        super().__init__(Project(folder, "copy", {"TEST_PG_PASSWORD": postgres.password}))
        self.kafka, self.input, self.output = kafka, topic("copy-in"), topic("copy-out")
        # One partition: a consumer sees the changes of a key in the order in which they were written.
        self.changes, self.latest = topic("keyed-in", partitions=1), topic("keyed-out", partitions=1)
        self.dsn = postgres.dsn(name)
        execute(self.dsn, _TABLES)
        self.lake = folder / "lake"
        self.connections = kafka_connection("k", kafka.bootstrap) + postgres_connection("pg", postgres, name)
        self.declare("customer")
        self.produced = self.round = 0
        self.value_of: dict[int, int] = {}

    def declare(self, customer: str, select: str = "") -> None:
        """The sinks: `customer` is the expression of that column, `select` what those that take rows as they
        come select."""
        copied = f"from: s, {select}{EVERY}"
        divided = f"{copied}, partition_by: [customer]"
        staged = f"select: [id, \"to_json(named_struct('c', {customer})) AS customer\"], {EVERY}"
        upsert = f"from: c, mode: upsert, key: [id], {EVERY}"
        self.project.write(
            "copy",
            f"connections:\n{self.connections}"
            f"  disk: {{type: files, path: {self.lake}}}\n"
            f"sources:\n{orders_source('s', 'k', self.input)}"
            f"{orders_source('chained', 'k', self.output)}"  # reads what the sink writes in transactions
            f"  c:\n    connection: k\n    topic: {self.changes}\n    {EVERY}\n"
            '    format: {type: json, schema: "id BIGINT, v BIGINT"}\n'
            "    envelope: {type: upsert, key: [id]}\n"
            "sinks:\n"
            f"  kafka: {{connection: k, topic: {self.output}, {copied}}}\n"
            f"  straight: {{connection: pg, table: straight, {copied}}}\n"
            f"  staged: {{from: s, connection: pg, table: staged, {staged}}}\n"
            f"  delta: {{type: delta, connection: disk, path: delta, {divided}}}\n"
            f"  files: {{type: files, connection: disk, path: files, {divided}}}\n"
            f"  latest_kafka: {{connection: k, topic: {self.latest}, {upsert}}}\n"
            f"  latest_pg: {{connection: pg, table: latest, {upsert}}}\n",
        )

    def change_customers(self) -> None:
        """From now on each customer is another one."""
        # With its type: what folders are named for is compared by `verify` where that is known without Spark.
        other = "CAST(upper(customer) AS STRING)"
        self.declare(other, f'select: [id, "{other} AS customer", amount], ')

    def customers(self) -> dict[str, dict[int, str]]:
        """The customer of each id, in those targets that are read without a query of their own."""
        columns = ["id", "customer"]
        delta = DeltaTable(str(self.lake / "delta")).to_pyarrow_table(columns=columns)
        files = pq.ParquetDataset(committed_files(self.lake / "files")).read(columns=columns)
        sent = [value for _, _, value in committed(self.kafka.bootstrap, self.output)]
        return {
            "kafka": {value["id"]: value["customer"] for value in sent},
            "straight": dict(rows_of(self.dsn, "SELECT id, customer FROM straight")),
            "staged": dict(rows_of(self.dsn, "SELECT id, customer ->> 'c' FROM staged")),
            **{
                name: dict(zip(table["id"].to_pylist(), table["customer"].to_pylist(), strict=True))
                for name, table in (("delta", delta), ("files", files))
            },
        }

    def produce(self, count: int) -> None:
        """More rows. And each key gets a value that none had before; every fifth key goes, and comes back."""
        produce_json(self.kafka.bootstrap, self.input, orders(self.produced, self.produced + count))
        self.produced += count
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for id_ in range(KEYS):
            value = self.round * KEYS + id_
            producer.produce(self.changes, json.dumps({"id": id_, "v": value}), key=str(id_))
            self.value_of[id_] = value
            if id_ % 5 == self.round % 5:
                producer.produce(self.changes, None, key=str(id_))
                del self.value_of[id_]
        assert producer.flush(30) == 0
        self.round += 1

    def arrives(self) -> None:
        """Wait until each row is in each target, once. Then until the latest are."""
        arrive(self.targets(), Counter(range(self.produced)))
        latest = "SELECT id, v FROM latest"
        eventually("the latest rows", lambda: dict(rows_of(self.dsn, latest)) == self.value_of, SECONDS)
        eventually("the latest records", lambda: self.latest_records() == self.value_of, SECONDS)

    def latest_records(self) -> dict[int, int]:
        last = {key: value for key, value in self.written_changes() if key is not None}
        return {int(key): value for key, value in last.items() if value is not None}

    def written_changes(self) -> list[tuple[Any, Any]]:
        """Each record of the topic of latest values: its key, and its value if it has one."""
        found = committed(self.kafka.bootstrap, self.latest)
        return [(key, value and value["v"]) for _, key, value in found]

    def targets(self) -> dict[str, Callable[[], Iterable[int]]]:
        """The ids that those who may read each target see in it."""
        id_ = json.loads(self.project.state_bytes())["resources"]["source.chained"]["id"]
        chained = self.project.folder / "warehouse" / "collections" / id_ / "g1"
        return {
            "kafka": lambda: ids_in_topic(self.kafka.bootstrap, self.output),
            "straight": lambda: ids_in_table(self.dsn, "straight"),
            "staged": lambda: ids_in_table(self.dsn, "staged"),
            "delta": lambda: ids_in_delta(self.lake / "delta"),
            "files": lambda: ids_in_files(self.lake / "files"),
            "chained": lambda: (row["id"] for row in read_delta(chained)),
        }


@pytest.fixture
def copies(
    tmp_path: Path, kafka: KafkaBroker, topic: Make, postgres: PostgresServer, database: Make
) -> Iterator[Copies]:
    copies = Copies(tmp_path / "p", kafka, topic, postgres, database("copy"))
    yield copies
    copies.close()


@pytest.mark.smoke
@pytest.mark.timeout(1800)
def test_killed_around_a_step(copies: Copies) -> None:
    copies.produce(50)
    copies.project.apply()
    copies.arrives()
    copies.project.down()
    for point in points("source", "sink"):
        copies.produce(50)
        copies.dies_at(point)
    # The sinks are changed before the next start: what was under way is finished as it began.
    assert point is Failpoint.SINK_WRITTEN
    copies.change_customers()
    copies.project.apply()
    copies.produce(50)
    copies.arrives()
    for name, customers in copies.customers().items():
        # By the old or the new description, and never a mixture within a step.
        found = [{customers[first + i][0] for i in range(50)} for first in range(0, copies.produced, 50)]
        assert all(len(one) == 1 for one in found), (name, found)
        assert (found[0], found[-1]) == ({"c"}, {"C"}), (name, found)
    # What was recorded of the steps is what is there, in the collections and in each target.
    copies.project.down()
    steps = steps_of(copies.project, "source.s")
    assert sum(step["rows"] for step in steps if step["committed"]) == copies.produced
    verify(copies.project, "source.s", "source.c", "sink.latest_kafka", "sink.latest_pg")
    for sink in ("kafka", "straight", "delta", "files"):
        found = copies.project.json("verify", f"sink.{sink}")
        assert found["verified"] > 0 and found["without_hash"] == [], found
    listed = copies.project.json("steps", "sink.straight")["steps"]
    covered = [step["sources"] for step in listed if step["sources"] is not None]  # not of an empty one
    assert covered[0][0] == 0 and covered[-1][1] == steps[-1]["step"]
    # A step that was merged twice would have written its values again.
    written = Counter((key, value) for key, value in copies.written_changes() if value is not None)
    assert written.total() == len(written), written.most_common(3)
    merged = steps_of(copies.project, "source.c")
    assert len({step["version"] for step in merged}) == len(merged)


@pytest.mark.timeout(1500)
def test_a_frozen_runner_that_wakes_up_writes_no_more(copies: Copies) -> None:
    copies.produce(50)
    copies.project.apply()
    copies.arrives()
    copies.project.down()
    cold = copies.runner()
    copies.produce(50)
    copies.arrives()
    # Some 50,000 rows, so that it is frozen in the middle of something.
    copies.produce(50_000)
    with frozen(cold.pid):
        epoch = copies.project.lease()["epoch"]
        copies.runner()
        eventually("another one leads", lambda: copies.project.lease()["epoch"] > epoch, SECONDS)
        copies.arrives()
    copies.produce(1000)
    copies.arrives()
    assert cold.wait(SECONDS) is not None  # it has learned that it leads no more
    copies.produce(10)
    copies.arrives()
