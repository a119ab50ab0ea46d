"""Another target under a sink, on real servers: a backup, a promotion, another server, another topic."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg

from examples.servers import create_topic, delete_topic
from mzplan.model.diagnostics import Diagnostic, ExitCode
from tests.integration.committed import committed
from tests.integration.spark_lab import until
from tests.support import execute, rows_of

if TYPE_CHECKING:
    from examples.servers import KafkaBroker, PostgresServer
    from mzplan.schema.description import Description
    from tests.integration.spark_lab import Lab

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
    assert (notice.code, notice.severity) == ("MZ142", "notice")
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
    assert "dropped and made anew" in found(lab, accepting).detail


def test_a_topic_that_is_written_is_another_one(lab: Lab, topic: Make, own_kafka: KafkaBroker) -> None:
    name, out = topic(partitions=1), topic("target", partitions=1)
    create_topic(own_kafka.bootstrap, out, 1)
    source = lab.kafka_source(name, "id BIGINT")
    sink = lab.sink(source, "kafka", {"type": "kafka", "brokers": [lab.kafka.bootstrap]}, topic=out)
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
