"""A runner that is killed while a source begins with the rows of its collection, and a sink goes over to it:
each row is there once."""

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
from tests.support import Project, eventually, execute, kafka_connection, postgres_connection, rows_of

if TYPE_CHECKING:
    from examples.servers import KafkaBroker, PostgresServer

Make = Callable[..., str]
POINTS = [point for point in Failpoint if point.value.startswith("migration.")]
SECONDS = 240.0


@pytest.fixture
def doomed(tmp_path: Path, postgres: PostgresServer) -> Iterator[Doomed]:
    found = Doomed(Project(tmp_path / "p", "migrated", {"TEST_PG_PASSWORD": postgres.password}))
    yield found
    found.close()


def replace_and_be_killed(doomed: Doomed, declare: Callable[[str, str], None]) -> None:
    """The source is replaced from its collection, with a wider column, while a runner runs it that dies at
    the first point of that."""
    project = doomed.project
    first = doomed.runner(POINTS[0].value)
    eventually("it runs", lambda: project.queries()["source.s"]["condition"] == "running", SECONDS)
    declare("BIGINT", "    lifecycle: {replace: from-collection}\n")
    asked = project.run("apply", "--auto-approve", "--allow-replace", "--wait", "0s")
    assert asked.returncode == 8, asked.stdout + asked.stderr
    assert first.wait(SECONDS) == -signal.SIGKILL, (project.folder / "runner.log").read_text()


@pytest.mark.timeout(1200)
def test_killed_in_a_migration(
    doomed: Doomed, kafka: KafkaBroker, postgres: PostgresServer, topic: Make, database: Make
) -> None:
    project, name, records = doomed.project, database("migrated"), topic("migrated", partitions=2)
    dsn = postgres.dsn(name)
    execute(dsn, "CREATE TABLE appended (id bigint, n text)")
    connections = kafka_connection("k", kafka.bootstrap) + postgres_connection("pg", postgres, name)

    def declare(type_: str, more: str = "") -> None:
        project.write(
            "migrated",
            f"connections:\n{connections}"
            f"sources:\n  s:\n    connection: k\n    topic: {records}\n{more}"
            f'    format: {{type: json, schema: "id BIGINT, n {type_}"}}\n    trigger: {{interval: 500ms}}\n'
            "sinks:\n  pg:\n    from: s\n    connection: pg\n    table: appended\n"
            "    select: [id, cast(n AS STRING) AS n]\n    trigger: {interval: 500ms}\n",
        )

    def send(*ids: int) -> None:
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for id_ in ids:
            producer.produce(records, json.dumps({"id": id_, "n": id_}), partition=id_ % 2)
        assert producer.flush(30) == 0

    def arrive(wanted: Counter[int]) -> None:
        def there() -> bool:
            found = Counter(row[0] for row in rows_of(dsn, "SELECT id FROM appended"))
            assert found <= wanted, found - wanted
            return found == wanted

        eventually("each row is in the target", there, SECONDS)

    declare("INT")
    send(*range(100))
    project.apply()
    wanted = Counter(range(100))
    arrive(wanted)
    project.down()

    replace_and_be_killed(doomed, declare)
    send(*range(100, 120))
    for point in POINTS[1:]:
        assert doomed.runner(point.value).wait(SECONDS) == -signal.SIGKILL, point
    assert project.json("plan")["changes"] == []

    send(*range(120, 130))
    project.run("up")
    arrive(wanted + Counter(range(100, 130)))
    eventually("nothing is pending", lambda: project.json("plan")["pending"] == [], SECONDS)
    project.down()
    found = project.json("steps", "source.s")["steps"]
    assert [step["step"] for step in found] == list(range(len(found)))
    assert (found[0]["migrated"], found[0]["rows"]) == (1, 100)
    assert sum(step["rows"] for step in found) == 130
    for command in (("source.s",), ("source.s", "--from-upstream"), ("sink.pg",)):
        verified = project.json("verify", *command)
        assert verified["difference"] is None, verified
        assert all(one["code"] == "MZ045" for one in verified["diagnostics"]), verified


@pytest.mark.timeout(1200)
def test_killed_while_a_slot_is_gone_on_with(
    doomed: Doomed, postgres: PostgresServer, database: Make
) -> None:
    """The slot stays through all of it, also when the generation that made it is given up; and goes with the
    last one."""
    project, shop, target = doomed.project, database("shop"), database("target")
    from_, to = postgres.dsn(shop), postgres.dsn(target)
    execute(from_, "CREATE TABLE t (id bigint PRIMARY KEY, n int)")
    execute(from_, "INSERT INTO t SELECT g, g FROM generate_series(1, 100) g")
    execute(to, "CREATE TABLE t (id bigint PRIMARY KEY, n text)")
    connections = postgres_connection("shop", postgres, shop) + postgres_connection("pg", postgres, target)

    def declare(type_: str, more: str = "") -> None:
        project.write(
            "migrated",
            f"connections:\n{connections}"
            f"sources:\n  s:\n    connection: shop\n    tables: [public.t]\n    key: [id]\n{more}"
            f'    schema: "id BIGINT, n {type_}"\n    trigger: {{interval: 500ms}}\n'
            "sinks:\n  pg:\n    from: s\n    connection: pg\n    table: t\n    mode: upsert\n    key: [id]\n"
            "    select: [id, cast(n AS STRING) AS n]\n    trigger: {interval: 500ms}\n",
        )

    def arrive() -> None:
        def there() -> bool:
            wanted = [(id_, str(n)) for id_, n in rows_of(from_, "SELECT id, n FROM t ORDER BY id")]
            return rows_of(to, "SELECT id, n FROM t ORDER BY id") == wanted

        eventually("the target is as the table", there, SECONDS)

    def slots() -> list[str]:
        mine = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        return [row[0] for row in rows_of(from_, mine)]

    declare("INT")
    project.apply()
    execute(from_, "DELETE FROM t WHERE id = 1")
    arrive()
    (slot,) = slots()
    project.down()

    replace_and_be_killed(doomed, declare)
    execute(from_, "DELETE FROM t WHERE id < 20")
    for number, point in enumerate(POINTS[1:]):
        execute(from_, f"UPDATE t SET n = {number} WHERE id = {30 + number}")
        assert doomed.runner(point.value).wait(SECONDS) == -signal.SIGKILL, point
    assert project.json("plan")["changes"] == []

    execute(from_, "INSERT INTO t SELECT g, g FROM generate_series(1001, 1010) g")
    project.run("up")
    arrive()
    eventually("nothing is pending", lambda: project.json("plan")["pending"] == [], SECONDS)
    eventually(
        # Not by the event that it is given up: a runner that was killed in the same second has lost that.
        "the former generation is given up, and its storage removed",
        lambda: "generation 1; its storage was removed" in project.run("events").stdout,
        SECONDS,
    )
    execute(from_, "DELETE FROM t WHERE id > 1005")
    arrive()
    assert slots() == [slot]
    found = project.json("steps", "source.s")["steps"]
    assert (found[0]["step"], found[0]["migrated"], found[0]["rows"]) == (0, 1, 99)
    project.write("migrated", "")
    project.apply()
    eventually("the slot is dropped", lambda: slots() == [], SECONDS)
