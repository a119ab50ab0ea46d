"""A runner that is killed in a one-off task (a backfill, a replay, dead letters read again, migrated rows, a
recompute): each row is in each target as often as the task says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess, Popen
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable, Field, Schema

from examples.servers import create_topic, delete_topic
from mzplan.host.failpoints import Failpoint
from mzplan.model.times import instant_text
from tests.faults.doomed import (
    ASKED,
    SECONDS,
    Doomed,
    arrive,
    ids_in_delta,
    ids_in_files,
    ids_in_table,
    points,
    steps_of,
    verify,
)
from tests.integration.spark_lab import read_delta
from tests.support import Make, Project, eventually, execute, kafka_connection, postgres_connection

if TYPE_CHECKING:
    from examples.servers import KafkaBroker, PostgresServer

BEGAN, MINUTE = 1_700_000_000_000, 60_000  # milliseconds
EVERY = "trigger: {interval: 500ms}"


class Shop(Doomed):
    """A topic whose rows go into a table, a Delta table and files. None of them has a key, so a row that is
    written twice is there twice."""

    def __init__(self, folder: Path, kafka: KafkaBroker, postgres: PostgresServer, topic: str, database: str):
        super().__init__(Project(folder, "tasks", {"TEST_PG_PASSWORD": postgres.password}))
        self.bootstrap, self.topic, self.dsn = kafka.bootstrap, topic, postgres.dsn(database)
        self.lake = folder / "lake"
        self.connections = kafka_connection("k", kafka.bootstrap)
        self.connections += postgres_connection("pg", postgres, database)
        self.sent = 0
        self.wanted: Counter[int] = Counter()
        execute(self.dsn, "CREATE TABLE appended (id bigint)")

    def declare(self, type_: str = "INT", letters: str = "dead/s") -> None:
        """With this type of column n, and this folder for dead letters."""
        divided = f"select: [id, id % 3 AS third], partition_by: [third], {EVERY}"
        self.project.write(
            "tasks",
            f"connections:\n{self.connections}  disk: {{type: files, path: {self.lake}}}\n"
            f"sources:\n  s:\n    connection: k\n    topic: {self.topic}\n    {EVERY}\n"
            f'    format: {{type: json, schema: "id BIGINT, n {type_}"}}\n'
            f"    on_error: dead-letter\n    dead_letter: {{path: {letters}}}\n"
            "    lifecycle: {replace: from-collection}\n"
            f"sinks:\n  pg: {{from: s, connection: pg, table: appended, select: [id], {EVERY}}}\n"
            f"  delta: {{type: delta, from: s, connection: disk, path: delta, {divided}}}\n"
            f"  files: {{type: files, from: s, connection: disk, path: files, {divided}}}\n",
        )

    def send(self, count: int = 10, n: object = 1, *, fits: bool = True) -> None:
        """Send so many records, one a minute. Rows of `fits` are wanted in each target."""
        producer = Producer({"bootstrap.servers": self.bootstrap})
        ids = range(self.sent, self.sent + count)
        for id_ in ids:
            value = json.dumps({"id": id_, "n": n})
            producer.produce(self.topic, value, partition=id_ % 2, timestamp=BEGAN + id_ * MINUTE)
        assert producer.flush(30) == 0
        self.sent += count
        self.wanted += Counter(ids if fits else ())

    def arrive(self) -> None:
        targets = {
            "pg": lambda: ids_in_table(self.dsn, "appended"),
            "delta": lambda: ids_in_delta(self.lake / "delta"),
            "files": lambda: ids_in_files(self.lake / "files"),
        }
        arrive(targets, self.wanted)

    def ask_for_backfill(self) -> CompletedProcess[str]:
        times = ("--from", instant_text(BEGAN + 20 * MINUTE), "--to", instant_text(BEGAN + 50 * MINUTE))
        self.wanted += Counter(range(20, 50))
        return self.project.run("backfill", "source.s", *times, *ASKED)

    def ask_for_replay(self, sink: str) -> CompletedProcess[str]:
        return self.project.run("replay", sink, "--missing", *ASKED)

    def ask_for_migration(self) -> CompletedProcess[str]:
        self.declare("BIGINT")
        return self.project.run("apply", "--allow-replace", *ASKED)

    def letters(self) -> list[int]:
        """The ids of the dead letters in their first folder."""
        table = DeltaTable(str(self.project.folder / "dead/s")).to_pyarrow_table()
        return sorted(json.loads(value)["id"] for value in table["value"].to_pylist())


@pytest.fixture(scope="module")
def running(
    tmp_path_factory: pytest.TempPathFactory, kafka: KafkaBroker, postgres: PostgresServer
) -> Iterator[Shop]:
    """One project for all tasks, one after the other; between two of them it is down."""
    kafka.start()
    postgres.start()
    create_topic(kafka.bootstrap, "task-kills", 2)
    postgres.create_database("task_kills")
    shop = Shop(tmp_path_factory.mktemp("tasks") / "p", kafka, postgres, "task-kills", "task_kills")
    shop.declare()
    shop.send(100)
    shop.project.apply()
    shop.arrive()
    shop.project.down()
    yield shop
    shop.close()
    postgres.drop_database("task_kills")
    delete_topic(kafka.bootstrap, "task-kills")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("task", ["backfill", "replay", "migration"])
def test_killed_in_a_task(running: Shop, task: str) -> None:
    """The migration comes last: it numbers the steps anew."""
    shop, project = running, running.project
    rows = shop.wanted.total()
    if task == "backfill":
        shop.killed_in("backfill", shop.ask_for_backfill, shop.send)
    elif task == "migration":
        shop.killed_in("migration", shop.ask_for_migration, shop.send)
    else:
        between = "id BETWEEN 60 AND 90"
        execute(shop.dsn, f"DELETE FROM appended WHERE {between}")
        DeltaTable(str(shop.lake / "delta")).delete(between)
        for sink in ("sink.pg", "sink.delta"):
            shop.killed_in("replay", partial(shop.ask_for_replay, sink), shop.send)
            project.run("up")  # the next runner would die of what this one still has to do
            eventually("it is done", shop.has_nothing_to_do, SECONDS)
            project.down()
    shop.send()
    project.run("up")
    shop.arrive()
    eventually("nothing is left to do", shop.has_nothing_to_do, SECONDS)
    if task == "replay":
        again = project.run("replay", "sink.pg", "--missing", "--auto-approve")
        assert again.returncode == 0, again.stdout + again.stderr
        shop.arrive()
    project.down()

    steps = steps_of(project, "source.s")
    assert sum(step["rows"] for step in steps) == shop.wanted.total()
    if task == "migration":
        assert (steps[0]["migrated"], steps[0]["rows"]) == (1, rows)
        for command in (("source.s",), ("source.s", "--from-upstream"), ("sink.pg",)):
            verified = project.json("verify", *command)
            assert verified["difference"] is None, verified
            assert all(one["code"] == "MZ045" for one in verified["diagnostics"]), verified
        return
    (once,) = [step for step in steps if "task" in step]
    assert (once["rows"], once["task"]) == (30, {"kind": "backfill", "serial": 2})
    verify(project, "source.s", "sink.pg", "sink.delta", "sink.files")
    assert project.json("verify", "source.s", "--from-upstream")["difference"] is None
    for sink in ("sink.pg", "sink.delta") if task == "replay" else ():
        compared = project.json("verify", sink, "--content")
        assert compared["equal"], compared


@pytest.mark.timeout(900)
def test_killed_while_dead_letters_are_read_again(
    tmp_path: Path, kafka: KafkaBroker, postgres: PostgresServer, topic: Make, database: Make
) -> None:
    shop = Shop(tmp_path / "p", kafka, postgres, topic("letters", partitions=2), database("letters"))
    project = shop.project
    with (project.folder / "mzplan.yaml").open("a") as settings:  # no command starts a runner
        settings.write("instances: {local: {type: cluster}}\n")
    try:
        shop.declare()
        shop.send(100)
        shop.send(40, 1.5, fits=False)
        shop.send(3, "much", fits=False)
        project.apply("--no-live", "--wait", "0s", code=8)
        runner = shop.runner()
        shop.arrive()
        eventually("the letters are kept", lambda: shop.letters() == [*range(100, 143)], SECONDS)
        shop.declare("DECIMAL(12,2)")
        project.apply("--allow-replace")
        shop.stop(runner)
        asked = ("replay", "source.s", "--dead-letters", "--auto-approve")
        recorded = project.run(*asked, "--no-live", "--wait", "0s")
        assert recorded.returncode == 8 and "no runner" in recorded.stdout.lower(), recorded.stdout

        for point in (*points("dead-letters"), Failpoint.TASK_PASSED_OVER):
            shop.dies_at(point)
            if point == Failpoint.DEAD_LETTERS_WRITTEN:  # and the next runner finds another definition
                assert shop.letters() == [*range(100, 143)]
                shop.declare("DECIMAL(12,2)", letters="dead/later")
                project.apply("--no-live", "--wait", "0s", code=8)
        assert shop.letters() == [140, 141, 142]
        shop.wanted += Counter(range(100, 140))
        shop.send(7)
        runner = shop.runner()
        shop.arrive()
        eventually("it is done", shop.has_nothing_to_do, SECONDS)
        assert shop.letters() == [140, 141, 142]
        (replay,) = project.queries()["source.s"]["tasks"]
        stay = [{"reason": "n is not a DECIMAL(12,2)", "letters": 3}]
        assert replay["outcome"] == {"read": 43, "rows": 40, "rows_before": 0, "stay": stay}

        # With a runner alive the command says what has become of the letters.
        shop.declare("DECIMAL(12,2)")
        project.apply()
        again = project.run(*asked, "--where", "offset >= 0")
        assert again.returncode == 0, again.stdout + again.stderr
        said = "3 dead letters were read: 0 became rows, 3 stay\n    3: n is not a DECIMAL(12,2)"
        assert said in again.stdout
        (change,) = project.json(*asked, "--where", "topic = 'other'")["changes"]
        assert change["task"]["outcome"] == {"read": 0, "rows": 0, "rows_before": 0, "stay": []}
        shop.stop(runner)
        verify(project, "source.s", "sink.pg")
        assert project.json("verify", "source.s", "--from-upstream")["difference"] is None
        assert shop.letters() == [140, 141, 142]
    finally:
        shop.close()


TOTALS = "SELECT customer, sum(amount) AS total FROM orders GROUP BY customer"


class Totals(Doomed):
    """A view that keeps the total of each customer, and a target that follows it."""

    def __init__(self, folder: Path):
        super().__init__(Project(folder, "totals"))
        self.lake = folder / "lake" / "out"
        self.totals: Counter[str] = Counter()

    def begin(self, *customers: str) -> Popen[bytes]:
        """Start a runner, and wait until the target has these customers' first totals."""
        self.declare(TOTALS)
        DeltaTable.create(str(self.lake), Schema([Field("customer", "string"), Field("total", "long")]))
        runner = self.runner()
        assert self.project.run("apply", *ASKED).returncode == 8
        eventually("it runs", self.is_running, SECONDS)
        self.add(*customers)
        self.has(*dict.fromkeys(customers))
        return runner

    def declare(self, query: str) -> None:
        every = {"trigger": {"interval": "300ms"}}
        key = {"key": ["customer"], **every}
        schema = "customer STRING, amount BIGINT"
        sink = {"from": "totals", "type": "delta", "connection": "disk", "path": "out", "mode": "upsert"}
        declared = {
            "connections": {"disk": {"type": "files", "path": "lake"}},
            "sources": {"orders": {"type": "local", "schema": schema, **every}},
            "views": {"totals": {"query": query, "output": "update", **key}},
            "sinks": {"out": {**sink, **key}},
        }
        self.project.write("shop", json.dumps(declared))

    def add(self, *customers: str) -> None:
        self.totals.update(customers)
        self.project.append("orders", [{"customer": name, "amount": 1} for name in customers])

    def has(self, *customers: str) -> None:
        wanted = {name: self.totals[name] for name in customers}

        def arrived() -> bool:
            return {row["customer"]: row["total"] for row in read_delta(self.lake)} == wanted

        eventually(f"the target has {wanted}", arrived, SECONDS)


