"""Another line of Spark goes on where one was killed in the middle of a batch, and the first one again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.servers import produce_json
from examples.servers.process import descendants_of, send
from mzplan.host.failpoints import Failpoint
from mzplan.host.spark_lines import SparkLine, installed_line, installed_spark
from tests.faults.doomed import Doomed
from tests.integration.committed import committed
from tests.integration.spark_lab import read_delta
from tests.spark_lines import environment_of, other_line
from tests.support import (
    Project,
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


class Upgraded:
    """Rows that went in by a topic and a folder, and everything that they are written to."""

    def __init__(
        self, folder: Path, kafka: KafkaBroker, postgres: PostgresServer, topics: tuple[str, str], name: str
    ):
        self.project = Project(folder, "upgrade", {"TEST_PG_PASSWORD": postgres.password})
        self.doomed = Doomed(self.project)
        self.kafka, self.dsn = kafka, postgres.dsn(name)
        self.read, self.written = topics
        self.sent = 0
        for table in ("from_topic", "from_folder"):  # no key: a row written twice would be there twice
            execute(self.dsn, f"CREATE TABLE {table} (id bigint, customer text, amount numeric(10,2))")
        (folder / "in").mkdir()
        text = "connections:\n" + kafka_connection("k", kafka.bootstrap)
        text += postgres_connection("pg", postgres, name) + "  here: {type: files, path: .}\n"
        text += "sources:\n" + orders_source("s", "k", self.read)
        text += "  f:\n    connection: here\n    path: in\n    trigger: {interval: 500ms}\n"
        text += '    format: {type: json, schema: "id BIGINT, customer STRING, amount DECIMAL(10,2)"}\n'
        text += (
            "sinks:\n"
            + orders_sink("t", "s", "pg", "from_topic")
            + orders_sink("u", "f", "pg", "from_folder")
        )
        text += "  d: {from: s, connection: here, path: lake, trigger: {interval: 500ms}}\n"
        text += f"  k: {{from: s, connection: k, topic: {self.written}, trigger: {{interval: 500ms}}}}\n"
        self.project.write("upgrade", text)

    def send(self) -> None:
        """More rows, the same into the topic and into the folder."""
        more = orders(self.sent, self.sent + EACH)
        self.sent += EACH
        produce_json(self.kafka.bootstrap, self.read, more, key="id")
        lines = "".join(json.dumps(row) + "\n" for row in more)
        part = self.project.folder / "in" / f".{self.sent}"
        part.write_text(lines)
        part.rename(part.with_name(f"{self.sent}.json"))

    def run(self, line: SparkLine, failpoint: str = "") -> subprocess.Popen[bytes]:
        """A runner on this line."""
        self.project.environment.update(environment_of(line) if line is not installed_line() else HERE)
        started = self.doomed.runner(failpoint)
        self.project.environment.update(HERE)
        return started

    def found(self) -> dict[str, list[int]]:
        """The ids of what is in each target, sorted."""
        tables = {t: rows_of(self.dsn, f"SELECT id FROM {t}") for t in ("from_topic", "from_folder")}
        lake = read_delta(self.project.folder / "lake")
        there = {table: sorted(row[0] for row in rows) for table, rows in tables.items()}
        there["lake"] = sorted(row["id"] for row in lake)
        there["topic"] = sorted(value["id"] for _, _, value in committed(self.kafka.bootstrap, self.written))
        return there

    def is_whole(self) -> None:
        """Each row is everywhere, once."""
        wanted = list(range(self.sent))
        eventually(
            f"{self.sent} rows everywhere",
            lambda: all(len(ids) >= self.sent for ids in self.found().values()),
            150,
        )
        for where, ids in self.found().items():
            assert ids == wanted, where

    def spark(self) -> str:
        """That of the runner, by its status."""
        (instance,) = self.project.json("status")["instances"]
        return str(instance["versions"]["spark"])

    def steps(self) -> dict[str, int]:
        return {address: query["step"] for address, query in self.project.queries().items()}


HERE = {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}


@pytest.fixture
def upgraded(
    tmp_path: Path,
    kafka: KafkaBroker,
    postgres: PostgresServer,
    topic: Callable[..., str],
    database: Callable[..., str],
) -> Iterator[Upgraded]:
    found = Upgraded(tmp_path / "p", kafka, postgres, (topic("in"), topic("out")), database())
    yield found
    found.doomed.close()


def test_another_line_goes_on_in_the_middle_of_a_batch_and_back(upgraded: Upgraded) -> None:
    here, there = installed_line(), other_line()
    upgraded.send()
    upgraded.project.apply()  # its runner is of this line
    upgraded.is_whole()
    upgraded.project.down()
    begun = upgraded.steps()

    upgraded.send()
    killed = upgraded.run(here, Failpoint.SINK_WRITTEN.value)
    assert killed.wait(150) == -signal.SIGKILL
    upgraded.send()
    other = upgraded.run(there)
    upgraded.is_whole()
    steps = upgraded.steps()
    assert all(steps[address] > step for address, step in begun.items()), (begun, steps)
    assert upgraded.spark().startswith(f"{there.spark}.")

    upgraded.send()
    time.sleep(0.7)
    _kill(other)
    (told,) = [d for d in upgraded.project.json("plan", code=0)["diagnostics"] if d["code"] == "MZ242"]
    assert f"Spark {installed_spark()}, which is installed here" in told["summary"], told
    upgraded.send()
    upgraded.run(here)
    upgraded.is_whole()
    assert all(step > steps[address] for address, step in upgraded.steps().items())
    assert upgraded.spark() == installed_spark()
    for address in steps:
        done = upgraded.project.run("verify", address, "--json")
        assert done.returncode == 0, (address, done.stdout, done.stderr)


def _kill(process: subprocess.Popen[bytes]) -> None:
    for pid in (*descendants_of(process.pid), process.pid):
        send(pid, signal.SIGKILL)
    process.wait(30)
