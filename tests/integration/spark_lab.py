"""For the tests of mzplan.spark: a real executor, and descriptions as the runner would hand them over."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from examples.servers import KafkaBroker, PostgresServer, produce_json
from mzplan.connectors.api.connector import Upstream
from mzplan.controller.executor import CheckResult, ExecutorContext, QueryName, QueryReport
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.state import ResourceState
from mzplan.schema.description import CollectionRead, Description, packages_of
from mzplan.secrets.references import Secrets
from mzplan.spark.executor import SparkExecutor
from mzplan.spark.process.command_session import QueryToVerify
from mzplan.spark.verification.source import open_upstream
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.rows.snapshot import TableSnapshot
from mzplan.warehouse.step_history import StepHistory
from mzplan.warehouse.step_record import StepRecord
from tests.support import delete_records, eventually, refusal, rows_of
from tests.unit.connectors.queries import described, inlined

PROJECT = "lab"
ORDERS = "id BIGINT, customer STRING, amount DECIMAL(10,2)"
SECONDS = 60.0
# An idle query asks for new rows at each trigger: at 100 ms it takes 9 % of a core from those that work.
TRIGGER = {"interval": "250ms"}
LAKE = ResourceState(
    address=Address("connection", "lake"), id="lake", type="files", body={"path": "s3://lake", "aws": "cloud"}
)


class Lab:
    """One executor, and short words for what tests do with it."""

    def __init__(self, folder: Path, kafka: KafkaBroker, postgres: PostgresServer):
        self.folder = folder
        self.kafka = kafka
        self.postgres = postgres
        self.secrets = Secrets(str(folder), {"PG_PASSWORD": postgres.password})
        # Tasks are tried twice, as on a cluster; two cores, as the smallest machine that we look at.
        self.context = ExecutorContext(
            project=PROJECT,
            directory=str(folder),
            warehouse=str(folder / "warehouse"),
            options={"spark.master": "local[2,2]"},
            # As for a state that has a folder at s3://.
            packages=packages_of({LAKE.address: LAKE}),
        )
        self.executor = SparkExecutor(self.context)

    # ── descriptions

    def kafka_source(self, topic: str, schema: str = ORDERS, brokers: str = "", **body: Any) -> Description:
        """A source of JSON records. `body` is what stands in the configuration beside it."""
        cluster = {"type": "kafka", "brokers": [brokers or self.kafka.bootstrap]}
        given = {"topic": topic, "format": {"type": "json", "schema": schema}, **body}
        return _described("source", "kafka", given, "cluster", cluster)

    def files_source(self, folder: Path, schema: str = ORDERS, **body: Any) -> Description:
        """A source of JSON files."""
        files = {"type": "files", "path": str(folder.parent)}
        given = {"path": folder.name, "format": {"type": "json", "schema": schema}, **body}
        return self.source("files", files, **given)

    def delta_source(self, folder: Path, path: str, schema: str, **body: Any) -> Description:
        """A source of a Delta table below a folder."""
        files = {"type": "files", "path": str(folder)}
        return self.source("delta", files, path=path, schema=schema, **body)

    def source(self, type_: str, connection: Mapping[str, Any] | None, **body: Any) -> Description:
        """A source of any type."""
        return _described("source", type_, body, "upstream", connection)

    def postgres_sink(self, source: Description, database: str, table: str, **body: Any) -> Description:
        """A sink into a table of the session's server."""
        return self.sink(source, "postgres", self.postgres_body(database), table=table, **body)

    def kafka_sink(self, source: Description, topic: str, **body: Any) -> Description:
        """A sink into a topic of the session's broker."""
        broker = {"type": "kafka", "brokers": [self.kafka.bootstrap]}
        return self.sink(source, "kafka", broker, topic=topic, **body)

    def delta_sink(self, source: Description, folder: Path, path: str, **body: Any) -> Description:
        """A sink into a Delta table below a folder."""
        return self.sink(source, "delta", {"type": "files", "path": str(folder)}, path=path, **body)

    def files_sink(self, source: Description, folder: Path, path: str, **body: Any) -> Description:
        """A sink into files below a folder."""
        return self.sink(source, "files", {"type": "files", "path": str(folder)}, path=path, **body)

    def postgres_body(self, database: str, **other: Any) -> dict[str, Any]:
        return {
            "type": "postgres",
            "host": "127.0.0.1",
            "port": self.postgres.port,
            "database": database,
            "user": self.postgres.user,
            "password": "${env:PG_PASSWORD}",
            **other,
        }

    def sink(
        self, source: Description, type_: str, connection: Mapping[str, Any] | None, **body: Any
    ) -> Description:
        given = {"from": source.address.name, **body}
        sink = _described("sink", type_, given, "target", connection)
        return replace(sink, reads=_reads([source]))

    def local_source(self, schema: str, name: str) -> Description:
        """A source of rows that are appended."""
        source = self.source("local", None, type="local", schema=schema)
        return replace(source, address=Address("source", name))

    def view(
        self,
        query: str,
        schema: str,
        streams: Iterable[Description],
        tables: Iterable[Description] = (),
        /,
        **body: Any,
    ) -> Description:
        """A view by SQL that reads these collections, as streams or as snapshots."""
        reads, snapshots = _reads(streams), _reads(tables)
        given = {"query": query, "reads": list(reads), "schema": schema, **body}
        if snapshots:
            given = {"snapshots": list(snapshots), **given}
        view = self.source("sql", None, **given)
        return replace(view, address=Address("view", view.address.name), reads=reads, snapshots=snapshots)

    # ── doing

    @property
    def spark(self) -> SparkSession:
        """The session of the executor."""
        assert self.executor._spark is not None
        return self.executor._spark

    def start(self, *descriptions: Description, epoch: int = 1) -> None:
        for description in descriptions:
            self.executor.start(description, self.secrets, epoch)

    def stop(self, *descriptions: Description) -> None:
        for description in descriptions:
            self.executor.stop(QueryName.of(PROJECT, description))

    def stop_all(self) -> None:
        for report in self.executor.reports():
            self.executor.stop(report.name)

    def finish(self, *descriptions: Description) -> None:
        """Stop queries when every batch that they have planned is done: rows can be seen in a target a moment
        before Spark notes down that their batch is."""
        for description in descriptions:
            eventually(f"{description.address} is done", lambda d=description: self.checkpoint_done(d))  # type: ignore[misc]
        self.stop(*descriptions)

    def check(self, description: Description) -> CheckResult:
        return self.executor.check(description, self.secrets)

    def finds(self, description: Description, code: str, detail: str = "") -> Diagnostic:
        """The one thing that a check finds: it has this code, and its detail contains this text."""
        (found,) = self.check(description).diagnostics
        assert found.code == code and detail in found.detail, found
        return found

    def codes(self, description: Description) -> list[str]:
        """The codes of the errors that a check finds."""
        return [d.code for d in self.check(description).diagnostics if d.severity == "error"]

    def report(self, description: Description) -> QueryReport:
        name = QueryName.of(PROJECT, description)
        return next(report for report in self.executor.reports() if report.name == name)

    def waits(self, description: Description) -> Mapping[str, int] | None:
        """What waits for a query, whether it runs or not."""
        return self.executor.measure(description, self.secrets).backlog

    def ended(self, description: Description, seconds: float = SECONDS) -> QueryReport:
        """The report of a query that ends by itself."""
        eventually(f"{description.address} has ended", lambda: not self.report(description).active, seconds)
        return self.report(description)

    def fails(
        self, description: Description, code: str, *texts: str, seconds: float = SECONDS
    ) -> QueryReport:
        """Wait until a query ends with an error of this code that contains these texts."""
        ended = self.ended(description, seconds)
        assert ended.error_code == code and all(text in str(ended.error) for text in texts), ended.error
        return ended

    def refused(self, description: Description) -> Diagnostic:
        """The error with which a query doesn't start."""
        return refusal(lambda: self.start(description))

    def produce(self, topic: str, *rows: Mapping[str, Any]) -> None:
        produce_json(self.kafka.bootstrap, topic, rows)

    def send(self, topic: str, *values: bytes | None, **more: Any) -> None:
        """Records as they are, in one partition. `more`: their key, headers, partition or timestamp."""
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap, "linger.ms": 100})
        for value in values:
            producer.produce(topic, value, **{"partition": 0, **more})
        assert producer.flush(30) == 0

    def delete_records(self, topic: str, before: int) -> None:
        """Delete the records of partition 0 before an offset, as retention does."""
        delete_records(self.kafka, topic, before)

    def rows(self, database: str, query: str) -> list[tuple[Any, ...]]:
        return rows_of(self.postgres.dsn(database), query)

    def execute(self, database: str, *statements: str) -> None:
        with psycopg.connect(self.postgres.dsn(database), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def has_rows(self, database: str, table: str, count: int, seconds: float = SECONDS) -> None:
        """Wait until a table holds so many rows, and fail at once if it holds more."""

        def enough() -> bool:
            found = self.rows(database, f"SELECT count(*) FROM {table}")[0][0]
            assert found <= count, f"{table} has {found} rows instead of {count}"
            return bool(found == count)

        eventually(f"{table} has {count} rows", enough, seconds)

    def collection(self, source: Description) -> Any:
        """The collection of a source, as a DataFrame."""
        return self.spark.read.format("delta").load(str(self._collection(source)))

    def _collection(self, source: Description) -> Path:
        return self.folder / "warehouse" / "collections" / source.id / f"g{source.generation}"

    def count(self, source: Description) -> int:
        """The rows of an append-only collection, 0 before its first step, from the statistics in its log."""
        path = str(self._collection(source))
        return int(DeltaTable(path).count()) if DeltaTable.is_deltatable(path) else 0

    def read(self, source: Description) -> list[dict[str, Any]]:
        """The rows of a collection, none before its first step."""
        return read_delta(self._collection(source))

    def ids(self, source: Description) -> list[int]:
        """The column `id` of a collection's rows, sorted."""
        return sorted(row["id"] for row in self.read(source))

    def checkpoint(self, description: Description) -> Path:
        return self.folder / "warehouse" / "checkpoints" / description.id / f"g{description.generation}"

    def checkpoint_done(self, description: Description) -> bool:
        """Whether every planned batch is noted down as done."""
        checkpoint = Checkpoint(str(self.checkpoint(description)))
        return checkpoint.log.committed() >= 0 and checkpoint.log.unfinished() is None

    def last_step(self, description: Description) -> int:
        """The last batch that is done; what the query reports comes a moment later."""
        return Checkpoint(str(self.checkpoint(description))).log.committed()

    def history(
        self, description: Description, source: Description | CollectionRead | None = None
    ) -> StepHistory:
        """The steps of a query. Those of a sink need its source to say what they have read."""
        return StepHistory(self.context.warehouse, description.place, source and source.place)

    def recorded(self, description: Description, count: int) -> list[StepRecord]:
        """The steps that the index holds, once there are so many."""
        index = self.history(description).index
        eventually(f"{count} steps are recorded", lambda: len(list(index.backwards())) >= count)
        return list(index.backwards())[::-1]

    def upstream(self, source: Description) -> Upstream:
        """Return the upstream that rereads a source's steps."""
        return open_upstream(self.verified(source))

    def verified(self, description: Description) -> QueryToVerify:
        """Return what `mzplan verify` opens the query's parts with."""
        return QueryToVerify(
            description=description,
            secrets=self.secrets,
            directory=str(self.folder),
            warehouse=self.context.warehouse,
        )

    def read_on(self, source: Description, *sinks: Description) -> None:
        """Wait until sinks have done the last step of their source."""

        def has_read_all(sink: Description) -> bool:
            if not self.checkpoint_done(source):  # first: rows are there before their step is done
                return False
            ends = self.history(sink, source).committed(0, None)[-1:]
            return bool(ends and ends[0].sources and ends[0].sources[1] == self.last_step(source))

        for sink in sinks:
            eventually(f"{sink.address} has read all", lambda sink=sink: has_read_all(sink), 2 * SECONDS)  # type: ignore[misc]

    def undo_commit(self, description: Description) -> int:
        """As if the driver had been killed after the last batch reached its target and before Spark noted
        that down: the batch will run again. Returns its number."""
        commits = self.checkpoint(description) / "spark" / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
        remove_entry(commits / str(last))
        return last

    def forget_begun(self, description: Description) -> None:
        """As a version left the checkpoint that did not record what its steps began as: the rule of outputs
        alone decides then."""
        (self.checkpoint(description) / "begun.json").unlink()

    def retried(self, description: Description) -> Description:
        """The same query under another digest, as after a change."""
        return replace(description, digest=f"1:{uuid.uuid4().hex}")

    def changed(
        self, description: Description, connection: Mapping[str, Any] | None = None, **body: Any
    ) -> Description:
        """The same query after a change of its settings and of its connection's. None removes a setting."""
        settings = {name: value for name, value in {**description.body, **body}.items() if value is not None}
        connections = {
            role: replace(one, body={**one.body, **(connection or {})})
            for role, one in description.connections.items()
        }
        return replace(self.retried(description), body=settings, connections=connections)


def read_delta(table: Path) -> list[dict[str, Any]]:
    """The rows of a Delta table, none while it is not there, read without Spark: whoever waits asks again and
    again, and a Spark job each time would hold up what is waited for."""
    if not DeltaTable.is_deltatable(str(table)):
        return []
    newest = TableSnapshot(str(table), DeltaTable(str(table)).version())
    return [row for batch in newest.rows(position=True)[1] for row in batch.to_pylist()]


def remove_entry(file: Path) -> None:
    """Remove the entry of a log, with its checksums."""
    file.unlink()
    for checksum in (file.with_name(f".{file.name}.crc"), file.with_suffix(".crc")):
        checksum.unlink(missing_ok=True)


def _reads(sources: Iterable[Description]) -> dict[str, CollectionRead]:
    return {
        one.address.name: CollectionRead(
            address=one.address, id=one.id, generation=one.generation, type=one.type, body=one.body
        )
        for one in sources
    }


def _described(
    kind: str, type_: str, body: Mapping[str, Any], name: str, connection: Mapping[str, Any] | None
) -> Description:
    """A query with a name of its own, and with the connection of this name if there is one."""
    own = f"{'k' if kind == 'sink' else 's'}{uuid.uuid4().hex[:8]}"
    link = inlined(name, connection) if connection else None
    return described(f"{kind}.{own}", type_, {"trigger": TRIGGER, **body}, link, id=f"{own}-id")
