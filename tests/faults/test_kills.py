"""kill -9 on real servers: apply before and after its commit, the runner in the middle of a batch."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.servers import produce_json
from examples.servers.process import children_of
from mzplan.host.failpoints import Failpoint
from mzplan.host.processes import is_alive
from tests.faults.doomed import Doomed
from tests.machines import command_line
from tests.support import (
    Project,
    eventually,
    execute,
    exit_code,
    kafka_connection,
    orders,
    orders_sink,
    orders_source,
    postgres_connection,
    rows_of,
)

if TYPE_CHECKING:
    from examples.servers import KafkaBroker, PostgresServer

ROWS = 3000


@pytest.fixture
def project(tmp_path: Path, postgres: PostgresServer) -> Iterator[Project]:
    project = Project(tmp_path / "p", "kills", {"TEST_PG_PASSWORD": postgres.password})
    yield project
    project.down()


@pytest.mark.smoke
def test_three_kills_and_each_row_is_there_once(
    project: Project,
    kafka: KafkaBroker,
    postgres: PostgresServer,
    topic: Callable[..., str],
    database: Callable[..., str],
) -> None:
    name = database()
    dsn = postgres.dsn(name)
    # No key on the first table: a row written twice would be there twice.
    execute(dsn, "CREATE TABLE appended (id bigint, customer text, amount numeric(10,2))")
    execute(dsn, "CREATE TABLE latest (id bigint PRIMARY KEY, customer text, amount numeric(10,2))")
    one = topic("kills")

    def declare(broker: str) -> None:
        text = "connections:\n" + kafka_connection("k", broker) + postgres_connection("pg", postgres, name)
        text += "sources:\n" + orders_source("s", "k", one)
        text += "sinks:\n" + orders_sink("t", "s", "pg", "appended")
        text += orders_sink("u", "s", "pg", "latest", ", mode: upsert, key: [id]")
        project.write("kills", text)

    declare(kafka.bootstrap)
    project.apply()
    stopped = threading.Event()
    sent = 0

    def flow() -> None:
        nonlocal sent
        while sent < ROWS and not stopped.is_set():
            produce_json(kafka.bootstrap, one, orders(sent, sent + 50), key="id")
            sent += 50
            time.sleep(0.05)

    flowing = threading.Thread(target=flow)
    flowing.start()
    try:
        _kill_apply_before_commit(project, lambda: declare(kafka.bootstrap2))
        _kill_apply_after_commit(project)
        time.sleep(random.uniform(0.5, 3.0))
        _kill_runner(project)  # again and again: soak.py
        flowing.join(120)
    finally:
        stopped.set()
        flowing.join(30)

    def written(table: str) -> int:
        return int(rows_of(dsn, f"SELECT count(*) FROM {table}")[0][0])

    eventually(f"{ROWS} rows", lambda: min(written("appended"), written("latest")) >= ROWS)
    assert rows_of(dsn, "SELECT count(*), count(DISTINCT id), min(id), max(id) FROM appended") == [
        (ROWS, ROWS, 0, ROWS - 1)
    ]
    assert written("latest") == ROWS
    assert project.json("plan")["changes"] == []
    _starts_say_why(project)


def _starts_say_why(project: Project) -> None:
    """The runner that came says why it started what it found; what the killed one wrote is still there."""
    found = project.json("why", "source.s")
    assert found["cause"]["cause"] == "runner" and "was killed" in found["cause"]["detail"]
    assert project.queries()["sink.t"]["started_because"]["cause"] == "runner"
    events = project.json("events", "source.s", "--kind", "started")["events"]
    assert [(e["cause"]["cause"], e["cause"]["serial"]) for e in events] == [
        ("change", 1),
        ("change", 2),
        ("runner", None),
    ]
    assert events[1]["cause"]["through"] == "connection.k" and events[1]["step"] is not None
    project.down()
    found = project.json("why", "source.s")  # no runner is alive
    assert (found["event"]["kind"], found["cause"]["cause"]) == ("runner-ended", "runner")
    assert found["ran_seconds"] > 0


def _kill_apply(project: Project, point: Failpoint) -> None:
    killed = project.run("apply", "--auto-approve", environment={"MZPLAN_FAILPOINT": point.value})
    assert killed.returncode == -signal.SIGKILL


def _kill_apply_before_commit(project: Project, change: Callable[[], None]) -> None:
    state, runs = project.state_bytes(), project.run_ids()
    change()
    _kill_apply(project, Failpoint.APPLY_VALIDATED)
    assert project.state_bytes() == state
    assert project.run_ids() == runs


def _kill_apply_after_commit(project: Project) -> None:
    runs = project.run_ids()
    _kill_apply(project, Failpoint.APPLY_COMMITTED)

    def converged() -> bool:
        now = project.queries()
        return now["source.s"]["run_id"] not in (None, runs["source.s"]) and all(
            q["condition"] == "running" for q in now.values()
        )

    eventually("the runner converges by itself", converged)
    now = project.run_ids()
    assert {a for a in now if now[a] != runs[a]} == {"source.s"}


def _kill_runner(project: Project) -> None:
    pid = project.lease()["pid"]
    epoch = project.lease()["epoch"]
    os.kill(pid, signal.SIGKILL)
    assert project.apply()["changes"] == []  # starts a successor, and waits until every query runs
    assert project.lease()["epoch"] > epoch


def test_a_runner_whose_java_process_is_killed_ends_and_a_standby_leads(tmp_path: Path) -> None:
    """Out of memory, a crash of the JVM: the Python process alone would lead for ever, and run nothing."""
    doomed = Doomed(Project(tmp_path / "p", "jvm"))
    project = doomed.project
    project.write(
        "jvm",
        "connections: {here: {type: files, path: .}}\n"
        'sources: {rows: {type: local, schema: "id BIGINT", trigger: {interval: 500ms}}}\n'
        "sinks: {lake: {from: rows, connection: here, path: lake}}\n",
    )
    try:
        project.apply()
        first = project.lease()
        standby = doomed.runner()
        eventually("a standby is there", lambda: "run" in command_line(standby.pid))
        (java,) = _java(first["pid"])
        os.kill(java, signal.SIGKILL)
        eventually("the runner has ended", lambda: not is_alive(first["pid"]), 30.0)
        assert "error[MZ060]" in project.log() and "Spark's Java process has ended" in project.log()
        eventually("the standby leads", lambda: project.lease()["pid"] == standby.pid, 10.0)
        _row_is_read(project)
        # A command that looks while nobody leads says so, and `up` starts another one.
        eventually("it has a Java process", lambda: bool(_java(standby.pid)))
        (java,) = _java(standby.pid)
        os.kill(java, signal.SIGKILL)
        assert exit_code(standby) not in (0, -signal.SIGKILL)
        status = project.json("status", "--exit-code", code=8)
        assert not any(query["condition"] == "running" for query in status["queries"])
        project.json("up")
        _row_is_read(project)
    finally:
        doomed.close()


def _java(pid: int) -> list[int]:
    return [child for child in children_of(pid) if "java" in command_line(child)]


def _row_is_read(project: Project) -> None:
    """Append a row, and wait until the source has read it."""
    appended = project.append("rows", [{"id": 1}])["step"]

    def is_read() -> bool:
        steps = project.json("steps", "source.rows")["steps"]
        return bool(steps) and steps[-1]["to"]["step"] >= appended

    eventually("its row is read", is_read)
