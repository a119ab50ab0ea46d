"""Connections of type spark: Spark's own data sources, JDBC with its jar, and a Python data source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from examples.servers import PostgresServer
from tests.spark_lines import environment_of, other_line
from tests.support import Make, Project, drop_file, eventually, execute, rows_of

PIPELINE = """\
connections:
  ticks: {type: spark, format: rate, options: {rowsPerSecond: 2}}
  lines: {type: spark, format: json}
  columns: {type: spark, format: parquet}
sources:
  tick: {connection: ticks, schema: "value BIGINT, timestamp TIMESTAMP", trigger: {interval: 300ms}}
  orders:
    connection: lines
    options: {path: "%(folder)s/in"}
    schema: "id BIGINT, customer STRING"
    trigger: {interval: 300ms}
sinks:
  copied: {from: orders, connection: lines, options: {path: "%(folder)s/out"}, trigger: {interval: 300ms}}
  batched:
    from: orders
    connection: columns
    options: {path: "%(folder)s/batched"}
    select: [id, upper(customer) AS customer]
    batch: true
    trigger: {interval: 300ms}
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path / "p", "spark_formats", None)
    (tmp_path / "in").mkdir()
    yield made
    made.down()


def lines(folder: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for file in folder.glob("*.json") for line in file.read_text().splitlines()]
    return sorted(found, key=lambda row: row["id"])


def test_rows_go_through_any_data_source(project: Project, tmp_path: Path) -> None:
    text = PIPELINE % {"folder": tmp_path}
    project.write("shop", text)
    drop_file(tmp_path / "in" / "one.json", [{"id": 1, "customer": "a"}, {"id": 2, "customer": "b"}])
    project.apply()
    eventually("the copied rows", lambda: len(lines(tmp_path / "out")) == 2)
    eventually("ticks", lambda: (project.queries()["source.tick"]["step"] or 0) > 0)
    project.kill_runner()
    project.json("up")
    drop_file(tmp_path / "in" / "two.json", [{"id": 3, "customer": "c"}])
    eventually("the row after the kill", lambda: len(lines(tmp_path / "out")) == 3)

    def batched() -> list[tuple[int, str]]:
        folder = tmp_path / "batched"
        rows = pq.read_table(folder).to_pylist() if folder.exists() else []
        return sorted({(row["id"], row["customer"]) for row in rows})  # at least once

    eventually("the batches", lambda: batched() == [(1, "A"), (2, "B"), (3, "C")])
    # Another type than the data source has is an error that names both.
    project.write("shop", text.replace("value BIGINT", "value INT"))
    project.run("apply", "--auto-approve", "--allow-replace")
    eventually("the error", lambda: "value is bigint" in str(project.queries()["source.tick"]["error"]))


JDBC = """\
connections:
  shop_db:
    type: spark
    format: jdbc
    packages: [org.postgresql:postgresql:42.7.4]
    options:
      url: "jdbc:postgresql://127.0.0.1:%(port)s/%(database)s"
      user: %(user)s
      driver: org.postgresql.Driver
    secrets: {password: "${env:TEST_PG_PASSWORD}"}
sources:
  orders: {type: local, schema: "id BIGINT, customer STRING", trigger: {interval: 300ms}}
  customers:
    connection: shop_db
    options: {dbtable: public.customers}
    schema: "name STRING, city STRING, since DATE"
    batch: true
    key: [name]
    trigger: {interval: 1s}
views:
  located:
    query: SELECT o.id, c.city FROM orders o LEFT JOIN customers c ON o.customer = c.name
    snapshots: [customers]
    trigger: {interval: 300ms}
sinks:
  orders_copy:
    from: orders
    connection: shop_db
    options: {dbtable: public.orders}
    batch: true
    trigger: {interval: 300ms}
"""


def snapshot(project: Project, collection: str) -> list[dict[str, Any]]:
    done = project.run("snapshot", collection, "--format", "json")
    return [json.loads(line) for line in done.stdout.splitlines()] if done.returncode == 0 else []


