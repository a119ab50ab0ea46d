"""A project on disk that a test drives through the command line, and helpers for the servers behind it."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import psycopg
import pytest

from mzplan.host.processes import is_alive
from mzplan.model.diagnostics import Diagnostic, MzplanError
from tests.unit import cli_runs

if TYPE_CHECKING:
    from examples.servers import KafkaBroker, PostgresServer

Make = Callable[..., str]  # the fixtures `topic` and `database`: each call makes one, and returns its name
APPLY_SECONDS = 240  # the first apply starts Spark on a busy machine
# These commands never start a runner. The other commands start one if none is alive, and a runner must not be
# a child of the test's process.
LOOKING = {"drift", "graph", "plan", "show", "snapshot", "status", "steps", "validate"}
# `verify` opens a Spark session without the jars that later tests of this process need.
APART = {"down", "verify"}


class Project:
    """A folder with an mzplan.yaml, and the commands that a test runs in it."""

    def __init__(self, folder: Path, name: str = "shop", environment: Mapping[str, str] | None = None):
        self.folder = folder
        self.environment = dict(environment or {})
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "mzplan.yaml").write_text(
            f"version: 1\nproject: {name}\nwarehouse: ./warehouse\nretain_dropped: 1s\n"
        )

    def serve_metrics(self, port: int) -> None:
        """Set the port on which the project's runner serves metrics. Call it before the runner starts."""
        self.metrics_port = port
        with (self.folder / "mzplan.yaml").open("a") as settings:
            settings.write(f"instances: {{local: {{type: embedded, metrics: {{port: {port}}}}}}}\n")

    def report_runs(self, url: str) -> None:
        """Set the URL to which the project's runner sends run events. Call it before the runner starts."""
        with (self.folder / "mzplan.yaml").open("a") as settings:
            settings.write(f"lineage: {{url: '{url}', namespace: tests}}\n")

    def write(self, name: str, text: str) -> Path:
        """Write a file that declares resources."""
        path = self.folder / f"{name}.yaml"
        path.write_text(text)
        return path

    def run(
        self, *arguments: str, environment: Mapping[str, str] | None = None, seconds: float = APPLY_SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Run a command, which must not print a traceback."""
        command = [sys.executable, "-m", "mzplan", "-C", str(self.folder), *arguments]
        given = {**os.environ, **self.environment, **(environment or {})}
        if self._may_run_here(arguments[0], given):
            with mock.patch.dict(os.environ, given, clear=True):
                ran = cli_runs.run(*command[3:])
            return subprocess.CompletedProcess(command, ran.code, ran.out, ran.err)
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=given
        )
        out, errors = _output_of(process, seconds)
        assert "Traceback" not in errors, errors
        return subprocess.CompletedProcess(command, process.returncode, out, errors)

    def _may_run_here(self, command: str, given: Mapping[str, str]) -> bool:
        """Return whether a command can run in this process, which saves the start of a Python process."""
        if threading.current_thread() is not threading.main_thread() or "MZPLAN_FAILPOINT" in given:
            return False
        if given.get("PYTHONPATH") != os.environ.get("PYTHONPATH"):
            return False
        return command in LOOKING or (command not in APART and self._has_runner())

    def _has_runner(self) -> bool:
        try:
            return is_alive(self.lease()["pid"])
        except FileNotFoundError:
            return False

    def json(self, *arguments: str, code: int = 0, **more: Any) -> Any:
        """Run a command with --json, check its exit code, and return the document."""
        done = self.run(*arguments, "--json", **more)
        assert done.returncode == code, f"{done.returncode}: {done.stdout}\n{done.stderr}\n{self.log()}"
        return json.loads(done.stdout)

    def apply(self, *arguments: str, code: int = 0, **more: Any) -> Any:
        """Run `mzplan apply --auto-approve --json`, and return the document."""
        return self.json("apply", "--auto-approve", *arguments, code=code, **more)

    def append(self, source: str, rows: Iterable[Mapping[str, Any]], *options: str) -> Any:
        """Append rows to a local source with `mzplan append`, and return the document."""
        path = self.folder / f"{source}.jsonl"
        path.write_text(json_lines(rows))
        return self.json("append", f"source.{source}", "--file", str(path), *options)

    def queries(self) -> dict[str, dict[str, Any]]:
        """Return what `mzplan status` reports for each query, by address."""
        return {query["address"]: query for query in self.json("status")["queries"]}

    def run_ids(self, prefix: str = "") -> dict[str, str]:
        return {a: q["run_id"] for a, q in self.queries().items() if a.partition(".")[2].startswith(prefix)}

    def restarted(self, before: Mapping[str, str]) -> set[str]:
        """Return the queries that have restarted since `run_ids` returned `before`."""
        return {address for address, run in self.run_ids().items() if run != before.get(address)}

    def state_bytes(self) -> bytes:
        return (self.folder / "state" / "mzplan.state.json").read_bytes()

    def lease(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "state" / "leases" / "local.json").read_text())
        return found

    def kill_runner(self) -> None:
        """Kill the runner, and wait until its process is gone."""
        pid = self.lease()["pid"]
        os.kill(pid, signal.SIGKILL)
        eventually("the runner is gone", lambda: not is_alive(pid), 10.0)

    def log(self) -> str:
        path = self.folder / ".mzplan" / "local.log"
        return path.read_text(errors="replace")[-6000:] if path.exists() else "(no log)"

    def down(self) -> None:
        self.run("down")


def _output_of(process: subprocess.Popen[str], seconds: float) -> tuple[str, str]:
    """Return the output of a process. Fails if it doesn't end within `seconds` of a Stopwatch."""
    waited = Stopwatch()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.communicate(timeout=1.0)
        if waited.seconds > seconds:
            process.kill()
            raise AssertionError(f"not within {seconds:.0f} s: {process.args}\n{process.communicate()}")


class Stopwatch:
    """Counts seconds of a quiet machine: if eight threads share two cores, a second counts as a quarter."""

    def __init__(self) -> None:
        self._asked, self._seconds = time.monotonic(), 0.0

    @property
    def seconds(self) -> float:
        now = time.monotonic()
        self._seconds += (now - self._asked) / max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        self._asked = now
        return self._seconds


def eventually(what: str, holds: Callable[[], bool], seconds: float = 90.0) -> None:
    """Wait until `holds` returns true. Fails after `seconds` of a Stopwatch, with `what` in the message."""
    waited, asked = Stopwatch(), time.monotonic()
    while not holds():
        if waited.seconds > seconds:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        took = time.monotonic() - asked
        time.sleep(min(1.0, max(0.05, 2 * took)))  # Waiting uses at most a third of a core.
        asked = time.monotonic()


def exit_code(process: subprocess.Popen[Any], seconds: float = 60.0) -> int:
    """Wait until a process ends, and return its exit code. Fails after `seconds` of a Stopwatch."""
    eventually(f"the end of {process.args!r}", lambda: process.poll() is not None, seconds)
    assert process.returncode is not None
    return process.returncode


def refusal(ask: Callable[[], object]) -> Diagnostic:
    """Call `ask`, which must raise MzplanError, and return the error's only diagnostic."""
    with pytest.raises(MzplanError) as caught:
        ask()
    (found,) = caught.value.diagnostics
    return found


@contextmanager
def full_disk(largest: int) -> Iterator[None]:
    """Limit the size of this process's files, so that a write fails in the middle, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limits[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def rows_of(dsn: str, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query on PostgreSQL."""
    with psycopg.connect(dsn) as connection:
        return connection.execute(query.encode()).fetchall()


def execute(dsn: str, statement: str) -> None:
    """Execute a statement on PostgreSQL."""
    with psycopg.connect(dsn) as connection:
        connection.execute(statement.encode())


def ids_in(dsn: str, table: str) -> list[int]:
    """Return the ids in a table on PostgreSQL, in order."""
    return [row[0] for row in rows_of(dsn, f"SELECT id FROM {table} ORDER BY id")]


def json_lines(rows: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def drop_file(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows to a file of JSON lines, and move the file into place when it is complete."""
    beside = path.with_name(f".{path.name}")
    beside.write_text(json_lines(rows))
    beside.rename(path)


def drop_ids(folder: Path, *ids: int) -> None:
    """Write rows with these ids to a new file, and move the file into place when it is complete."""
    drop_file(folder / f"{ids[0]}.json", ({"id": id_} for id_ in ids))


def orders(first: int, last: int) -> list[dict[str, Any]]:
    """Return orders with the ids first … last - 1."""
    return [{"id": i, "customer": f"c{i % 7}", "amount": f"{i % 90 + 1}.50"} for i in range(first, last)]


def delete_records(broker: KafkaBroker, topic: str, before: int) -> None:
    """Delete the records before this offset of a topic's first partition, as retention does."""
    from confluent_kafka import TopicPartition

    from examples.servers.topics import admin

    partition = TopicPartition(topic, 0, before)
    client = admin(broker.bootstrap)  # The client must live until its future is done.
    client.delete_records([partition])[partition].result(30)


def kafka_connection(name: str, bootstrap: str) -> str:
    return f"  {name}: {{type: kafka, brokers: ['{bootstrap}']}}\n"


def postgres_connection(name: str, postgres: PostgresServer, database: str) -> str:
    return (
        f"  {name}: {{type: postgres, host: 127.0.0.1, port: {postgres.port}, database: {database}, "
        f"user: {postgres.user}, password: '${{env:TEST_PG_PASSWORD}}'}}\n"
    )


def orders_source(name: str, connection: str, topic: str) -> str:
    return (
        f"  {name}:\n    connection: {connection}\n    topic: {topic}\n"
        '    format: {type: json, schema: "id BIGINT, customer STRING, amount DECIMAL(10,2)"}\n'
        "    trigger: {interval: 500ms}\n"
    )


def orders_sink(name: str, source: str, connection: str, table: str, more: str = "") -> str:
    return (
        f"  {name}: {{from: {source}, connection: {connection}, table: {table}, "
        f"trigger: {{interval: 500ms}}{more}}}\n"
    )
