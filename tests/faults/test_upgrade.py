"""Another line of Spark goes on where one was killed in the middle of a batch, and the first one again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from confluent_kafka import Producer

from examples.servers import produce_json
from examples.servers.process import descendants_of, send
from mzplan.connectors.files.manifest import committed_files
from mzplan.host.spark_lines import SparkLine, installed_line, installed_spark
from mzplan.warehouse.checkpoints import Checkpoint
from tests.faults.doomed import Doomed, ids_in_table, ids_in_topic, verify
from tests.integration.spark_lab import read_delta
from tests.spark_lines import environment_of, other_line
from tests.support import (
    Make,
    Project,
    Stopwatch,
    drop_file,
    eventually,
    execute,
    kafka_connection,
    orders,
    orders_sink,
    orders_source,
    postgres_connection,
    rows_of,
)

if TYPE_CHECKING:
    from examples.servers import KafkaBroker, PostgresServer

EACH = 40
SECONDS = 150.0
KEYED = {"latest", "shop", "made"}  # of the targets
# No key: a row written twice would be there twice. And what the sink does to the table that has one.
_TABLES = """
CREATE TABLE from_folder (id bigint, customer text, amount numeric(10,2));
CREATE TABLE latest (id bigint PRIMARY KEY, v bigint);
CREATE TABLE writes (v bigint);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN INSERT INTO writes VALUES (NEW.v); RETURN NULL; END $$;
CREATE TRIGGER noted AFTER INSERT OR UPDATE ON latest FOR EACH ROW EXECUTE FUNCTION note();
"""
_FEATURES = """
from mzplan.spark.process.session import open_session
from mzplan.spark.versions import delta_features
session = open_session("features", {})
print(*sorted(delta_features(session)))
session.stop()
"""
_SOON = "trigger: {interval: 1s}"
_VALUES = 'schema: "id BIGINT, v BIGINT"'


class Upgraded:
    """Rows and changes that went in by sources of each type, and everything that they are written to."""

    def __init__(
        self, folder: Path, kafka: KafkaBroker, postgres: PostgresServer, topic: Make, database: Make
    ):
        self.project = Project(folder, "upgrade", {"TEST_PG_PASSWORD": postgres.password})
        self.doomed = Doomed(self.project)
        self.kafka = kafka
        self.read, self.changed, self.written = topic("in"), topic("changed"), topic("out")
        upstream, target = database("upstream"), database("target")
        self.upstream, self.target = postgres.dsn(upstream), postgres.dsn(target)
        self.round = 0
        self.has_more = False
        execute(self.target, _TABLES)
        execute(  # with rows for its snapshot
            self.upstream,
            "CREATE TABLE shop (id bigint PRIMARY KEY, v bigint); "
            f"INSERT INTO shop SELECT g, -1 FROM generate_series(0, {EACH}) g",
        )
        (folder / "in").mkdir()
        text = "connections:\n" + kafka_connection("k", kafka.bootstrap)
        text += postgres_connection("pg", postgres, target) + postgres_connection("up", postgres, upstream)
        text += "  here: {type: files, path: .}\n"
        text += "sources:\n" + orders_source("s", "k", self.read)
        text += f"  f:\n    connection: here\n    path: in\n    {_SOON}\n"
        text += '    format: {type: json, schema: "id BIGINT, customer STRING, amount DECIMAL(10,2)"}\n'
        text += self._upserts("c")
        text += f"  p: {{connection: up, tables: [public.shop], {_VALUES}, key: [id], {_SOON}}}\n"
        text += f"  l: {{type: local, {_VALUES}, {_SOON}}}\n"
        text += "sinks:\n" + orders_sink("u", "f", "pg", "from_folder")
        text += f"  d: {{from: s, connection: here, path: lake, {_SOON}}}\n"
        text += f"  k: {{from: s, connection: k, topic: {self.written}, {_SOON}}}\n"
        text += orders_sink("c", "c", "pg", "latest", ", mode: upsert, key: [id]")
        text += self._merged("p", "p", "shop")
        text += (
            f"  o: {{type: files, from: l, connection: here, path: out, format: {{type: json}}, {_SOON}}}\n"
        )
        text += f"  shown: {{from: l, type: console, rows: 1000, {_SOON}}}\n"
        self.project.write("upgrade", text)

    def _upserts(self, name: str) -> str:
        return (
            f"  {name}:\n    connection: k\n    topic: {self.changed}\n    {_SOON}\n"
            f"    format: {{type: json, {_VALUES}}}\n    envelope: {{type: upsert, key: [id]}}\n"
        )

    def _merged(self, name: str, source: str, path: str) -> str:
        upsert = f"mode: upsert, key: [id], {_SOON}"
        return f"  {name}: {{from: {source}, connection: here, path: {path}, {upsert}}}\n"

    def declare_more(self) -> None:
        """Tables that the runner of now makes: a keyed collection, and that of a Delta sink."""
        text = "sources:\n" + self._upserts("made") + "sinks:\n" + self._merged("made", "made", "made")
        self.project.write("more", text)
        self.project.apply()
        self.has_more = True

    def send(self) -> None:
        """More of everything. Rows without a key are the same everywhere; every key gets a value that none
        had before, and every fifth one goes."""
        first, last = self.round * EACH, (self.round + 1) * EACH
        more = orders(first, last)
        produce_json(self.kafka.bootstrap, self.read, more, key="id")
        self.project.append("l", ({"id": v, "v": v} for v in range(first, last)), "--id", str(first))
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap})
        for id_ in range(EACH):
            producer.produce(self.changed, json.dumps({"id": id_, "v": first + id_}), key=str(id_))
            if id_ % 5 == self.round % 5:
                producer.produce(self.changed, None, key=str(id_))
        assert producer.flush(30) == 0
        execute(
            self.upstream,
            f"INSERT INTO shop SELECT g, {first} + g FROM generate_series(0, {EACH - 1}) g "
            "ON CONFLICT (id) DO UPDATE SET v = EXCLUDED.v; "
            f"DELETE FROM shop WHERE id % 5 = {self.round % 5} OR id = {EACH}",
        )
        # The last: who waits for these rows begins to look now.
        drop_file(self.project.folder / "in" / f"{first}.json", more)
        self.round += 1

    def run(self, line: SparkLine) -> None:
        """A runner on this line."""
        if line is not installed_line():
            self.project.environment.update(environment_of(line))
        self.doomed.runner()
        self.project.environment.pop("PYTHONPATH", None)

    def targets(self) -> dict[str, Callable[[], list[Any]]]:
        """How to see what is in each target: ids, or keys with their values, sorted."""
        folder = self.project.folder

        def keyed(name: str) -> Callable[[], list[Any]]:
            return lambda: sorted((row["id"], row["v"]) for row in read_delta(folder / name))

        def files() -> list[Any]:
            texts = [Path(file).read_text() for file in committed_files(folder / "out")]
            return sorted(json.loads(line)["v"] for text in texts for line in text.splitlines())

        def console() -> list[Any]:  # at least once
            logs = [folder / "runner.log", folder / ".mzplan" / "local.log"]
            text = "".join(log.read_text(errors="replace") for log in logs if log.exists())
            return sorted({int(v) for v in re.findall(r'^sink\.shown step \d+: .*"v":(\d+)}', text, re.M)})

        return {
            "from_folder": lambda: sorted(ids_in_table(self.target, "from_folder")),
            "lake": lambda: sorted(row["id"] for row in read_delta(folder / "lake")),
            "topic": lambda: sorted(ids_in_topic(self.kafka.bootstrap, self.written)),
            "files": files,
            "console": console,
            "latest": lambda: sorted(rows_of(self.target, "SELECT id, v FROM latest")),
            "shop": keyed("shop"),
            **({"made": keyed("made")} if self.has_more else {}),
        }

    def is_whole(self) -> None:
        """Each row is everywhere, once, and each key has its last value."""
        rows = list(range(self.round * EACH))
        last = self.round - 1
        latest = [(id_, last * EACH + id_) for id_ in range(EACH) if id_ % 5 != last % 5]
        targets = self.targets()
        wanted = {where: latest if where in KEYED else rows for where in targets}
        for where, found in targets.items():  # one after the other: looking takes what the queries need
            enough = partial(_has, found, wanted[where], exactly=where in KEYED)
            eventually(f"all {len(wanted[where])} are in {where}", enough, SECONDS)
        for where, found in targets.items():
            assert found() == wanted[where], where
        written = [v for (v,) in rows_of(self.target, "SELECT v FROM writes")]
        assert len(set(written)) == len(written), "a change was written twice"

    def dies_with_a_row_in_its_target(self) -> None:
        """kill -9 as soon as rows of a step are in the table that sink.u appends to."""
        with psycopg.connect(self.target, autocommit=True) as connection:
            self._dies("sink.u", lambda: connection.execute("SELECT count(*) FROM from_folder").fetchall())

    def dies_in_a_merge(self) -> None:
        """kill -9 as soon as the changes of a step are merged into the keyed collection."""
        place = f"collections/{self._id('source.c')}/g1/_delta_log"
        self._dies("source.c", lambda: list((self.project.folder / "warehouse" / place).glob("*.json")))

    def _dies(self, address: str, look: Callable[[], list[Any]]) -> None:
        """The runner, once something has come of what is sent: before Spark notes down that the batch is
        done, or else it is made so."""
        pid = self.project.lease()["pid"]
        pids, before = (*descendants_of(pid), pid), look()
        self.send()
        waited = Stopwatch()
        while look() == before:
            assert waited.seconds < SECONDS, f"{address} has done nothing"
            time.sleep(0.002)
        for one in pids:
            send(one, signal.SIGKILL)
        for process in self.doomed.started:
            process.wait(30)
        log = Checkpoint.of(str(self.project.folder / "warehouse"), self._id(address), 1).log
        if log.unfinished() is None:
            commits, last = Path(log.spark) / "commits", log.committed()
            (commits / str(last)).unlink()
            (commits / f".{last}.crc").unlink(missing_ok=True)
        assert log.unfinished() is not None

    def _id(self, address: str) -> str:
        return str(self.project.json("state", "show", address)["id"])

    def spark(self) -> str:
        """That of the runner, by its status."""
        (instance,) = self.project.json("status")["instances"]
        return str(instance["versions"]["spark"])

    def steps(self) -> dict[str, int]:
        return {address: query["step"] for address, query in self.project.queries().items()}

    def count_on(self, begun: dict[str, int]) -> None:
        """Each query has gone on with the steps after these."""

        def all_later() -> bool:
            now = self.steps()
            return all(now[address] > step for address, step in begun.items())

        eventually(f"steps after {begun}", all_later)


@pytest.fixture
def upgraded(
    tmp_path: Path, kafka: KafkaBroker, postgres: PostgresServer, topic: Make, database: Make
) -> Iterator[Upgraded]:
    found = Upgraded(tmp_path / "p", kafka, postgres, topic, database)
    yield found
    found.doomed.close()


@pytest.mark.smoke
@pytest.mark.timeout(1200)
def test_another_spark_line_continues_in_the_middle_of_a_batch_and_back(upgraded: Upgraded) -> None:
    here, there = installed_line(), other_line()
    upgraded.project.apply()  # its runner is of this line
    upgraded.send()
    upgraded.is_whole()
    begun = upgraded.steps()

    upgraded.dies_with_a_row_in_its_target()
    upgraded.send()
    upgraded.run(there)
    upgraded.is_whole()
    upgraded.count_on(begun)
    assert upgraded.spark().startswith(f"{there.spark}.")
    assert "upgrade" in {q["started_because"]["cause"] for q in upgraded.project.queries().values()}
    upgraded.declare_more()
    upgraded.is_whole()
    begun = upgraded.steps()

    upgraded.dies_in_a_merge()
    (told,) = [d for d in upgraded.project.json("plan", code=0)["diagnostics"] if d["code"] == "MZ045"]
    assert f"Spark {installed_spark()}, which is installed here" in told["summary"], told
    upgraded.send()
    upgraded.run(here)
    upgraded.is_whole()
    upgraded.count_on(begun)
    assert upgraded.spark() == installed_spark()
    upgraded.project.down()
    verify(upgraded.project, *(begun.keys() - {"sink.shown"}))  # what it has shown is gone


def _has(found: Callable[[], list[Any]], wanted: list[Any], exactly: bool) -> bool:
    """Whether it is all there, or more than that, which never goes again."""
    there = found()
    return there == wanted if exactly else len(there) >= len(wanted)


def test_the_features_of_the_other_line_are_those_of_its_delta() -> None:
    line = other_line()
    environment = {**os.environ, **environment_of(line)}
    ran = subprocess.run(
        [sys.executable, "-c", _FEATURES], env=environment, capture_output=True, text=True, check=True
    )
    assert set(ran.stdout.splitlines()[-1].split()) == line.features
