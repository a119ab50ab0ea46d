"""A connection moves: how long until every query that uses it runs again?

24 queries: 12 sources (Kafka → collection, native) and 12 sinks, six to PostgreSQL (Python foreachBatch) and
six to Delta (native). Eight of the sources use the Kafka connection that moves to the broker's other
listener; the six PostgreSQL sinks use the other connection that moves (to another name of the same host).

- mzplan: `mzplan apply --auto-approve --json`, from starting the process to its end.
- bare: a PySpark loop in another process that hosts the same 24 streams in a session with the same settings,
  stops and starts the same queries on eight threads, and waits until each is past its first trigger.
- whole: `mzplan down`, then `apply`, until all 24 are past a first trigger: what the change costs where the
  queries live in one application that is submitted anew.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.bare import BareLoop
from benchmarks.stage import Project, alternate, kafka_at, postgres_at, ratio, say, scratch, verdict
from examples.servers import KafkaBroker, PostgresServer, create_topic, produce_json

SOURCES = 12
MOVING = 8  # sources on the connection that moves
POSTGRES = 6  # sinks to PostgreSQL; the other six are Delta's
WARM_UP = 3
ROUNDS = 8
WHOLE_ROUNDS = 2
RECORDS = 100  # of each topic


@dataclass(frozen=True, slots=True)
class Move:
    """A connection that goes back and forth between two places, and how many queries use it."""

    connection: str
    key: str
    places: tuple[Any, Any]
    queries: int

    def make(self, connections: Path) -> Any:
        """Write the other place into the file; returns it."""
        content = json.loads(connections.read_text())
        body = content["connections"][self.connection]
        body[self.key] = self.places[1 - self.places.index(body[self.key])]
        connections.write_text(json.dumps(content))
        return body[self.key]


def main() -> None:
    say(f"restart: {2 * SOURCES} queries")
    with scratch() as folder, kafka_at(folder) as kafka, postgres_at(folder) as postgres:
        project = _project(folder / "project", kafka, postgres)
        bare = BareLoop(project.folder, folder / "bare", project.environment)
        sources = Move("moving", "brokers", ([kafka.bootstrap], [kafka.bootstrap2]), MOVING)
        sinks = Move("pg", "host", ("127.0.0.1", "localhost"), POSTGRES)
        try:
            project.apply()
            bare.open()
            taken = _compare(project, bare, sources)
            _compare(project, bare, sinks)
            bare.close()
            _whole(project, sources, taken)
        finally:
            bare.close()
            project.down()


def _compare(project: Project, bare: BareLoop, move: Move) -> list[float]:
    """mzplan against the bare loop; returns mzplan's seconds."""
    inside: list[float] = []

    def apply() -> float:
        move.make(project.folder / "connections.yaml")
        began = time.monotonic()
        document = project.apply()
        seconds = time.monotonic() - began
        inside.append(_check(document, move))
        return seconds

    def loop() -> float:
        return bare.restart(move.connection, move.key, move.places, move.queries)

    say(f"  {move.queries} of them use connection.{move.connection}, which moves")
    taken = alternate({"mzplan": apply, "bare": loop}, WARM_UP + ROUNDS)
    ours, theirs = taken["mzplan"][WARM_UP:], taken["bare"][WARM_UP:]
    a, b, within = (statistics.median(values) for values in (ours, theirs, inside[WARM_UP:]))
    limit = 1.2 * b + 0.5
    say(f"  mzplan apply {a:.2f} s, of it from the commit to all applied {within:.2f} s; bare loop {b:.2f} s")
    say(f"  mzplan / bare {ratio(ours, theirs):.2f}; {verdict(a <= limit)}: limit {limit:.2f} s")
    return ours


def _whole(project: Project, move: Move, ours: list[float]) -> None:
    say("  the whole application is restarted instead")

    def restart_all() -> float:
        before = {address: query["run_id"] for address, query in project.queries().items()}
        move.make(project.folder / "connections.yaml")
        began = time.monotonic()
        project.down()
        project.apply()
        seconds = time.monotonic() - began
        for address, query in project.queries().items():
            assert query["condition"] == "running", query
            assert query["run_id"] != before[address], query
        return seconds

    whole = statistics.median(alternate({"whole": restart_all}, WHOLE_ROUNDS)["whole"])
    times = whole / statistics.median(ours)
    say(f"  whole application {whole:.1f} s; whole / mzplan {times:.1f}; {verdict(times >= 10)}: 10")


def _check(document: Any, move: Move) -> float:
    """That just the connection's queries restarted, all of them; seconds from the commit to the last."""
    restarted = [change for change in document["changes"] if change["action"] == "restart"]
    assert len(restarted) == move.queries, document["summary"]
    for change in restarted:
        assert change["status"] == "applied", change
        assert change["query"]["run_id_before"] != change["query"]["run_id_after"], change
    return max(float(change["seconds"]) for change in restarted)


def _project(folder: Path, kafka: KafkaBroker, postgres: PostgresServer) -> Project:
    """Topics with some records, target tables, and the YAML."""
    rows = [{"id": i, "name": f"n{i}", "amount": f"{i}.50"} for i in range(RECORDS)]
    columns = "id bigint, name text, amount numeric(10,2)"
    with psycopg.connect(postgres.create_database("bench")) as connection:
        for i in range(POSTGRES):
            for prefix in ("", "bare_"):
                connection.execute(f"CREATE TABLE {prefix}p{i} ({columns})".encode())
    for i in range(SOURCES):
        create_topic(kafka.bootstrap, f"t{i}")
        produce_json(kafka.bootstrap, f"t{i}", rows, key="id")
    project = Project(folder, {"BENCH_PG_PASSWORD": postgres.password})
    (folder / "lake").mkdir()
    broker = {"type": "kafka", "brokers": [kafka.bootstrap]}
    connections: dict[str, Any] = {
        "moving": broker,
        "still": broker,
        "lake": {"type": "files", "path": "lake"},
    }
    connections["pg"] = {
        "type": "postgres",
        "host": "127.0.0.1",
        "port": postgres.port,
        "database": "bench",
        "user": postgres.user,
        "password": "${env:BENCH_PG_PASSWORD}",
    }
    schema = {"type": "json", "schema": "id BIGINT, name STRING, amount DECIMAL(10,2)"}
    sources: dict[str, Any] = {
        f"s{i}": {"connection": "moving" if i < MOVING else "still", "topic": f"t{i}", "format": schema}
        for i in range(SOURCES)
    }
    sinks: dict[str, Any] = {
        f"p{i}": {"from": f"s{i}", "connection": "pg", "table": f"public.p{i}"} for i in range(POSTGRES)
    }
    sinks |= {
        f"d{i}": {"from": f"s{i}", "connection": "lake", "path": f"d{i}"} for i in range(POSTGRES, SOURCES)
    }
    project.write("connections", {"connections": connections})
    project.write("pipeline", {"sources": sources, "sinks": sinks})
    return project


if __name__ == "__main__":
    main()