@pytest.mark.nightly  # Ivy downloads the driver
def test_postgresql_is_read_and_written_by_jdbc(
    tmp_path: Path, postgres: PostgresServer, database: Make
) -> None:
    name = database("jdbc")
    execute(postgres.dsn(name), "CREATE TABLE customers (name text, city text, since date)")
    execute(
        postgres.dsn(name),
        "INSERT INTO customers VALUES ('ada', 'Oslo', '2026-01-31'), ('eve', 'Rome', NULL)",
    )
    project = Project(tmp_path / "p", "jdbc", {"TEST_PG_PASSWORD": postgres.password})
    text = JDBC % {"port": postgres.port, "database": name, "user": postgres.user}
    try:
        project.write("shop", text)
        project.apply()
        project.append("orders", [{"id": 1, "customer": "ada"}, {"id": 2, "customer": "bob"}])

        def written() -> list[tuple[int, str]]:
            exists = rows_of(postgres.dsn(name), "SELECT to_regclass('public.orders') IS NOT NULL")[0][0]
            return sorted(rows_of(postgres.dsn(name), "SELECT id, customer FROM orders")) if exists else []

        eventually("the rows", lambda: written() == [(1, "ada"), (2, "bob")])

        def cities() -> dict[str, str]:
            return {row["name"]: row["city"] for row in snapshot(project, "source.customers")}

        def located() -> dict[int, str]:
            return {row["id"]: row["city"] for row in snapshot(project, "view.located")}

        eventually("the table", lambda: cities() == {"ada": "Oslo", "eve": "Rome"})
        eventually("the join", lambda: located() == {1: "Oslo", 2: None})
        # The next triggers find what has changed in the table. A killed runner loses none of it.
        execute(postgres.dsn(name), "UPDATE customers SET city = 'Bergen' WHERE name = 'ada'")
        execute(postgres.dsn(name), "DELETE FROM customers WHERE name = 'eve'")
        execute(postgres.dsn(name), "INSERT INTO customers VALUES ('bob', 'Lima', NULL)")
        eventually("the changes", lambda: cities() == {"ada": "Bergen", "bob": "Lima"})
        project.kill_runner()
        project.json("up")
        project.append("orders", [{"id": 3, "customer": "ada"}, {"id": 4, "customer": "bob"}])
        eventually("the new rows", lambda: located() == {1: "Oslo", 2: None, 3: "Bergen", 4: "Lima"})
        execute(postgres.dsn(name), "DELETE FROM customers")
        eventually("an empty table", lambda: cities() == {})
        assert project.json("drift")["drift"] == []
        # Another package needs another Spark: the query goes on as before, and says what it waits for.
        project.write("shop", text.replace("42.7.4", "42.7.3"))
        refused = project.run("apply", "--auto-approve")
        assert refused.returncode == 1 and "MZ129" in refused.stdout + refused.stderr
        assert project.queries()["sink.orders_copy"]["condition"] == "running"
    finally:
        project.down()


COUNTER = """\
from pyspark.sql.datasource import DataSource, InputPartition, SimpleDataSourceStreamReader


class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "counter"

    def schema(self):
        return "n BIGINT, text STRING"

    def simpleStreamReader(self, schema):
        return Reader(int(self.options.get("upto", 3)), self.options["secret"])


class Reader(SimpleDataSourceStreamReader):
    def __init__(self, upto, secret):
        self.upto, self.secret = upto, secret

    def initialOffset(self):
        return {"n": 0}

    def read(self, start):
        end = min(start["n"] + 1, self.upto)
        return self.readBetweenOffsets(start, {"n": end}), {"n": end}

    def readBetweenOffsets(self, start, end):
        return iter([(n, self.secret.upper()) for n in range(start["n"], end["n"])])
"""
COUNTED = """\
connections:
  counter: {type: spark, format: counter, options: {upto: 5}, secrets: {secret: "${env:COUNTER_SECRET}"}}
sources:
  counted: {connection: counter, schema: "n BIGINT, text STRING", trigger: available-now}
"""


