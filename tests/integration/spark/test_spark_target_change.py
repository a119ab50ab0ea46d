"""Another target under a sink, on real servers: a backup, a promotion, another server, another topic."""

from __future__ import annotations

import re
import sqlite3
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from pyarrow import RecordBatch, parquet

from examples.connector.mzplan_sqlite.sink import SqliteOutput, SqliteOutputFactory
from examples.servers import create_topic, delete_topic
from mzplan.connectors.adapter.sink import EndpointSink
from mzplan.connectors.files.manifest import committed_files
from mzplan.endpoints import Step
from mzplan.endpoints.interface import Written
from mzplan.endpoints.replay import StepReplay
from mzplan.model.diagnostics import Diagnostic, ExitCode
from mzplan.warehouse.content_hash import ContentHash, content_hash
from tests.integration.committed import committed
from tests.integration.spark.test_spark_endpoints import append
from tests.integration.spark_lab import read_delta, until
from tests.support import execute, rows_of
from tests.tasks import replay

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from examples.servers import KafkaBroker, PostgresServer
    from mzplan.connectors.api.queries import SinkRun
    from mzplan.schema.description import Description
    from tests.integration.spark_lab import Lab

pytestmark = pytest.mark.nightly

Make = Callable[..., str]
TABLE = "CREATE TABLE orders (id bigint, customer text)"


def changed(
    lab: Lab, sink: Description, connection: dict[str, Any] | None = None, **body: Any
) -> Description:
    """The sink after a change of its connection, or of itself."""
    found = lab.retried(sink)
    own: Any = found.body
    own.update(body)
    inner: Any = found.connections["connection"].body
    inner.update(connection or {})
    return found


def found(lab: Lab, sink: Description) -> Diagnostic:
    (one,) = lab.check(sink).diagnostics
    return one


def recover(server: PostgresServer) -> None:
    """Start from what is there as from a backup: to the end of its log, then on a new timeline."""
    data = server.workdir / "cluster" / "data"
    (data / "recovery.signal").touch()
    server.settings = {"restore_command": "false"}
    server.start()
    with psycopg.connect(server.dsn()) as connection:
        until(
            "it is promoted",
            lambda: connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,),
        )


def copy(server: PostgresServer, here: str, there: str) -> None:
    """A copy of the data of a server that is stopped."""
    folder = (server.workdir / "cluster").resolve()
    subprocess.run(["rm", "-rf", str(folder / there)], check=True)
    subprocess.run(["cp", "-a", str(folder / here), str(folder / there)], check=True)


def ids(dsn: str) -> list[int]:
    return [row[0] for row in rows_of(dsn, "SELECT id FROM orders ORDER BY id")]


class Flow:
    """Rows through a source and a sink into a table, one step for each."""

    def __init__(self, lab: Lab, topic: str, server: PostgresServer):
        self.lab, self.topic, self.server = lab, topic, server
        server.create_database("shop")
        self.dsn = server.dsn("shop")
        self.sent = 0
        # A user without rights beyond the table learns the identity too.
        for statement in (
            TABLE,
            "CREATE ROLE writer LOGIN PASSWORD 'writing'",
            "GRANT CREATE ON DATABASE shop TO writer",
            "GRANT ALL ON orders TO writer",
        ):
            execute(self.dsn, statement)
        lab.secrets.environment["WRITER_PASSWORD"] = "writing"
        there = {"port": server.port, "user": "writer", "password": "${env:WRITER_PASSWORD}"}
        self.source = lab.kafka_source(topic, "id BIGINT, customer STRING")
        self.sink = lab.sink(
            self.source, "postgres", lab.postgres_body("shop", **there), table="public.orders"
        )

    def send(self) -> None:
        self.lab.produce(self.topic, {"id": self.sent, "customer": "ann"})
        self.sent += 1

    def flows(self, *expected: int, dsn: str = "") -> None:
        self.send()
        until(f"{expected} are there", lambda: ids(dsn or self.dsn) == list(expected))


