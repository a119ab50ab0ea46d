"""Another target under a sink, on real servers: a backup, a promotion, another server, another topic."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyarrow import RecordBatch

from examples.servers import KafkaBroker, PostgresServer, create_topic, delete_topic
from mzplan.connectors.adapter.sink import EndpointSink
from mzplan.endpoints import Step
from mzplan.endpoints.interface import Written
from mzplan.endpoints.replay import StepReplay
from mzplan.model.diagnostics import Diagnostic, ExitCode
from mzplan.schema.description import Description
from mzplan.warehouse.rows.content_hash import ContentHash, content_hash
from tests.faults.doomed import ids_in_delta, ids_in_files, ids_in_topic
from tests.integration.committed import committed
from tests.integration.spark.test_spark_endpoints import append
from tests.integration.spark_lab import Lab
from tests.support import Make, eventually, execute, ids_in
from tests.tasks import replay

pytestmark = pytest.mark.nightly

TABLE = "CREATE TABLE orders (id bigint, customer text)"


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
        eventually(
            "it is promoted",
            lambda: connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,),
        )


def copy(server: PostgresServer, here: str, there: str) -> None:
    """A copy of the data of a server that is stopped."""
    folder = (server.workdir / "cluster").resolve()
    subprocess.run(["rm", "-rf", str(folder / there)], check=True)
    subprocess.run(["cp", "-a", str(folder / here), str(folder / there)], check=True)


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
        eventually(f"{expected} are there", lambda: ids_in(dsn or self.dsn, "orders") == list(expected))


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
    lab.fails(flow.sink, "MZ069")
    assert ids_in(flow.dsn, "orders") == [0]
    lab.stop(flow.sink)
    accepting = lab.changed(flow.sink, on_target_change="accept")
    assert (found(lab, accepting).code, found(lab, accepting).severity) == ("MZ069", "notice")
    lab.start(accepting)
    eventually("what comes next is written", lambda: ids_in(flow.dsn, "orders") == [0, 2])
    lab.finish(accepting)
    assert lab.check(accepting).diagnostics == ()
    # And what was lost is written once more, as the error says.
    again = replace(lab.retried(accepting), tasks=(replay(5, missing=True),))
    lab.start(again)
    assert ids_in(flow.dsn, "orders") == [0, 1, 2]
    lab.finish(again)


def _moved(lab: Lab, flow: Flow, other: str) -> None:
    """Another server with a table of that name; then a database of that name, made anew."""
    lab.execute(other, TABLE)
    moved = lab.changed(flow.sink, lab.postgres_body(other))
    refused = found(lab, moved)
    assert (refused.code, refused.exit_code) == ("MZ043", ExitCode.REFUSED)
    assert "system identifier" in refused.detail and "on_target_change" in refused.hint
    accepting = lab.changed(moved, on_target_change="accept")
    lab.start(accepting)
    flow.flows(3, dsn=lab.postgres.dsn(other))
    lab.finish(accepting)
    lab.postgres.drop_database(other)
    lab.postgres.create_database(other)
    lab.execute(other, TABLE)
    assert "dropped and recreated" in found(lab, moved).detail


def test_a_topic_that_is_written_is_another_one(lab: Lab, topic: Make, own_kafka: KafkaBroker) -> None:
    name, out = topic(partitions=1), topic("target", partitions=1)
    create_topic(own_kafka.bootstrap, out, 1)
    source = lab.kafka_source(name, "id BIGINT")
    sink = lab.kafka_sink(source, out)
    lab.produce(name, {"id": 1})
    lab.start(source, sink)
    eventually("it has written", lambda: len(committed(lab.kafka.bootstrap, out)) == 1)
    lab.finish(sink)
    assert lab.check(sink).diagnostics == ()

    moved = lab.changed(sink, {"brokers": [own_kafka.bootstrap]})
    refused = found(lab, moved)
    assert (refused.code, refused.exit_code) == ("MZ043", ExitCode.REFUSED) and "cluster" in refused.detail
    accepting = lab.changed(moved, on_target_change="accept")
    assert found(lab, accepting).severity == "notice"
    lab.produce(name, {"id": 2})
    lab.start(accepting)
    eventually("it has written there", lambda: len(committed(own_kafka.bootstrap, out)) == 1)
    lab.finish(accepting)
    assert lab.check(accepting).diagnostics == ()
    delete_topic(own_kafka.bootstrap, out)
    create_topic(own_kafka.bootstrap, out, 1)
    assert "deleted and created again" in found(lab, accepting).detail


class Torn:
    """An output without transactions: rows and what is recorded of their step are there as they are pushed.
    `dies`: after two rows, as of a kill."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.notes: dict[Step, Written] = {}
        self.dies = False

    def name(self) -> str:
        return "torn"

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> Torn:
        return self

    def start_step(self, step: Step) -> None:
        self.step = step
        self.replay = StepReplay(step, written=self.notes.get(step), last=max(self.notes, default=None))

    def push_buffer(self, batch: RecordBatch) -> None:
        fresh = self.replay.push(batch)
        taken = fresh.slice(0, 2) if self.dies else fresh
        before = self.notes.get(self.step, Written(rows=0, digest=str(ContentHash())))
        known = ContentHash.parse(before.rows, before.digest) or ContentHash()
        grown = known + content_hash([taken])
        self.rows += taken.column("id").to_pylist()
        self.notes[self.step] = Written(rows=grown.rows, digest=str(grown))
        if self.dies:
            raise RuntimeError("killed")

    def finish_step(self) -> None:
        self.notes[self.step] = self.replay.finish()

    def expire_step(self, step: Step) -> None:
        pass


