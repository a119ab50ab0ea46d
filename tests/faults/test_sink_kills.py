"""The exactly-once sinks: their runner killed around a step, or frozen while another one leads."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.servers import produce_json
from examples.servers.process import frozen
from mzplan.connectors.files.manifest import committed_files
from mzplan.host.failpoints import Failpoint
from tests.faults.doomed import Doomed
from tests.integration.committed import committed
from tests.integration.spark_lab import read_delta
from tests.support import (
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

Make = Callable[..., str]
POINTS = [point for point in Failpoint if point.value.startswith("sink.")]
SECONDS = 240.0
TRIGGER = "trigger: {interval: 500ms}"


class Copies(Doomed):
    """A project that copies a topic into each kind of target."""

    def __init__(self, folder: Path, kafka: KafkaBroker, topic: Make, postgres: PostgresServer, name: str):
        super().__init__(Project(folder, "copy", {"TEST_PG_PASSWORD": postgres.password}))
        self.kafka, self.input, self.output = kafka, topic("copy-in"), topic("copy-out")
        self.dsn = postgres.dsn(name)
        execute(self.dsn, "CREATE TABLE straight (id bigint, customer text, amount numeric(10,2))")
        execute(self.dsn, "CREATE TABLE staged (id bigint, customer jsonb)")
        self.lake = folder / "lake"
        self.connections = kafka_connection("k", kafka.bootstrap) + postgres_connection("pg", postgres, name)
        self.declare("customer")
        self.produced = 0

    def declare(self, customer: str, select: str = "") -> None:
        """The sinks: `customer` is the expression of that column, `select` what those that take rows as they
        come select."""
        trigger = f"{select}{TRIGGER}"
        divided = f"{trigger}, partition_by: [customer]"
        staged = f"select: [id, \"to_json(named_struct('c', {customer})) AS customer\"], {TRIGGER}"
        self.project.write(
            "copy",
            f"connections:\n{self.connections}"
            f"  disk: {{type: files, path: {self.lake}}}\n"
            f"sources:\n{orders_source('s', 'k', self.input)}"
            f"{orders_source('chained', 'k', self.output)}"  # reads what the sink writes in transactions
            "sinks:\n"
            f"  kafka: {{from: s, connection: k, topic: {self.output}, {trigger}}}\n"
            f"  straight: {{from: s, connection: pg, table: straight, {trigger}}}\n"
            f"  staged: {{from: s, connection: pg, table: staged, {staged}}}\n"
            f"  delta: {{type: delta, from: s, connection: disk, path: delta, {divided}}}\n"
            f"  files: {{type: files, from: s, connection: disk, path: files, {divided}}}\n",
        )

    def change(self) -> None:
        """From now on each customer is another one."""
        # With its type: what folders are named for is compared by `verify` where that is known without Spark.
        other = "CAST(upper(customer) AS STRING)"
        self.declare(other, f'select: [id, "{other} AS customer", amount], ')

    def customers(self) -> dict[str, dict[int, str]]:
        """The customer of each id, in those targets that are read without a query of their own."""
        import pyarrow.parquet as pq
        from deltalake import DeltaTable

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
        produce_json(self.kafka.bootstrap, self.input, orders(self.produced, self.produced + count))
        self.produced += count

    def arrives(self) -> None:
        """Wait until each row is in each target; none may be there twice."""

        def all_there() -> bool:
            found = {name: Counter(ids()) for name, ids in self.targets().items()}
            twice = {name: ids.most_common(1) for name, ids in found.items() if ids.total() > len(ids)}
            assert not twice, f"a row is there twice: {twice}"
            self.missing = {name: self.produced - len(ids) for name, ids in found.items()}
            return not any(self.missing.values())

        try:
            eventually(f"{self.produced} rows", all_there, SECONDS)
        except AssertionError as problem:
            raise AssertionError(f"{problem}: missing {self.missing}\n{self.project.log()}") from None

    def targets(self) -> dict[str, Callable[[], Iterable[int]]]:
        """The ids that those who may read each target see in it."""
        import pyarrow.parquet as pq
        from deltalake import DeltaTable

        def table(name: str) -> Iterable[int]:
            return (id_ for (id_,) in rows_of(self.dsn, f"SELECT id FROM {name}"))

        def delta() -> Iterable[int]:
            path = self.lake / "delta"
            there = DeltaTable.is_deltatable(str(path))
            return DeltaTable(str(path)).to_pyarrow_table(columns=["id"])["id"].to_pylist() if there else ()

        def chained() -> Iterable[int]:
            return (row["id"] for row in read_delta(self.collection("chained")))

        def files() -> Iterable[int]:
            listed = committed_files(self.lake / "files")
            return pq.ParquetDataset(listed).read(columns=["id"])["id"].to_pylist() if listed else ()

        return {
            "kafka": lambda: (value["id"] for _, _, value in committed(self.kafka.bootstrap, self.output)),
            "straight": lambda: table("straight"),
            "staged": lambda: table("staged"),
            "delta": delta,
            "files": files,
            "chained": chained,
        }

    def collection(self, source: str) -> Path:
        """The folder of a source's collection."""
        state = json.loads(self.project.state_bytes())
        id_ = state["resources"][f"source.{source}"]["id"]
        return self.project.folder / "warehouse" / "collections" / id_ / "g1"


@pytest.fixture
def copies(
    tmp_path: Path, kafka: KafkaBroker, topic: Make, postgres: PostgresServer, database: Make
) -> Iterator[Copies]:
    copies = Copies(tmp_path / "p", kafka, topic, postgres, database("copy"))
    yield copies
    copies.close()


@pytest.mark.smoke
@pytest.mark.timeout(1500)
def test_killed_around_a_step(copies: Copies) -> None:
    copies.produce(50)
    copies.project.apply()
    copies.arrives()
    copies.project.down()
    for point in POINTS:
        copies.produce(50)
        doomed = copies.runner(point.value)
        assert doomed.wait(SECONDS) == -signal.SIGKILL, (copies.project.folder / "runner.log").read_text()
    # The sinks are changed before the next start: what was under way is finished as it began.
    assert POINTS[-1] is Failpoint.SINK_WRITTEN
    copies.change()
    copies.project.apply()
    copies.produce(50)
    copies.arrives()
    for name, customers in copies.customers().items():
        # By the old or the new description, and never a mixture within a step.
        found = [{customers[first + i][0] for i in range(50)} for first in range(0, copies.produced, 50)]
        assert all(len(one) == 1 for one in found), (name, found)
        assert (found[0], found[-1]) == ({"c"}, {"C"}), (name, found)
    # What was recorded of the steps is what is there, in the collection and in each target.
    copies.project.down()
    steps = copies.project.json("steps", "source.s")["steps"]
    assert [step["step"] for step in steps] == list(range(len(steps)))
    assert sum(step["rows"] for step in steps if step["committed"]) == copies.produced
    assert copies.project.json("verify", "source.s")["difference"] is None
    for sink in ("kafka", "straight", "delta", "files"):
        found = copies.project.json("verify", f"sink.{sink}")
        assert found["verified"] > 0 and found["without_hash"] == [], found
    listed = copies.project.json("steps", "sink.straight")["steps"]
    covered = [step["sources"] for step in listed if step["sources"] is not None]  # not of an empty one
    assert covered[0][0] == 0 and covered[-1][1] == steps[-1]["step"]


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
