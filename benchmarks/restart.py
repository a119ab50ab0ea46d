"""A connection moves: how long until every query that uses it runs again?

There are 12 sources (Kafka → collection, native) and 12 sinks: six to PostgreSQL (Python foreachBatch), and
six to Delta (native). Eight sources use a Kafka connection that moves to the broker's other listener. The six
PostgreSQL sinks use a connection that moves to another name of the same host.

- mzplan: `mzplan apply --auto-approve --json`, from the start of the process to its end.
- bare: a PySpark loop in another process that hosts the same 24 streams in a session with the same settings,
  stops and starts the same queries on eight threads, and waits until each is past its first trigger.
- whole: `mzplan down`, then `apply`, until all 24 are past a first trigger. This is the cost of the change if
  the queries are one application that has to be submitted again.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.bare import BareLoop
from benchmarks.figures import Rounds, Table, alternate, say, verdict
from benchmarks.stage import Project, Stage
from examples.servers import KafkaBroker, PostgresServer, create_topic, produce_json

DATABASE = "restart"
RECORDS = 100  # records per topic


@dataclass(frozen=True, slots=True)
class Queries:
    """The numbers of queries. Each source has one sink."""

    sources: int
    moving: int
    """Sources on the Kafka connection that moves."""
    postgres: int
    """Sinks to PostgreSQL; the others write to Delta."""


@dataclass(frozen=True, slots=True)
class Size:
    """The numbers of queries and of rounds."""

    queries: Queries
    rounds: Rounds
    whole: Rounds


FULL = Size(Queries(sources=12, moving=8, postgres=6), rounds=Rounds(3, 8), whole=Rounds(0, 2))
SMALL = Size(Queries(sources=2, moving=1, postgres=1), rounds=Rounds(0, 1), whole=Rounds(0, 1))


@dataclass(frozen=True, slots=True)
class Move:
    """A connection that moves back and forth between two places, and the number of its queries."""

    connection: str
    key: str
    places: tuple[Any, Any]
    queries: int

    def make(self, connections: Path) -> Any:
        """Write the other place to the file, and return it."""
        content = json.loads(connections.read_text())
        body = content["connections"][self.connection]
        body[self.key] = self.places[1 - self.places.index(body[self.key])]
        connections.write_text(json.dumps(content))
        return body[self.key]


def measure(stage: Stage) -> Table:
    size = SMALL if stage.small else FULL
    folder, kafka, postgres = stage.folder / "restart", stage.kafka, stage.postgres
    project = write_project(folder / "project", kafka, postgres, size.queries)
    bare = BareLoop(stage.spark, project.folder, folder / "bare", project.environment)
    sources = Move("moving", "brokers", ([kafka.bootstrap], [kafka.bootstrap2]), size.queries.moving)
    sinks = Move("pg", "host", ("127.0.0.1", "localhost"), size.queries.postgres)
    try:
        project.apply()
        bare.open()
        ours, first = _compare(project, bare, sources, size.rounds)
        _, second = _compare(project, bare, sinks, size.rounds)
        bare.close()
        last = _whole(project, sources, ours, size.whole)
    finally:
        bare.close()
        project.down()
    return Table(
        ("what restarts", "mzplan apply", "of it from the commit on", "bare loop", "aim"),
        [
            (f"the {size.queries.moving} sources of a Kafka connection that moves", *first),
            (f"the {size.queries.postgres} sinks of a PostgreSQL connection that moves", *second),
            (f"all {2 * size.queries.sources} queries, with their application (down, apply)", *last),
        ],
    )


def _compare(
    project: Project, bare: BareLoop, move: Move, rounds: Rounds
) -> tuple[list[float], tuple[str, ...]]:
    """Compare mzplan with the bare loop. Return mzplan's seconds, and the cells of the table."""
    inside: list[float] = []

    def apply() -> float:
        move.make(project.folder / "connections.yaml")
        began = time.monotonic()
        document = project.apply()
        seconds = time.monotonic() - began
        inside.append(seconds_restarting(document, move))
        return seconds

    def loop() -> float:
        return bare.restart(move.connection, move.key, move.places, move.queries)

    say(f"  {move.queries} of them use connection.{move.connection}, which moves")
    taken = alternate({"mzplan": apply, "bare": loop}, rounds)
    ours, theirs, within = (
        statistics.median(seconds) for seconds in (taken["mzplan"], taken["bare"], inside[rounds.warm_up :])
    )
    limit = 1.2 * theirs + 0.5
    aim = verdict(f"1.2 × bare + 0.5 s = {limit:.2f} s", ours <= limit)
    return taken["mzplan"], (f"{ours:.2f} s", f"{within:.2f} s", f"{theirs:.2f} s", aim)


def _whole(project: Project, move: Move, ours: list[float], rounds: Rounds) -> tuple[str, ...]:
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

    whole = statistics.median(alternate({"whole": restart_all}, rounds)["whole"])
    times = whole / statistics.median(ours)
    return (f"{whole:.1f} s", "", "", verdict(f"10 × the first row; {times:.1f} ×", times >= 10))


def seconds_restarting(document: Any, move: Move) -> float:
    """Check that the connection's queries restarted, and no others. Return the seconds from the commit on."""
    restarted = [change for change in document["changes"] if change["action"] == "restart"]
    assert len(restarted) == move.queries, document["summary"]
    for change in restarted:
        assert change["status"] == "applied", change
        assert change["query"]["run_id_before"] != change["query"]["run_id_after"], change
    return max(float(change["seconds"]) for change in restarted)


def write_project(
    folder: Path,
    kafka: KafkaBroker,
    postgres: PostgresServer,
    queries: Queries,
    name: str = DATABASE,
    common: Mapping[str, Any] | None = None,
) -> Project:
    """Create topics with some records, the target tables, and the project's YAML.

    `name`: the name of the database, and the prefix of the topics. `common`: fields for every query.
    """
    rows = [{"id": i, "name": f"n{i}", "amount": f"{i}.50"} for i in range(RECORDS)]
    columns = "id bigint, name text, amount numeric(10,2)"
    with psycopg.connect(postgres.create_database(name)) as connection:
        for i in range(queries.postgres):
            for prefix in ("", "bare_"):
                connection.execute(f"CREATE TABLE {prefix}p{i} ({columns})".encode())
    for i in range(queries.sources):
        create_topic(kafka.bootstrap, f"{name}{i}")
        produce_json(kafka.bootstrap, f"{name}{i}", rows, key="id")
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
        "database": name,
        "user": postgres.user,
        "password": "${env:BENCH_PG_PASSWORD}",
    }
    schema = {"type": "json", "schema": "id BIGINT, name STRING, amount DECIMAL(10,2)"}
    every = common or {}
    sources: dict[str, Any] = {
        f"s{i}": {
            **every,
            "connection": "moving" if i < queries.moving else "still",
            "topic": f"{name}{i}",
            "format": schema,
        }
        for i in range(queries.sources)
    }
    sinks: dict[str, Any] = {
        f"p{i}": {**every, "from": f"s{i}", "connection": "pg", "table": f"public.p{i}"}
        for i in range(queries.postgres)
    }
    sinks |= {
        f"d{i}": {**every, "from": f"s{i}", "connection": "lake", "path": f"d{i}"}
        for i in range(queries.postgres, queries.sources)
    }
    project.write("connections", {"connections": connections})
    project.write("pipeline", {"sources": sources, "sinks": sinks})
    return project