ODD = "id % 2 = 1"
There = Callable[[], Iterable[int]]


class Crashes:
    """A local source and sinks of it, each with what gives the ids in its target."""

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
            self.sinks[kind] = self.lab.changed(sink, **body)

    def hold(self, *expected: int) -> None:
        """Wait until each row is there, once."""

        def holds(kind: str) -> bool:
            return sorted(self.there[kind]()) == list(expected)

        for kind, sink in self.sinks.items():
            eventually(f"{kind} has {expected}", lambda k=kind: holds(k), 180)  # type: ignore[misc]
            eventually(f"{kind} is done", lambda s=sink: self.lab.checkpoint_done(s))  # type: ignore[misc]
            assert holds(kind), kind

    def change(self, *comparing: str) -> None:
        """`comparing`: the sinks whose target is asked for the rows of a step that it has."""
        # A step is finished as it began.
        self.crash(where="id > 0")
        append(self.lab, self.source, 6, 7, 8)
        self.lab.start(*self.sinks.values())
        self.hold(1, 3, 5, 6, 7, 8)
        assert {self.lab.report(sink).warning for sink in self.sinks.values()} == {None}
        # Where it is not known what the step began as, it stands as written, and that is told.
        self.crash(forget=True, where="id < 8")
        append(self.lab, self.source, 2)
        self.lab.start(*self.sinks.values())
        self.hold(1, 2, 3, 5, 6, 7, 8)
        warnings = {kind: self.lab.report(sink).warning or "" for kind, sink in self.sinks.items()}
        assert {kind for kind, warning in warnings.items() if "[MZ088]" in warning} == set(comparing)
        self.lab.stop(self.source, *self.sinks.values())


def test_a_step_in_a_connectors_target_is_finished_as_it_began(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn = Torn()
    source = lab.source("local", None, schema="id BIGINT")
    sink = lab.sink(source, "console", None, where=ODD)
    monkeypatch.setitem(lab.executor._connectors._by_type, ("sink", "console"), EndpointSink(torn))
    crashes = Crashes(lab, source, {"torn": (sink, lambda: torn.rows)})
    # It is killed in the middle of its step, of which a part is there.
    torn.dies = True
    append(lab, source, 1, 2, 3, 4, 5)
    lab.start(source, sink)
    assert "killed" in (lab.ended(sink).error or "") and torn.rows == [1, 3]
    torn.dies = False
    crashes.change("torn")


def test_a_step_is_finished_as_it_began(lab: Lab, topic: Make, database: Make, tmp_path: Path) -> None:
    shop, output = database(), topic(partitions=1)
    lab.execute(shop, "CREATE TABLE straight (id bigint)", "CREATE TABLE staged (id numeric)")
    source = lab.source("local", None, schema="id BIGINT")
    kafka = lab.kafka_sink(source, output, where=ODD)
    straight, staged = (lab.postgres_sink(source, shop, table, where=ODD) for table in ("straight", "staged"))
    delta = lab.delta_sink(source, tmp_path, "delta", where=ODD)
    files = lab.files_sink(source, tmp_path, "files", where=ODD)
    dsn = lab.postgres.dsn(shop)
    sinks: dict[str, tuple[Description, There]] = {
        "kafka": (kafka, lambda: ids_in_topic(lab.kafka.bootstrap, output)),
        "straight": (straight, lambda: ids_in(dsn, "straight")),
        "staged": (staged, lambda: ids_in(dsn, "staged")),
        "delta": (delta, lambda: ids_in_delta(tmp_path / "delta")),
        "files": (files, lambda: ids_in_files(tmp_path / "files")),
    }
    crashes = Crashes(lab, source, sinks)
    append(lab, source, 1, 2, 3, 4, 5)
    lab.start(source, *crashes.sinks.values())
    crashes.hold(1, 3, 5)
    crashes.change("kafka", "straight", "staged")
