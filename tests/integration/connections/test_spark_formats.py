"""Connections of type spark, with data sources that Spark brings: rate, files as a stream and in batch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support import Project, drop_file, eventually

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
