"""A runner that is killed in a replay: what a hand has deleted is in each target again, and exactly once."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable

from mzplan.host.failpoints import Failpoint
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
POINTS = [point for point in Failpoint if point.value.startswith("replay.")]
SECONDS = 240.0
ROWS = 300


@pytest.fixture
def doomed(tmp_path: Path, postgres: PostgresServer) -> Iterator[Doomed]:
    found = Doomed(Project(tmp_path / "p", "replays", {"TEST_PG_PASSWORD": postgres.password}))
    yield found
    found.close()


@pytest.mark.timeout(900)
def test_killed_in_a_replay(
    doomed: Doomed, kafka: KafkaBroker, postgres: PostgresServer, topic: Make, database: Make
) -> None:
    project, name, records = doomed.project, database("replays"), topic("replays", partitions=2)
    dsn, lake = postgres.dsn(name), project.folder / "lake"
    execute(dsn, "CREATE TABLE appended (id bigint)")
    connections = kafka_connection("k", kafka.bootstrap) + postgres_connection("pg", postgres, name)
    project.write(
        "replays",
        f"connections:\n{connections}  disk: {{type: files, path: {lake}}}\n"
        f"sources:\n  s:\n    connection: k\n    topic: {records}\n"
        '    format: {type: json, schema: "id BIGINT"}\n    trigger: {interval: 500ms}\n'
        "sinks:\n  pg: {from: s, connection: pg, table: appended, trigger: {interval: 500ms}}\n"
        "  delta: {type: delta, from: s, connection: disk, path: d, trigger: {interval: 500ms}}\n",
    )

    def send(*ids: int) -> None:
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for id_ in ids:
            producer.produce(records, json.dumps({"id": id_}), partition=id_ % 2)
        assert producer.flush(30) == 0

    def in_postgres() -> list[int]:
        return sorted(row[0] for row in rows_of(dsn, "SELECT id FROM appended"))

    def in_delta() -> list[int]:
        found = DeltaTable(str(lake / "d")).to_pyarrow_table() if (lake / "d").is_dir() else None
        return sorted(found["id"].to_pylist()) if found is not None else []

    def both(ids: list[int]) -> None:
        def there() -> bool:
            for held in (in_postgres(), in_delta()):
                assert len(held) == len(set(held)), "no row is there twice"
            return in_postgres() == in_delta() == ids

        eventually("each row is in both targets", there, SECONDS)

    send(*range(ROWS))
    project.apply()
    both(list(range(ROWS)))
    project.down()
    execute(dsn, "DELETE FROM appended WHERE id BETWEEN 50 AND 150")
    DeltaTable(str(lake / "d")).delete("id BETWEEN 50 AND 150")
    assert len(in_postgres()) == len(in_delta()) == ROWS - 101

    asked = ("--missing", "--auto-approve", "--wait", "0s")
    refused = project.run("replay", "sink.pg", "--steps", "0..", "--auto-approve")
    assert refused.returncode == 7 and "MZ295" in refused.stderr, refused.stdout + refused.stderr

    project.down()
    for sink in ("sink.pg", "sink.delta"):
        first = doomed.runner(POINTS[0].value)
        eventually("it runs", lambda sink=sink: is_running(project, sink), SECONDS)  # type: ignore[misc]
        recorded = project.run("replay", sink, *asked)
        assert recorded.returncode == 8, recorded.stdout + recorded.stderr
        assert first.wait(SECONDS) == -signal.SIGKILL, (project.folder / "runner.log").read_text()
        for point in POINTS[1:]:
            assert doomed.runner(point.value).wait(SECONDS) == -signal.SIGKILL, point
        project.run("up")  # else the next one would die of what this one still has to do
        eventually("it is done", lambda sink=sink: is_done(project, sink), SECONDS)  # type: ignore[misc]
        project.down()
    assert project.json("plan")["changes"] == []

    send(*range(ROWS, ROWS + 10))
    project.run("up")
    both(list(range(ROWS + 10)))

    assert is_done(project, "sink.pg") and is_done(project, "sink.delta")
    eventually("nothing is pending", lambda: project.json("plan")["pending"] == [], SECONDS)
    again = project.run("replay", "sink.pg", "--missing", "--auto-approve")
    assert again.returncode == 0, again.stdout + again.stderr
    assert in_postgres() == list(range(ROWS + 10)), "of what is there nothing is missing"
    project.down()
    for sink in ("sink.pg", "sink.delta"):
        compared = project.json("verify", sink, "--content")
        assert compared["equal"], compared
    assert project.json("verify", "sink.pg")["difference"] is None


def is_running(project: Project, sink: str) -> bool:
    (query,) = project.json("status", sink)["queries"]
    return bool(query["condition"] == "running")


def is_done(project: Project, sink: str) -> bool:
    (query,) = project.json("status", sink)["queries"]
    return bool(query["replays"][0]["done"])
