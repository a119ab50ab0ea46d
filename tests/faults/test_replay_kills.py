"""A runner that is killed in a replay: what a hand has deleted is in each target again, and exactly once; and
a record that was kept aside and fits by now is a row exactly once, and a letter only where it is none."""

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
LETTERS_POINTS = [
    *(point for point in Failpoint if point.value.startswith("dead-letters.")),
    Failpoint.TASK_PASSED_OVER,
]
SECONDS = 240.0
ROWS = 300


class KeptAside:
    """A source that keeps dead letters, and a sink that appends its rows."""

    def __init__(self, project: Project, kafka: KafkaBroker, postgres: PostgresServer, topic: str, name: str):
        self.project = project
        self._bootstrap, self._topic, self._dsn = kafka.bootstrap, topic, postgres.dsn(name)
        self._connections = kafka_connection("k", kafka.bootstrap) + postgres_connection("pg", postgres, name)
        execute(self._dsn, "CREATE TABLE appended (id bigint)")

    def declare(self, amount: str, letters: str) -> None:
        """With this type of a column, and this place for letters."""
        self.project.write(
            "replays",
            f"connections:\n{self._connections}"
            f"sources:\n  s:\n    connection: k\n    topic: {self._topic}\n"
            f'    format: {{type: json, schema: "id BIGINT, amount {amount}"}}\n'
            f"    on_error: dead-letter\n    dead_letter: {{path: {letters}}}\n"
            "    trigger: {interval: 500ms}\n    lifecycle: {replace: from-collection}\n"
            "sinks:\n  pg: {from: s, connection: pg, table: appended, select: [id], "
            "trigger: {interval: 500ms}}\n",
        )

    def send(self, ids: range, amount: object = 1) -> None:
        producer = Producer({"bootstrap.servers": self._bootstrap})
        for id_ in ids:
            producer.produce(self._topic, json.dumps({"id": id_, "amount": amount}), partition=id_ % 2)
        assert producer.flush(30) == 0

    def arrive(self, wanted: list[int]) -> None:
        def there() -> bool:
            found = sorted(row[0] for row in rows_of(self._dsn, "SELECT id FROM appended"))
            assert len(found) == len(set(found)), "no row is there twice"
            return found == wanted

        eventually("each row is in the target", there, SECONDS)

    def letters(self) -> list[int]:
        """The ids in the first place for them."""
        table = DeltaTable(str(self.project.folder / "dead/s")).to_pyarrow_table()
        return sorted(json.loads(value)["id"] for value in table["value"].to_pylist())


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
        "  delta: {type: delta, from: s, connection: disk, path: d, select: [id, id % 3 AS third],\n"
        "    partition_by: [third], trigger: {interval: 500ms}}\n",
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
    assert refused.returncode == 7 and "MZ273" in refused.stderr, refused.stdout + refused.stderr

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


@pytest.mark.timeout(900)
def test_killed_while_letters_are_read_once_more(
    doomed: Doomed, kafka: KafkaBroker, postgres: PostgresServer, topic: Make, database: Make
) -> None:
    project = doomed.project
    with (project.folder / "mzplan.yaml").open("a") as settings:  # no command starts its runners
        settings.write("instances: {local: {type: cluster}}\n")
    shop = KeptAside(project, kafka, postgres, topic("letters", partitions=2), database("letters"))
    shop.declare("INT", "dead/s")
    shop.send(range(100))
    shop.send(range(100, 140), 1.5)
    shop.send(range(140, 143), "much")
    project.apply("--no-live", "--wait", "0s", code=8)
    running = doomed.runner()
    shop.arrive([*range(100)])
    eventually("the letters are kept", lambda: shop.letters() == [*range(100, 143)], SECONDS)
    shop.declare("DECIMAL(12,2)", "dead/s")
    project.apply("--allow-replace")
    running.terminate()
    assert running.wait(SECONDS) == 0
    asked = ("replay", "source.s", "--dead-letters", "--auto-approve")
    recorded = project.run(*asked, "--no-live", "--wait", "0s")
    assert recorded.returncode == 8 and "no runner" in recorded.stdout.lower(), recorded.stdout

    for point in LETTERS_POINTS:
        killed = doomed.runner(point.value).wait(SECONDS)
        assert killed == -signal.SIGKILL, (point, (project.folder / "runner.log").read_text())
        if point == Failpoint.DEAD_LETTERS_WRITTEN:  # and the next one finds another definition
            assert shop.letters() == [*range(100, 143)]
            shop.declare("DECIMAL(12,2)", "dead/later")
            project.apply("--no-live", "--wait", "0s", code=8)
    assert shop.letters() == [140, 141, 142]
    shop.send(range(143, 150))
    running = doomed.runner()
    shop.arrive([*range(140), *range(143, 150)])
    eventually("it is done", lambda: project.queries()["source.s"]["tasks"][0]["done"], SECONDS)
    assert shop.letters() == [140, 141, 142]
    (replay,) = project.queries()["source.s"]["tasks"]
    stay = [{"reason": "amount is not a DECIMAL(12,2)", "letters": 3}]
    assert replay["outcome"] == {"read": 43, "rows": 40, "rows_before": 0, "stay": stay}
    eventually("nothing is pending", lambda: project.json("plan")["pending"] == [], SECONDS)

    # With a runner alive the command says what has become of them.
    shop.declare("DECIMAL(12,2)", "dead/s")
    project.apply()
    again = project.run(*asked, "--where", "offset >= 0")
    assert again.returncode == 0, again.stdout + again.stderr
    said = "3 dead letters were read: 0 became rows, 3 stay\n    3: amount is not a DECIMAL(12,2)"
    assert said in again.stdout
    (change,) = project.json(*asked, "--where", "topic = 'other'")["changes"]
    assert change["task"]["outcome"] == {"read": 0, "rows": 0, "rows_before": 0, "stay": []}
    running.terminate()
    assert running.wait(SECONDS) == 0
    for address in ("source.s", "sink.pg"):
        verified = project.json("verify", address)
        assert verified["difference"] is None and verified["verified"] > 0, verified
    assert project.json("verify", "source.s", "--from-upstream")["difference"] is None
    assert shop.letters() == [140, 141, 142]


def is_running(project: Project, sink: str) -> bool:
    (query,) = project.json("status", sink)["queries"]
    return bool(query["condition"] == "running")


def is_done(project: Project, sink: str) -> bool:
    (query,) = project.json("status", sink)["queries"]
    return bool(query["tasks"][0]["done"])