def test_a_database_that_is_promoted_restored_moved_and_made_anew(
    lab: Lab, topic: Make, database: Make, own_postgres: PostgresServer
) -> None:
    flow = Flow(lab, topic(partitions=1), own_postgres)
    lab.start(flow.source, flow.sink)
    flow.flows(0)
    lab.finish(flow.sink)
    recorded = lab.check(flow.sink)
    assert recorded.diagnostics == () and recorded.upstream is not None
    assert (recorded.upstream["timeline"], recorded.upstream["database"]) == (1, "shop")
    own_postgres.stop()
    copy(own_postgres, "data", "backup")

    # Promoted, with every step: told, and it goes on by itself.
    recover(own_postgres)
    notice = found(lab, flow.sink)
    assert (notice.code, notice.severity) == ("MZ043", "notice")
    assert "timeline 2 instead of 1" in notice.detail
    lab.start(flow.sink)
    flow.flows(0, 1)
    lab.finish(flow.sink)
    assert lab.check(flow.sink).diagnostics == ()

    _restored(lab, flow)
    _moved(lab, flow, database("elsewhere"))
    lab.stop(flow.source)


def _restored(lab: Lab, flow: Flow) -> None:
    """From a backup that is older than the checkpoint: refused, and nothing is written; or as it is told."""
    flow.server.stop()
    copy(flow.server, "backup", "data")
    recover(flow.server)
    refused = found(lab, flow.sink)
    assert (refused.code, refused.severity, refused.exit_code) == ("MZ069", "error", ExitCode.REFUSED)
    last, done = map(int, re.findall(r"last step is (\d+).* after step (\d+)", refused.detail)[0])
    assert done == last + 1
    flow.send()
    lab.start(flow.sink)
    assert lab.ended(flow.sink).error_code == "MZ069"
    assert ids(flow.dsn) == [0]
    lab.stop(flow.sink)
    accepting = changed(lab, flow.sink, on_target_change="accept")
    assert (found(lab, accepting).code, found(lab, accepting).severity) == ("MZ069", "notice")
    lab.start(accepting)
    until("what comes next is written", lambda: ids(flow.dsn) == [0, 2])
    lab.finish(accepting)
    assert lab.check(accepting).diagnostics == ()
    # And what was lost is written once more, as the error says.
    again = replace(lab.retried(accepting), tasks=(replay(5, missing=True),))
    lab.start(again)
    assert ids(flow.dsn) == [0, 1, 2]
    lab.finish(again)


def _moved(lab: Lab, flow: Flow, other: str) -> None:
    """Another server with a table of that name; then a database of that name, made anew."""
    lab.execute(other, TABLE)
    moved = changed(lab, flow.sink, lab.postgres_body(other))
    del moved.body["on_target_change"]  # type: ignore[attr-defined]
    refused = found(lab, moved)
    assert (refused.code, refused.exit_code) == ("MZ043", ExitCode.REFUSED)
    assert "system identifier" in refused.detail and "on_target_change" in refused.hint
    accepting = changed(lab, moved, on_target_change="accept")
    lab.start(accepting)
    flow.flows(3, dsn=lab.postgres.dsn(other))
    lab.finish(accepting)
    lab.postgres.drop_database(other)
    lab.postgres.create_database(other)
    lab.execute(other, TABLE)
    del accepting.body["on_target_change"]  # type: ignore[attr-defined]
    assert "dropped and recreated" in found(lab, accepting).detail


def test_a_topic_that_is_written_is_another_one(lab: Lab, topic: Make, own_kafka: KafkaBroker) -> None:
    name, out = topic(partitions=1), topic("target", partitions=1)
    create_topic(own_kafka.bootstrap, out, 1)
    source = lab.kafka_source(name, "id BIGINT")
    sink = lab.kafka_sink(source, out)
    lab.produce(name, {"id": 1})
    lab.start(source, sink)
    until("it has written", lambda: len(committed(lab.kafka.bootstrap, out)) == 1)
    lab.finish(sink)
    assert lab.check(sink).diagnostics == ()

    moved = changed(lab, sink, {"brokers": [own_kafka.bootstrap]})
    refused = found(lab, moved)
    assert (refused.code, refused.exit_code) == ("MZ043", ExitCode.REFUSED) and "cluster" in refused.detail
    accepting = changed(lab, moved, on_target_change="accept")
    assert found(lab, accepting).severity == "notice"
    lab.produce(name, {"id": 2})
    lab.start(accepting)
    until("it has written there", lambda: len(committed(own_kafka.bootstrap, out)) == 1)
    lab.finish(accepting)
    assert lab.check(accepting).diagnostics == ()
    delete_topic(own_kafka.bootstrap, out)
    create_topic(own_kafka.bootstrap, out, 1)
    assert "deleted and created again" in found(lab, accepting).detail
    lab.stop(source)


