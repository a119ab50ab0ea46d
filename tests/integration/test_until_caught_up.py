"""`mzplan run --until-caught-up`: a scheduled job reads what is there, and ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from examples.servers import KafkaBroker, PostgresServer, produce_json
from tests.support import (
    APPLY_SECONDS,
    Make,
    Project,
    execute,
    kafka_connection,
    postgres_connection,
    rows_of,
)

PIPELINE = """\
connections:
{connections}
sources:
  orders:
    connection: k
    topic: {topic}
    format: {{type: json, schema: "id BIGINT, customer STRING"}}
    trigger: {{interval: 1h}}
  customers:
    type: local
    schema: "customer STRING NOT NULL, city STRING"
    key: [customer]
    trigger: {{interval: 1h}}
views:
  named:
    query: SELECT o.id, c.city FROM orders o LEFT JOIN customers c ON o.customer = c.customer
    snapshots: [customers]
    schema: "id BIGINT, city STRING"
    trigger: {{interval: 1h}}
sinks:
  out: {{from: named, connection: pg, table: public.out, mode: append, trigger: {{interval: 1h}}}}
"""


class Job:
    """A project on a cluster instance, for which a scheduler starts a runner."""

    def __init__(self, folder: Path, postgres: PostgresServer):
        self.project = Project(folder, "job", {"TEST_PG_PASSWORD": postgres.password})
        with (folder / "mzplan.yaml").open("a") as settings:
            settings.write("instances: {hourly: {type: cluster}}\n")

    def run(self) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mzplan", "-C", str(self.project.folder)]
        command += ["run", "--instance", "hourly", "--until-caught-up"]
        environment = {**os.environ, **self.project.environment}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=APPLY_SECONDS)


def test_an_hourly_job_reads_what_is_there_and_ends(
    tmp_path: Path, kafka: KafkaBroker, postgres: PostgresServer, database: Make, topic: Make
) -> None:
    name, orders = database("job"), topic("job")
    execute(postgres.dsn(name), "CREATE TABLE out (id bigint, city text)")
    job = Job(tmp_path / "job", postgres)
    project = job.project
    connections = kafka_connection("k", kafka.bootstrap) + postgres_connection("pg", postgres, name)
    project.write("pipeline", PIPELINE.format(connections=connections, topic=orders))
    assert project.run("apply", "--auto-approve", "--no-live").returncode == 8  # no runner is alive
    project.append("customers", [{"customer": "ada", "city": "Oslo"}])
    produce_json(kafka.bootstrap, orders, [{"id": i, "customer": "ada"} for i in range(100)])

    def written() -> list[tuple[int, str]]:
        return rows_of(postgres.dsn(name), "SELECT id, city FROM out ORDER BY id")

    ran = job.run()
    assert ran.returncode == 0, ran.stderr
    assert written() == [(i, "Oslo") for i in range(100)]

    # Nothing runs in between, as everybody expects.
    assert project.json("drift")["drift"] == []
    status = project.json("status", "--exit-code")
    (instance,) = status["instances"]
    assert not instance["alive"] and instance["caught_up_at"] is not None
    assert {query["condition"] for query in status["queries"]} == {"stopped"}
    assert "its queries had caught up" in project.run("status").stdout
    assert project.json("plan")["changes"] == []

    # The next one reads on. It takes up what was committed meanwhile.
    project.append("customers", [{"customer": "bob", "city": "Rome"}])
    produce_json(kafka.bootstrap, orders, [{"id": i, "customer": "bob"} for i in range(100, 150)])
    text = PIPELINE.replace("SELECT o.id, c.city", "SELECT o.id, upper(c.city) AS city")
    project.write("pipeline", text.format(connections=connections, topic=orders))
    assert project.run("apply", "--auto-approve", "--no-live").returncode == 8
    assert job.run().returncode == 0
    assert written() == [*((i, "Oslo") for i in range(100)), *((i, "ROME") for i in range(100, 150))]

    # A query that fails keeps its readers from nothing that is there, and is named.
    execute(postgres.dsn(name), "DROP TABLE out")
    ran = job.run()
    assert ran.returncode == 8 and "sink.out has not caught up: [MZ" in ran.stderr
    assert [(one["address"], one["kind"]) for one in project.json("drift")["drift"]] == [
        ("sink.out", "failed-query")
    ]
    assert project.run("status", "--exit-code").returncode == 8
