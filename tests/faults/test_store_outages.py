"""The database of the store goes away: the queries continue, and each row arrives once."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.doomed import start_runner
from tests.faults.proxy import Proxy
from tests.integration.spark_lab import read_delta
from tests.support import Project, drop_ids, eventually

if TYPE_CHECKING:
    from examples.servers import PostgresServer

QUERIES = {"source.rows", "view.totals", "sink.lake", "sink.seen"}
FENCED = QUERIES - {"sink.seen"}
MEMORY = {"PYSPARK_SUBMIT_ARGS": "--driver-memory 1g pyspark-shell"}


class Pair:
    """Two machines with one instance. The far one reaches the store through a proxy."""

    def __init__(self, folder: Path, postgres: PostgresServer, database: str, limit: str):
        self.shared = folder / "shared"
        self.proxy = Proxy(postgres.port)
        (self.shared / "in").mkdir(parents=True)
        self.far = self._project(folder / "far", postgres, database, self.proxy.port, limit)
        self.near = self._project(folder / "near", postgres, database, postgres.port, limit)
        self.runners: list[subprocess.Popen[bytes]] = []
        self.sent = 0

    def _project(
        self, folder: Path, postgres: PostgresServer, database: str, port: int, limit: str
    ) -> Project:
        project = Project(folder, "outages", {"TEST_PG_PASSWORD": postgres.password, **MEMORY})
        (folder / "mzplan.yaml").write_text(
            f"version: 1\nproject: outages\nwarehouse: {self.shared / 'warehouse'}\n"
            f"runner: {{survive_store_outage: {limit}}}\ninstances: {{local: {{type: cluster}}}}\n"
            f"state: {{backend: postgres, host: 127.0.0.1, port: {port}, database: {database}, "
            f"user: {postgres.user}, password: '${{env:TEST_PG_PASSWORD}}'}}\n"
        )
        project.write(
            "rows",
            f"connections: {{here: {{type: files, path: {self.shared}}}}}\n"
            'sources: {rows: {connection: here, path: in, format: {type: json, schema: "id BIGINT"}, '
            "trigger: {interval: 500ms}}}\n"
            "views: {totals: {query: 'SELECT id % 2 AS odd, count(*) AS n FROM rows GROUP BY id % 2', "
            "output: update, key: [odd], trigger: {interval: 500ms}}}\n"
            "sinks:\n"
            "  lake: {from: rows, connection: here, type: delta, path: lake, trigger: {interval: 500ms}}\n"
            "  seen: {from: rows, type: console, trigger: {interval: 500ms}}\n",
        )
        return project

    def lead(self, project: Project) -> subprocess.Popen[bytes]:
        self.runners.append(start_runner(project.folder, environment=project.environment))
        return self.runners[-1]

    def log(self, project: Project) -> str:
        return (project.folder / "runner.log").read_text(errors="replace")

    def send(self, number: int = 5) -> None:
        drop_ids(self.shared / "in", *range(self.sent, self.sent + number))
        self.sent += number

    def arrived(self) -> list[int]:
        table = self.shared / "lake"
        return sorted(row["id"] for row in read_delta(table)) if table.exists() else []

    def await_rows(self) -> None:
        eventually(f"{self.sent} rows arrive", lambda: len(self.arrived()) >= self.sent, 120.0)
        assert self.arrived() == list(range(self.sent))

    def await_running(self) -> dict[str, str]:
        """Wait until all queries run. Return the ids of their runs."""

        def run() -> bool:
            return {a for a, q in self.near.queries().items() if q["condition"] == "running"} == QUERIES

        eventually("all queries run", run, 120.0)
        return self.near.run_ids()

    def send_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.send()
            time.sleep(1.0)

    def close(self) -> None:
        self.proxy.close()
        for runner in self.runners:
            if runner.poll() is None:
                runner.kill()
            runner.wait(30)


@pytest.fixture
def pair(
    tmp_path: Path, postgres: PostgresServer, database: Callable[..., str], request: pytest.FixtureRequest
) -> Iterator[Pair]:
    made = Pair(tmp_path, postgres, database(), getattr(request, "param", "1h"))
    yield made
    made.close()


def begin(pair: Pair) -> subprocess.Popen[bytes]:
    """Start the runner behind the proxy, with all queries and the first rows."""
    leader = pair.lead(pair.far)
    eventually("it leads", lambda: "leading instance local" in pair.log(pair.far))
    pair.near.apply()
    pair.send()
    pair.await_rows()
    return leader


def test_a_failover_of_the_database_restarts_nothing_but_the_sinks_that_cannot_fence(pair: Pair) -> None:
    leader = begin(pair)
    runs = pair.await_running()
    pair.proxy.cut()
    pair.send_for(20.0)
    pair.await_rows()  # during the outage
    eventually("the console sink stops by name", lambda: "sink.seen stops until" in pair.log(pair.far))
    failed = pair.far.run("status")
    assert failed.returncode != 0 and "MZ095" in failed.stderr, "commands say that the store doesn't answer"
    pair.proxy.mend()
    pair.send()
    pair.await_rows()
    after = pair.await_running()
    assert leader.poll() is None and {a: after[a] for a in FENCED} == {a: runs[a] for a in FENCED}
    assert "still leads" in pair.log(pair.far)


def test_a_standby_that_has_lost_the_store_too_leaves_the_lease_to_its_leader(pair: Pair) -> None:
    leader = begin(pair)
    runs = pair.await_running()
    standby = start_runner(pair.far.folder, environment=pair.far.environment)
    pair.runners.append(standby)
    eventually("a standby is there", lambda: "standing by" in pair.log(pair.far))
    pair.proxy.cut()
    pair.send_for(20.0)
    pair.proxy.mend()
    pair.send_for(20.0)  # longer than the lease's time to live
    pair.await_rows()
    after = pair.await_running()
    assert leader.poll() is None and {a: after[a] for a in FENCED} == {a: runs[a] for a in FENCED}


def test_a_standby_that_reaches_the_store_takes_over_and_no_row_is_lost_or_doubled(pair: Pair) -> None:
    leader = begin(pair)
    pair.lead(pair.near)
    eventually("a standby is there", lambda: "standing by" in pair.log(pair.near))
    pair.proxy.cut()
    pair.send_for(45.0)
    eventually("the standby leads", lambda: "leading instance local, epoch 2" in pair.log(pair.near), 60.0)
    assert leader.wait(60) == 1, "the former leader has stopped"
    assert "another runner leads this instance now, with epoch 2" in pair.log(pair.far)
    pair.send()
    pair.await_rows()
    pair.await_running()
    (leaders,) = (pair.shared / "warehouse/leaders").iterdir()
    assert json.loads(leaders.read_text())["epoch"] == 2

    def is_counted() -> bool:
        totals = pair.near.json("snapshot", "view.totals")["rows"]
        return bool(sum(row["n"] for row in totals) == pair.sent)

    eventually("the view has counted each row once", is_counted)


@pytest.mark.parametrize("pair", ["15s"], indirect=True)
def test_a_runner_ends_after_the_limit_and_its_successor_continues(pair: Pair) -> None:
    leader = begin(pair)
    pair.proxy.cut()
    pair.send_for(15.0)
    assert leader.wait(60) == 1 and "the store has not answered for 15 s" in pair.log(pair.far)
    pair.proxy.mend()
    assert "lost its connection to the store" in pair.near.run("status").stdout
    pair.send()
    pair.lead(pair.near)
    pair.await_rows()
    pair.await_running()