class Torn:
    """An output without transactions: rows and what is recorded of their step are there as they are pushed.
    `dies`: after the first batch, as of a kill."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.notes: dict[Step, Written] = {}
        self.dies = False

    def name(self) -> str:
        return "torn"

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> Torn:
        return self

    def start_step(self, step: Step) -> None:
        self.step, self.length = step, 0
        known = self.notes.get(step)
        self.replay = StepReplay(step, written=known, last=max(self.notes, default=None))

    def push_buffer(self, batch: RecordBatch) -> None:
        for at in range(batch.num_rows):
            row = batch.slice(at, 1)
            self.length += 1
            fresh = self.replay.push(row)
            if fresh.num_rows:
                before = self.notes.get(self.step, Written(rows=0, digest=str(ContentHash())))
                known = ContentHash.parse(before.rows, before.digest) or ContentHash()
                grown = known + content_hash([fresh])
                self.rows += fresh.column("id").to_pylist()
                self.notes[self.step] = Written(rows=grown.rows, digest=str(grown))
            if self.dies and self.length == 2:
                raise RuntimeError("killed")

    def finish_step(self) -> None:
        self.notes[self.step] = self.replay.finish()

    def expire_step(self, step: Step) -> None:
        pass


class Sqlite(SqliteOutputFactory):
    """The connector of the example, on a database of its own."""

    def __init__(self, path: Path):
        self.path = str(path)
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE t (id INTEGER)")

    def ids(self) -> list[int]:
        with sqlite3.connect(self.path) as connection:
            return sorted(row[0] for row in connection.execute("SELECT id FROM t"))

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> SqliteOutput:
        connection = {"path": self.path, "timeout": 10}
        return super().new_endpoint(name, {**config, "connection": connection, "options": {"table": "t"}})


ODD = "id % 2 = 1"
There = Callable[[], list[int]]


class Crashes:
    """A local source and sinks of it, each with what gives the ids in its target, in order."""

    def __init__(self, lab: Lab, source: Description, sinks: dict[str, tuple[Description, There]]):
        self.lab, self.source = lab, source
        self.sinks = {kind: sink for kind, (sink, _) in sinks.items()}
        self.there = {kind: there for kind, (_, there) in sinks.items()}

    def crash(self, *, forget: bool = False, **body: Any) -> None:
        """The runner dies when a target has the last step and Spark has not noted that down (or the step
        has failed half-way); then the sinks change. `forget`: it isn't known what the step began as."""
        for kind, sink in self.sinks.items():
            if self.lab.report(sink).active:
                self.lab.finish(sink)
                self.lab.undo_commit(sink)
            else:
                self.lab.stop(sink)
            if forget:
                self.lab.forget_begun(sink)
            self.sinks[kind] = again = self.lab.retried(sink)
            own: Any = again.body
            own.update(body)

    def hold(self, expected: list[int]) -> None:
        """Wait until each row is there, once."""
        for kind, sink in self.sinks.items():
            until(f"{kind} has {expected}", lambda k=kind: self.there[k]() == expected, 180)  # type: ignore[misc]
            until(f"{kind} is done", lambda s=sink: self.lab.checkpoint_done(s))  # type: ignore[misc]
            assert self.there[kind]() == expected, kind

    def warned(self) -> set[str]:
        """Those that warn of a step that is not what it was."""
        warnings = {kind: self.lab.report(sink).warning or "" for kind, sink in self.sinks.items()}
        return {kind for kind, warning in warnings.items() if "[MZ088]" in warning}

    def run(self, *comparing: str) -> None:
        """`comparing`: those whose target is asked for the rows of a step that it has."""
        append(self.lab, self.source, 1, 2, 3, 4, 5)
        self.lab.start(self.source, *self.sinks.values())
        self.hold([1, 3, 5])
        self.finished_as_it_began()
        # Where it is not known what the step began as, it stands as written, and that is told.
        self.crash(forget=True, where="id < 8")
        append(self.lab, self.source, 2)
        self.lab.start(*self.sinks.values())
        self.hold([1, 2, 3, 5, 6, 7, 8])
        assert self.warned() == set(comparing)
        self.lab.stop(self.source, *self.sinks.values())

    def finished_as_it_began(self) -> None:
        self.crash(where="id > 0")
        append(self.lab, self.source, 6, 7, 8)
        self.lab.start(*self.sinks.values())
        self.hold([1, 3, 5, 6, 7, 8])
        assert {self.lab.report(sink).warning for sink in self.sinks.values()} == {None}