@pytest.mark.timeout(900)
def test_killed_in_a_recompute(tmp_path: Path) -> None:
    """The state goes on at each point: the totals of all rows are right afterwards."""
    shop = Totals(tmp_path / "p")
    project, add, has = shop.project, shop.add, shop.has
    try:
        runner = shop.begin("ada", "bob", "bob", "bob", "cyd", "dan")
        shop.declare(f"{TOTALS} HAVING sum(amount) > 2")
        project.apply()
        shop.stop(runner)
        shop.killed_in(
            "recompute",
            lambda: project.run("recompute", "view.totals", "--where", "customer < 'd'", *ASKED),
            lambda: add("bob"),
        )
        shop.dies_at(Failpoint.TASK_PASSED_OVER)
        add("ada", "ada")
        runner = shop.runner()
        has("ada", "bob", "dan")
        eventually("it is done", shop.has_nothing_to_do, SECONDS)
        (task,) = project.queries()["view.totals"]["tasks"]
        assert task["outcome"] == {"deleted": 2, "changed": 0, "new": 0}
        shop.stop(runner)
        assert sum("task" in step for step in project.json("steps", "view.totals")["steps"]) == 1
        verify(project, "view.totals", "sink.out")
    finally:
        shop.close()


@pytest.mark.timeout(900)
def test_killed_while_erased_rows_leave_a_state(tmp_path: Path) -> None:
    """The view's new generation begins after the erasure, wherever the runner is killed."""
    shop = Totals(tmp_path / "p")
    project, add, has = shop.project, shop.add, shop.has
    try:
        shop.stop(shop.begin("ada", "bob", "bob", "ada"))
        shop.killed_in(
            "erasure",
            lambda: project.run("erase", "source.orders", "--where", "customer = 'ada'", *ASKED),
            lambda: add("bob"),
        )
        assert project.queries()["view.totals"]["held"] == "waits for the erasure of source.orders"
        assert list(project.folder.glob("warehouse/checkpoints/*/g2")) == []
        shop.dies_at(Failpoint.TASK_PASSED_OVER)
        runner = shop.runner()
        has("bob")
        add("eva", "bob")
        has("bob", "eva")
        eventually("it is done", shop.has_nothing_to_do, SECONDS)
        queries = project.queries()
        assert queries["source.orders"]["tasks"][0]["outcome"]["rows"] == 2
        assert queries["view.totals"]["generation"] == queries["sink.out"]["generation"] == 2
        shop.stop(runner)
        verify(project, "source.orders", "view.totals")
        assert project.json("verify", "view.totals", "--from-upstream")["recomputed"]["equal"]
        assert project.json("verify", "sink.out", "--content")["equal"]
    finally:
        shop.close()


