"""`trigger: available-now`: queries read what is there, and stop until somebody starts them again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from mzplan.connectors.files.manifest import committed_files
from tests.support import Project, drop_ids, eventually

PIPELINE = """\
connections:
  here: {type: files, path: "%(folder)s"}
sources:
  orders:
    connection: here
    path: in
    format: {type: json, schema: "id BIGINT"}
    trigger: available-now
  clicks: {type: local, schema: "id BIGINT", trigger: available-now}
views:
  both: {query: SELECT id FROM orders UNION ALL SELECT id FROM clicks, trigger: available-now}
sinks:
  out: {type: files, from: both, connection: here, path: out, format: {type: json}, trigger: available-now}
"""
QUERIES = ("source.orders", "source.clicks", "view.both", "sink.out")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path / "p", "available_now", None)
    (tmp_path / "in").mkdir()
    made.write("shop", PIPELINE % {"folder": tmp_path})
    yield made
    made.down()


def ids(folder: Path) -> list[int]:
    lines = (line for file in committed_files(folder) for line in Path(file).read_text().splitlines())
    return sorted(json.loads(line)["id"] for line in lines)


def all_completed(project: Project) -> bool:
    queries = project.queries()
    return all(queries[name].get("completed") for name in QUERIES)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_queries_read_what_is_there_and_stop(project: Project, tmp_path: Path) -> None:
    drop_ids(tmp_path / "in", 1, 2)
    project.apply()
    project.append("clicks", [{"id": 10}])  # a Python data source: one step at a time
    project.append("clicks", [{"id": 11}])
    eventually("the queries stop", lambda: all_completed(project))
    read = ids(tmp_path / "out")
    assert {1, 2} <= {*read} <= {1, 2, 10, 11}
    assert project.json("drift")["drift"] == []
    status = project.json("status", "--exit-code")
    assert {query["condition"] for query in status["queries"]} == {"stopped"}
    assert "has read what was there" in project.run("status").stdout
    assert project.json("plan")["changes"] == []

    # What comes later waits until somebody starts the queries again.
    drop_ids(tmp_path / "in", 3)
    before = project.run_ids()
    project.json("restart", *QUERIES, "--auto-approve")
    eventually("the queries stop again", lambda: all_completed(project))
    assert project.restarted(before) == {*QUERIES}
    assert ids(tmp_path / "out") == [1, 2, 3, 10, 11]

    # The next runner starts them, even if the last one was killed.
    project.kill_runner()
    assert project.json("status")["queries"][0]["condition"] == "stopped"
    drop_ids(tmp_path / "in", 4)
    project.json("up")
    eventually("the new row", lambda: ids(tmp_path / "out") == [1, 2, 3, 4, 10, 11])
    eventually("the queries stop once more", lambda: all_completed(project))
