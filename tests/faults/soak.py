"""`python -m tests.faults.soak`: rows flow Kafka → collection → {PostgreSQL, Kafka, Delta, files} while the
runner, its Python workers, the servers and the connection to PostgreSQL are killed at random.

At the end each target must hold each row exactly once. The seed decides which faults there are, and when; it
is printed, and `--seed` repeats them.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from examples.servers import KafkaBroker, PostgresServer, create_topic
from examples.servers.process import descendants_of, send
from mzplan.host.processes import is_alive
from tests.faults.doomed import ids_in_delta, ids_in_files, ids_in_table, ids_in_topic
from tests.faults.proxy import Proxy
from tests.machines import command_line
from tests.support import Project, Stopwatch, execute, kafka_connection, orders_source, postgres_connection

FAULTS = ("runner", "workers", "postgres", "broker", "connection")
INPUT, OUTPUT = "soak-in", "soak-out"
_SETTLES_S = 900.0
_RECOVERS_S = 120.0
_PAUSES_S = (0.5, 6.0)  # from one fault to the next, at random


@dataclass
class Soak:
    """One run. `told` gets a line for each thing that happens."""

    folder: Path
    rows: int
    faults: int
    seed: int
    tell: Callable[[str], None] = lambda line: None
    done: Counter[str] = field(default_factory=Counter)

    def run(self) -> dict[str, Any]:
        """The report: what was done, how long it took, and of each target `(rows, distinct rows)`."""
        began = time.monotonic()
        self.random = random.Random(self.seed)
        with self._servers(), self._project():
            flow = Flow(self.kafka.bootstrap, self.rows)
            flow.start()
            for i in range(self.faults):
                # Rows flow while this waits, and while the fault strikes.
                flow.allow(self.rows * (i + 1) // (self.faults + 1))
                time.sleep(self.random.uniform(*_PAUSES_S))
                # Each kind at least once, before chance decides.
                fault = FAULTS[i] if i < len(FAULTS) else self.random.choice(FAULTS)
                self.tell(f"{time.monotonic() - began:6.1f} s  {flow.sent:>9,} sent  {fault}")
                getattr(self, f"_{fault}")()
                self.done[fault] += 1
                self._recovers()
            flow.allow(self.rows)
            flow.finish()
            self.tell(f"{time.monotonic() - began:6.1f} s  {flow.sent:>9,} sent  all")
            settled = self._settle()
            found = self._found() if settled else {}
            return {
                "rows": self.rows,
                "seed": self.seed,
                "faults": dict(self.done),
                "seconds": round(time.monotonic() - began, 1),
                "targets": found,
                "exactly_once": settled and all(pair == (self.rows, self.rows) for pair in found.values()),
            }

    # ── the stage

    @contextmanager
    def _servers(self) -> Iterator[None]:
        self.kafka, self.postgres = KafkaBroker(self.folder / "kafka"), PostgresServer(self.folder / "pg")
        try:
            self.kafka.start()
            self.postgres.start()
            self.postgres.create_database("soak")
            self.dsn = self.postgres.dsn("soak")
            execute(self.dsn, "CREATE TABLE orders (id bigint, customer text, amount numeric(10,2))")
            for topic in (INPUT, OUTPUT):
                create_topic(self.kafka.bootstrap, topic, 4)
            self.proxy = Proxy(self.postgres.port)
            yield
        finally:
            self.kafka.remove_data()
            self.postgres.remove_data()

    @contextmanager
    def _project(self) -> Iterator[None]:
        self.project = Project(self.folder / "p", "soak", {"TEST_PG_PASSWORD": self.postgres.password})
        through_proxy = postgres_connection("pg", self.postgres, "soak").replace(
            f"port: {self.postgres.port}", f"port: {self.proxy.port}"
        )
        trigger = "trigger: {interval: 500ms}"
        self.project.write(
            "soak",
            f"connections:\n{kafka_connection('k', self.kafka.bootstrap)}{through_proxy}"
            f"  disk: {{type: files, path: {self.folder / 'lake'}}}\n"
            f"sources:\n{orders_source('orders', 'k', INPUT)}"
            "sinks:\n"
            f"  to_postgres: {{from: orders, connection: pg, table: public.orders, {trigger}}}\n"
            f"  to_kafka: {{from: orders, connection: k, topic: {OUTPUT}, {trigger}}}\n"
            f"  to_delta: {{type: delta, from: orders, connection: disk, path: delta, {trigger}}}\n"
            f"  to_files: {{type: files, from: orders, connection: disk, path: files, {trigger}}}\n",
        )
        self.project.apply()
        try:
            yield
        finally:
            self.proxy.close()
            self.project.down()

    # ── faults

    def _runner(self) -> None:
        send(self.project.lease()["pid"], signal.SIGKILL)
        self._up()

    def _up(self) -> None:
        started = self.project.run("up")
        assert started.returncode == 0, started.stdout + started.stderr + self.project.log()

    def _workers(self) -> None:
        """The Python processes that Spark's tasks run in: the daemon and those that it forked."""
        for pid in descendants_of(self.project.lease()["pid"]):
            if "pyspark" in command_line(pid) and "java" not in command_line(pid):
                send(pid, signal.SIGKILL)

    def _postgres(self) -> None:
        self.postgres.kill()
        time.sleep(self.random.uniform(0, 2))
        self.postgres.start()

    def _broker(self) -> None:
        self.kafka.kill()
        time.sleep(self.random.uniform(0, 2))
        self.kafka.start()

    def _connection(self) -> None:
        self.proxy.cut()
        time.sleep(self.random.uniform(0, 3))
        self.proxy.mend()

    def _recovers(self) -> None:
        """Wait until every query runs again, so that the next fault strikes something. Rows go on flowing."""
        waited = Stopwatch()
        path = self.project.folder / "state" / "status" / "local.json"
        while waited.seconds < _RECOVERS_S:
            if not is_alive(self.project.lease()["pid"]):
                self._up()
            status = json.loads(path.read_text())
            conditions = {query["condition"] for query in status["observations"].values()}
            if conditions == {"running"} and status["epoch"] == self.project.lease()["epoch"]:
                return
            time.sleep(0.3)
        self.tell(f"not all queries run {_RECOVERS_S:.0f} s after a fault; going on")

    # ── the end

    def _settle(self) -> bool:
        """Wait until each target has as many rows as were sent, or some time has passed."""
        waited = Stopwatch()
        while waited.seconds < _SETTLES_S:
            if all(len(ids()) >= self.rows for ids in self._targets().values()):
                time.sleep(3)  # and if there were more to come
                return True
            if not is_alive(self.project.lease()["pid"]):
                self._up()
            time.sleep(2)
        self.tell(f"not settled: {self._found()}\n{self.project.log()}")
        return False

    def _targets(self) -> dict[str, Callable[[], list[int]]]:
        """The ids in each target; the one that takes longest to read comes last."""
        lake = self.folder / "lake"
        return {
            "postgres": lambda: ids_in_table(self.dsn, "orders"),
            "delta": lambda: ids_in_delta(lake / "delta"),
            "files": lambda: ids_in_files(lake / "files"),
            "kafka": lambda: ids_in_topic(self.kafka.bootstrap, OUTPUT),
        }

    def _found(self) -> dict[str, tuple[int, int]]:
        found = {name: ids() for name, ids in self._targets().items()}
        return {name: (len(ids), len(set(ids))) for name, ids in found.items()}