@pytest.mark.nightly
def test_a_python_data_source_of_an_installed_package_is_found(tmp_path: Path) -> None:
    """Spark finds packages whose names begin with pyspark_."""
    (tmp_path / "packages" / "pyspark_counter").mkdir(parents=True)
    (tmp_path / "packages" / "pyspark_counter" / "__init__.py").write_text(COUNTER)
    environment = {"PYTHONPATH": str(tmp_path / "packages"), "COUNTER_SECRET": "aha"}
    project = Project(tmp_path / "p", "counter", environment)
    try:
        project.write("shop", COUNTED)
        project.apply()
        eventually("all is read", lambda: bool(project.queries()["source.counted"].get("completed")))
        done = project.run("snapshot", "source.counted", "--format", "json")
        rows = sorted(json.loads(line)["n"] for line in done.stdout.splitlines())
        assert rows == [0, 1, 2, 3, 4], done
    finally:
        project.down()


ICEBERG = """\
connections:
  lake:
    type: spark
    format: iceberg
    packages: ["org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.1"]
sources:
  orders: {type: local, schema: "id BIGINT, customer STRING", trigger: {interval: 300ms}}
  copied:
    connection: lake
    options: {path: lake.shop.streamed}
    schema: "id BIGINT, customer STRING"
    trigger: {interval: 300ms}
sinks:
  streamed: {from: orders, connection: lake, options: {path: lake.shop.streamed}, trigger: {interval: 300ms}}
  batched:
    from: copied
    connection: lake
    options: {path: lake.shop.batched}
    batch: true
    trigger: {interval: 300ms}
"""
# Iceberg's tables must exist, and only Iceberg creates and reads them.
ASK_ICEBERG = """\
import json, sys
from mzplan.spark.process.session import open_session
packages = {"spark.jars.packages": ("org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.10.1",)}
spark = open_session("iceberg", {}, packages)
found = [[list(row) for row in spark.sql(statement).collect()] for statement in sys.argv[1:]]
print("FOUND", json.dumps(found))
"""


@pytest.mark.nightly  # Ivy downloads the runtime
def test_iceberg_is_read_and_written_on_the_other_line_of_spark(tmp_path: Path) -> None:
    """Iceberg has no runtime for the newest line."""
    assert other_line().spark == "4.0"
    catalog = "spark.sql.catalog.lake"
    settings = {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "hadoop",
        f"{catalog}.warehouse": str(tmp_path / "iceberg"),
    }
    (tmp_path / "conf").mkdir()
    defaults = "".join(f"{name} {value}\n" for name, value in settings.items())
    (tmp_path / "conf" / "spark-defaults.conf").write_text(defaults)
    environment = {**environment_of(other_line()), "SPARK_CONF_DIR": str(tmp_path / "conf")}
    project = Project(tmp_path / "p", "iceberg", environment)

    def ask(*statements: str) -> list[list[Any]]:
        command = [sys.executable, "-c", ASK_ICEBERG, *statements]
        given = {**os.environ, **environment}
        done = subprocess.run(command, capture_output=True, text=True, env=given, cwd=project.folder)
        assert done.returncode == 0, done.stderr[-3000:]
        found: list[list[Any]] = json.loads(done.stdout.partition("FOUND ")[2])
        return found

    columns = "(id BIGINT, customer STRING) USING iceberg"
    ask(*(f"CREATE TABLE lake.shop.{name} {columns}" for name in ("streamed", "batched")))
    try:
        project.write("shop", ICEBERG)
        project.apply()
        project.append("orders", [{"id": 1, "customer": "ada"}, {"id": 2, "customer": "eve"}])

        def ids() -> list[int]:
            return sorted(row["id"] for row in snapshot(project, "source.copied"))

        eventually("the rows", lambda: ids() == [1, 2])
        project.kill_runner()
        project.json("up")
        project.append("orders", [{"id": 3, "customer": "bob"}])
        eventually("the row after the kill", lambda: ids() == [1, 2, 3])
        eventually("the last step", lambda: project.queries()["sink.batched"]["total_rows"] >= 3)
    finally:
        project.down()
    streamed, batched = ask(*(f"SELECT * FROM lake.shop.{name}" for name in ("streamed", "batched")))
    wanted = [[1, "ada"], [2, "eve"], [3, "bob"]]
    assert sorted(streamed) == wanted  # Iceberg's streaming writer is exactly once
    assert [row for row in wanted if row in batched] == wanted