def delta_and_files(lab: Lab, source: Description, folder: Path) -> dict[str, tuple[Description, There]]:

    def listed() -> list[int]:
        found = [parquet.read_table(one).to_pylist() for one in committed_files(folder / "files")]
        return sorted(row["id"] for rows in found for row in rows)

    return {
        "delta": (
            lab.delta_sink(source, folder, "delta", where=ODD),
            lambda: sorted(row["id"] for row in read_delta(folder / "delta")),
        ),
        "files": (lab.files_sink(source, folder, "files", where=ODD), listed),
    }


def test_a_step_that_spark_writes_is_finished_as_it_began(lab: Lab, tmp_path: Path) -> None:
    source = lab.source("local", None, schema="id BIGINT")
    Crashes(lab, source, delta_and_files(lab, source, tmp_path)).run()


def test_a_step_in_a_connectors_target_is_finished_as_it_began(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn, sqlite = Torn(), Sqlite(tmp_path / "shop.db")
    source = lab.source("local", None, schema="id BIGINT")
    sinks = {
        "sqlite": (lab.sink(source, "console", None, where=ODD), sqlite.ids),
        "torn": (lab.sink(source, "console", None, where=ODD), lambda: sorted(torn.rows)),
    }
    factories = {str(sink.address): sqlite if kind == "sqlite" else torn for kind, (sink, _) in sinks.items()}

    class Ours(EndpointSink):
        """The endpoints of this test, under the type of another connector."""

        def write(self, rows: DataFrame, run: SinkRun) -> DataStreamWriter:
            return EndpointSink(factories[str(run.query.address)]).write(rows, run)

    monkeypatch.setitem(lab.executor._connectors._by_type, ("sink", "console"), Ours(sqlite))
    crashes = Crashes(lab, source, sinks)
    # One that is killed in the middle of its step, of which a part is there.
    torn.dies = True
    append(lab, source, 1, 2, 3, 4, 5)
    lab.start(source, crashes.sinks["torn"], crashes.sinks["sqlite"])
    assert "killed" in (lab.ended(crashes.sinks["torn"]).error or "") and torn.rows == [1, 3]
    until("the other one has it", lambda: sqlite.ids() == [1, 3, 5])
    torn.dies = False
    crashes.finished_as_it_began()
    crashes.crash(forget=True, where="id < 8")
    append(lab, source, 2)
    lab.start(*crashes.sinks.values())
    crashes.hold([1, 2, 3, 5, 6, 7, 8])
    assert crashes.warned() == {"sqlite", "torn"}
    lab.stop(source, *crashes.sinks.values())


def test_a_step_on_a_server_is_finished_as_it_began(lab: Lab, topic: Make, database: Make) -> None:
    shop, output = database(), topic(partitions=1)
    lab.execute(shop, "CREATE TABLE straight (id bigint)", "CREATE TABLE staged (id numeric)")
    source = lab.source("local", None, schema="id BIGINT")

    def rows(table: str) -> list[int]:
        return sorted(int(row[0]) for row in lab.rows(shop, f"SELECT id FROM {table}"))

    sinks = {
        "kafka": (
            lab.kafka_sink(source, output, where=ODD),
            lambda: sorted(value["id"] for _, _, value in committed(lab.kafka.bootstrap, output)),
        ),
        "straight": (lab.postgres_sink(source, shop, "straight", where=ODD), lambda: rows("straight")),
        "staged": (lab.postgres_sink(source, shop, "staged", where=ODD), lambda: rows("staged")),
    }
    Crashes(lab, source, sinks).run(*sinks)
