"""A runner that is killed in a backfill: its rows are there exactly once more, in the collection and in each
target."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer

from mzplan.connectors.files.manifest import committed_files
from mzplan.host.failpoints import Failpoint
from mzplan.model.times import instant_text
from tests.faults.doomed import Doomed
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
POINTS = [point for point in Failpoint if point.value.startswith("backfill.")]
SECONDS = 240.0
BEGAN, MINUTE = 1_700_000_000_000, 60_000  # milliseconds


@pytest.fixture
def doomed(tmp_path: Path, postgres: PostgresServer) -> Iterator[Doomed]:
    found = Doomed(Project(tmp_path / "p", "backfills", {"TEST_PG_PASSWORD": postgres.password}))
    yield found
    found.close()


@pytest.mark.timeout(900)
def test_killed_in_a_backfill(
    doomed: Doomed, kafka: KafkaBroker, postgres: PostgresServer, topic: Make, database: Make
) -> None:
    project, name, records = doomed.project, database("backfills"), topic("backfills", partitions=2)
    dsn = postgres.dsn(name)
    execute(dsn, "CREATE TABLE appended (id bigint)")
    connections = kafka_connection("k", kafka.bootstrap) + postgres_connection("pg", postgres, name)
    project.write(
        "backfills",
        f"connections:\n{connections}  disk: {{type: files, path: {project.folder / 'lake'}}}\n"
        f"sources:\n  s:\n    connection: k\n    topic: {records}\n"
        '    format: {type: json, schema: "id BIGINT"}\n    trigger: {interval: 500ms}\n'
        "sinks:\n  pg: {from: s, connection: pg, table: appended, trigger: {interval: 500ms}}\n"
        "  files: {type: files, from: s, connection: disk, path: files, select: [id, id % 3 AS third],\n"
        "    partition_by: [third], trigger: {interval: 500ms}}\n",
    )

    def send(*ids: int) -> None:
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for id_ in ids:
            producer.produce(
                records, json.dumps({"id": id_}), timestamp=BEGAN + id_ * MINUTE, partition=id_ % 2
            )
        assert producer.flush(30) == 0

    def arrive(wanted: Counter[int]) -> None:
        def there() -> bool:
            in_table = Counter(row[0] for row in rows_of(dsn, "SELECT id FROM appended"))
            in_folders = Counter(ids_of(committed_files(project.folder / "lake/files")))
            assert in_table <= wanted and in_folders <= wanted, (in_table - wanted, in_folders - wanted)
            return in_table == in_folders == wanted

        eventually("each row is in each target", there, SECONDS)

    send(*range(100))
    project.apply()
    wanted = Counter(range(100))
    arrive(wanted)
    project.down()

    first = doomed.runner(POINTS[0].value)
    eventually("it runs", lambda: project.queries()["source.s"]["condition"] == "running", SECONDS)
    times = ("--from", instant_text(BEGAN + 20 * MINUTE), "--to", instant_text(BEGAN + 50 * MINUTE))
    asked = project.run("backfill", "source.s", *times, "--auto-approve", "--wait", "0s")
    assert asked.returncode == 8, asked.stdout + asked.stderr
    assert first.wait(SECONDS) == -signal.SIGKILL, (project.folder / "runner.log").read_text()
    for point in POINTS[1:]:  # which finds the offsets written down
        assert doomed.runner(point.value).wait(SECONDS) == -signal.SIGKILL, point
    assert project.json("plan")["changes"] == []

    send(*range(100, 110))
    project.run("up")
    wanted += Counter(range(20, 50)) + Counter(range(100, 110))
    arrive(wanted)
    eventually("it is done", lambda: project.json("status")["queries"][-1]["tasks"][0]["done"], SECONDS)
    assert project.json("plan")["pending"] == []
    project.down()
    found = project.json("steps", "source.s")["steps"]
    assert [step["step"] for step in found] == list(range(len(found)))
    (once,) = [step for step in found if "task" in step]
    assert (once["rows"], once["task"]) == (30, {"kind": "backfill", "serial": 2})
    assert sum(step["rows"] for step in found) == wanted.total()
    for address in ("source.s", "sink.pg", "sink.files"):
        verified = project.json("verify", address)
        assert verified["difference"] is None and verified["verified"] > 0, verified
    assert project.json("verify", "source.s", "--from-upstream")["difference"] is None


def ids_of(files: list[str]) -> list[int]:
    return pq.ParquetDataset(files).read(columns=["id"])["id"].to_pylist() if files else []
