"""A third party's connector: examples/connector, built and installed as its users would, on a real runner."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support import Project, eventually

PACKAGE = Path(__file__).parents[2] / "examples/connector"
ROWS = 3000
INSERT = "INSERT INTO orders (customer, amount) VALUES (?, ?)"
PIPELINE = """
connections:
  shop: {type: sqlite, path: shop.db}
sources:
  orders:
    connection: shop
    table: orders
    schema: "id BIGINT NOT NULL, customer VARCHAR(20), amount DOUBLE"
    max_rows: 1000
    trigger: {interval: 200ms}
sinks:
  copies:
    from: orders
    connection: shop
    table: copies
    select: [id, customer, amount * 2 AS twice]
    compare: fail
    trigger: {interval: 200ms}
"""


@pytest.fixture(scope="module")
def python_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PYTHONPATH with the package installed in it, built from its source without any network."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--offline", "--no-deps"]
    command += ["--no-build-isolation", "--python", sys.executable, "--target", str(folder), str(PACKAGE)]
    subprocess.run(command, check=True, timeout=120)
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture
def project(tmp_path: Path, python_path: str) -> Iterator[Project]:
    project = Project(tmp_path / "p", "shop", {"PYTHONPATH": python_path})
    execute(project, "CREATE TABLE orders (id INTEGER PRIMARY KEY AUTOINCREMENT, customer TEXT, amount REAL)")
    execute(project, "CREATE TABLE copies (id INTEGER, customer TEXT, twice REAL)")
    project.write("pipeline", PIPELINE)
    yield project
    project.down()


def execute(project: Project, statement: str, *rows: tuple[object, ...]) -> list[tuple[int, ...]]:
    with closing(sqlite3.connect(project.folder / "shop.db", timeout=30)) as database, database:
        if rows:
            return database.executemany(statement, rows).fetchall()
        return database.execute(statement).fetchall()


def are_copied(project: Project, count: int, seconds: float = 90.0) -> None:
    """Wait until at least so many rows are copied."""
    copied = "SELECT count(*) FROM copies"
    eventually(f"{count} rows are copied", lambda: execute(project, copied)[0][0] >= count, seconds)


@pytest.mark.nightly
def test_from_table_to_table_across_kills_of_the_runner(project: Project) -> None:
    project.apply()

    def flow() -> None:
        for first in range(0, ROWS, 50):
            rows = [(f"c{i % 7}", i / 2) for i in range(first, first + 50)]
            execute(project, INSERT, *rows)
            time.sleep(0.3)

    flowing = threading.Thread(target=flow)
    flowing.start()
    for part in (4, 2):
        are_copied(project, ROWS // part // 2)
        project.kill_runner()
        assert project.apply()["changes"] == []  # starts a successor
    flowing.join(120)
    are_copied(project, ROWS, 240)
    found = execute(project, "SELECT count(*), count(DISTINCT id), min(id), max(id), sum(twice) FROM copies")
    assert found == [(ROWS, ROWS, 1, ROWS, sum(range(ROWS)))]
    queries = project.queries()
    assert {q["condition"] for q in queries.values()} == {"running"}
    assert queries["source.orders"]["step"] >= 2


@pytest.mark.nightly
def test_columns_change_and_no_row_is_read_again(project: Project) -> None:
    """Its schema offers `replace: from-collection`: its steps go on, under the same name."""
    execute(project, INSERT, *((f"c{i}", float(i)) for i in range(10)))
    project.write("pipeline", PIPELINE.replace("amount DOUBLE", "amount FLOAT"))
    project.apply()

    are_copied(project, 10)
    # What was read is there no more, so that only the collection has it.
    execute(project, "DELETE FROM orders WHERE id <= 4")
    wide = PIPELINE.replace("    max_rows", "    lifecycle: {replace: from-collection}\n    max_rows")
    project.write("pipeline", wide)
    project.apply("--allow-replace")
    execute(project, INSERT, ("another", 1.0))
    are_copied(project, 11)
    assert execute(project, "SELECT count(*), count(DISTINCT id), max(id) FROM copies") == [(11, 11, 11)]
    project.down()
    first, *more = project.json("steps", "source.orders")["steps"]
    assert (first["step"], first["rows"], first["migrated"]) == (0, 10, 1)
    assert sum(step["rows"] for step in more) == 1


def test_its_schemas_and_checks_are_as_mzplans_own(project: Project) -> None:
    assert "source.sqlite" in project.json("schema")["schemas"]
    assert project.json("schema", "sink.sqlite")["properties"]["compare"]["default"] == "warn"
    project.write(
        "pipeline", PIPELINE.replace("max_rows: 1000", "max_row: 1000").replace("table: copies", "")
    )
    found = project.json("validate", code=1)["diagnostics"]
    wrong = {(d["code"], d["address"]) for d in found}
    assert wrong == {("MZ004", "source.orders"), ("MZ006", "sink.copies")}
    project.write("pipeline", PIPELINE.replace("table: copies", "table: none"))
    (error,) = project.json("validate", "--live", code=1)["diagnostics"]
    assert (error["code"], error["address"]) == ("MZ082", "sink.copies")
    assert "table none of shop.db does not exist" in error["detail"]


def test_its_own_tests_pass(tmp_path: Path, python_path: str) -> None:
    """The contract suites, which it runs in one line each, against the installed package."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(PACKAGE)]
    environment = {**os.environ, "PYTHONPATH": python_path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
