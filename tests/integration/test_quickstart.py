"""Examples. `make quickstart` and `make cdc` check themselves what they show, and end what they start. The
tutorial, as somebody new would type it: on real Spark, first with no server, then with its own. And
examples/local, as its reader would try it, with the local source on a real runner."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.phases import Phases
from examples.quickstart import NEXT
from examples.servers.ports import free_port
from examples.stage import KAFKA_PORTS, Stage
from mzplan.host.processes import is_alive
from mzplan.warehouse.checkpoints import Checkpoint
from tests.integration.spark_lab import read_delta
from tests.machines import DOCS, run_page
from tests.support import Project, eventually

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.nightly  # each sets up servers and a Spark of its own


def run(module: str, root: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """One demonstration, with its servers and its state under a folder of the test's."""
    command = [sys.executable, "-m", module, "--root", str(root)]
    environment = {**os.environ, **variables}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=550, env=environment)


def nothing_runs(example: str, root: Path) -> bool:
    stage = Stage(example, root, Phases())
    file = stage.state / "leases" / "local.json"
    lease = json.loads(file.read_text() or "{}") if file.exists() else {}
    runs = lease and is_alive(lease["pid"], lease["pid_started"])
    return not runs and stage.kafka.pid is None and stage.postgres.pid is None


@pytest.mark.parametrize(
    ("module", "example", "phases"),
    [
        ("examples.quickstart", "shop", {"mzplan apply", "mzplan plan", "mzplan apply, of the change"}),
        ("examples.capture", "cdc", {"mzplan apply", "the changes", "mzplan destroy"}),
    ],
)
def test_an_example_shows_what_it_says_and_stops_what_it_started(
    module: str, example: str, phases: set[str], tmp_path: Path
) -> None:
    done = run(module, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert nothing_runs(example, tmp_path)
    timed = {line[2:].rpartition("  ")[0].strip() for line in done.stdout.splitlines() if line.endswith(" s")}
    assert timed >= {"servers and runner", "PostgreSQL", "the runner", "all", *phases}
    state = tmp_path / "state" / example / "mzplan.state.json"
    assert state.exists()
    if module == "examples.quickstart":
        last = done.stdout.splitlines()[-1 - len(NEXT) :]
        assert last[0] == f"  {state} is the state (state/README.md)"
        for line in last[1:]:  # they work, now that nothing runs any more
            assert f"mzplan -C {tmp_path / 'build' / 'shop'} " in line
            tried = [sys.executable, "-m", "mzplan", *line.split()[1:]]
            shown = subprocess.run(tried, cwd=ROOT, capture_output=True, text=True)
            assert shown.returncode == 0 and shown.stdout, line + shown.stderr


def test_a_port_in_use_is_named_before_anything_starts(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", KAFKA_PORTS[1])):
        done = run("examples.quickstart", tmp_path)
    assert done.returncode == 1
    assert f"{KAFKA_PORTS[1]}" in done.stderr and "Traceback" not in done.stdout + done.stderr
    assert "Kafka" not in done.stdout and "mzplan apply" not in done.stdout
    assert nothing_runs("shop", tmp_path)


def test_a_server_that_cannot_start_stops_the_others(tmp_path: Path) -> None:
    done = run("examples.quickstart", tmp_path, JDK_JAVA_OPTIONS="-XX:+NoSuchOption")
    assert done.returncode == 1 and "Traceback" not in done.stdout + done.stderr
    assert "✗ Kafka" in done.stdout and "mzplan apply" not in done.stdout
    assert nothing_runs("shop", tmp_path)


PORTS = ("19192", "19193", "19194", "19195", "15532")


def test_the_tutorial_does_what_it_shows(tmp_path: Path) -> None:
    folder = tmp_path / "tutorial"
    folder.mkdir()
    ports = {port: str(free_port()) for port in PORTS}
    servers = [sys.executable, "-m", "examples.servers", "down", "--dir", str(tmp_path / "servers")]
    try:
        run_page(DOCS / "tutorial.md", folder, seconds=240, replaced=ports)
    finally:
        subprocess.run([sys.executable, "-m", "mzplan", "-C", str(folder), "down"], capture_output=True)
        subprocess.run([*servers, "--delete-data"], cwd=DOCS.parent, capture_output=True)


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