class Flow(threading.Thread):
    """Sends rows 0 … rows - 1 into the topic, each once whatever happens to the broker, as far as allowed."""

    def __init__(self, bootstrap: str, rows: int):
        super().__init__(name="flow", daemon=True)
        self.rows, self.sent, self._allowed = rows, 0, 0
        self._failures: list[str] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "message.timeout.ms": 600_000,
                "linger.ms": 20,
                "log_level": 0,
                "error_cb": lambda problem: None,
            }
        )

    def allow(self, rows: int) -> None:
        self._allowed = rows

    def finish(self) -> None:
        self.join(600)
        assert not self.is_alive() and not self._failures, self._failures[:3]
        assert self._producer.flush(600) == 0

    def run(self) -> None:
        while self.sent < self.rows:
            if self.sent >= self._allowed:
                self._producer.poll(0.05)
                continue
            i = self.sent
            value = json.dumps({"id": i, "customer": f"c{i % 7}", "amount": f"{i % 90 + 1}.50"}).encode()
            try:
                self._producer.produce(INPUT, value, on_delivery=self._delivered)
            except BufferError:
                self._producer.poll(0.1)
                continue
            self.sent += 1
            if i % 1000 == 0:
                self._producer.poll(0)

    def _delivered(self, problem: Any, message: Any) -> None:
        if problem is not None:
            self._failures.append(problem.str())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="mzplan-soak-"))
    print(f"seed {given.seed}, in {folder}", flush=True)
    report = Soak(folder, given.rows, given.faults, given.seed, lambda line: print(line, flush=True)).run()
    print(json.dumps(report, indent=2))
    if not report["exactly_once"]:
        sys.exit(f"a row was lost or is there twice; see {folder}")
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