@pytest.mark.timeout(900)
def test_killed_while_rows_are_erased(
    tmp_path: Path, kafka: KafkaBroker, postgres: PostgresServer, topic: Make, database: Make
) -> None:
    shop = Shop(tmp_path / "p", kafka, postgres, topic("erased", partitions=2), database("erased"))
    project = shop.project
    with (project.folder / "mzplan.yaml").open("a") as settings:  # no command starts a runner
        settings.write("instances: {local: {type: cluster}}\n")
    try:
        shop.declare()
        shop.send(30)
        project.apply("--no-live", "--wait", "0s", code=8)
        runner = shop.runner()
        shop.arrive()
        shop.stop(runner)
        asked = ("erase", "source.s", "--where", "id < 10", "--auto-approve", "--no-live", "--wait", "0s")
        recorded = project.run(*asked)
        assert recorded.returncode == 8, recorded.stdout
        for point in (*points("erasure"), Failpoint.TASK_PASSED_OVER):
            shop.dies_at(point)
        shop.send(5)
        runner = shop.runner()
        shop.arrive()  # also the rows that are erased: the sinks only add rows
        eventually("it is done", shop.has_nothing_to_do, SECONDS)
        shop.stop(runner)
        (erased,) = [step for step in steps_of(project, "source.s") if "task" in step]
        assert (erased["rows"], erased["task"]["kind"]) == (10, "erasure")
        rows = project.run("snapshot", "source.s", "--format", "json").stdout.splitlines()
        assert sorted(json.loads(row)["id"] for row in rows) == list(range(10, 35))
        assert list(project.folder.glob("warehouse/checkpoints/*/g1/erasures/*.json")) == []
        verify(project, "source.s", "sink.pg", "sink.delta", "sink.files")
        assert project.json("verify", "source.s", "--from-upstream")["difference"] is None
    finally:
        shop.close()
