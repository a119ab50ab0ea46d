"""The example examples/local, as its reader would try it; and the local source on a real runner."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mzplan.warehouse.checkpoints import Checkpoint
from tests.integration.spark_lab import read_delta
from tests.support import Project, eventually


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """The example, copied by `mzplan init --from local`."""
    project = Project(tmp_path / "p", "local")
    (project.folder / "mzplan.yaml").unlink()
    assert project.run("init", "--from", "local").returncode == 0
    yield project
    project.down()


def lake(project: Project) -> list[dict[str, Any]]:
    rows = read_delta(project.folder / "lake/adjustments")
    return sorted(rows, key=lambda row: (row["booked"], row["account"]))


@pytest.mark.nightly
def test_the_example_and_a_kill_in_between(project: Project) -> None:
    def append(file: str, id_: str) -> Any:
        return project.json("append", "source.adjustments", "--file", str(project.folder / file), "--id", id_)

    project.apply()
    # Step 0 was there when the query had its first trigger.
    assert append("adjustments.jsonl", "monday")["step"] == 1
    again = append("adjustments.jsonl", "monday")
    assert (again["step"], again["repeated"]) == (1, True)
    eventually("the rows are in the lake", lambda: len(lake(project)) == 2)
    # What the console shows is shown again if Spark has not noted down that its batch is done.
    large = project.json("state", "show", "sink.large")
    checkpoint = Checkpoint(str(project.folder / "warehouse" / "checkpoints" / large["id"] / "g1"))
    eventually(
        "the console has shown them",
        lambda: '"account":"b-04"' in project.log() and checkpoint.log.unfinished() is None,
    )
    project.kill_runner()
    # No runner: the step is durable all the same, and is read by the next one.
    assert append("adjustments.csv", "tuesday")["step"] == 2
    assert append("adjustments.jsonl", "monday")["repeated"]
    for day in range(5):  # what waits is read together
        row = {"account": f"z-{day}", "amount": "1.00", "booked": "2027-01-01"}
        assert project.append("adjustments", [row])["step"] == 3 + day
    assert project.apply()["changes"] == []
    eventually("the rows are in the lake", lambda: len(lake(project)) >= 9)
    steps = project.json("steps", "source.adjustments")["steps"]
    assert steps[-1]["from"] == {"step": 2} and steps[-1]["to"] == {"step": 8} and steps[-1]["rows"] == 7
    assert project.json("verify", "source.adjustments", "--from-upstream")["verified"] == len(steps)
    newest = project.json("snapshot", "source.adjustments", "--as-of", str(steps[-1]["step"]), "--count")
    assert newest["count"] == 9
    found = lake(project)
    assert [row["account"] for row in found[4:]] == [f"z-{day}" for day in range(5)]
    assert [(row["account"], str(row["amount"]), row["reason"]) for row in found[:4]] == [
        ("a-17", "-12.50", "refund"),
        ("b-04", "250.00", "correction of April"),
        ("a-17", "3.20", None),
        ("c-99", "-100.00", None),
    ]
    eventually("the console shows them", lambda: '"account":"c-99"' in project.log())
    shown = (project.folder / ".mzplan" / "local.log").read_text()
    assert shown.count('"account":"b-04"') == 1 and shown.count('"account":"c-99"') == 1
    assert '"amount":3.20' not in shown
    # Its status follows what has been committed.
    eventually("status shows the step", lambda: project.queries()["source.adjustments"]["step"] >= 2)
