"""A runner whose Spark can't run queries any more ends within seconds, however that came, and says why."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.saboteur import SABOTAGE
from tests.support import Project, Stopwatch, eventually, exit_code

WHY = {
    "killed": "Spark's Java process has ended: it was killed (SIGKILL)",
    "out of memory": "Spark's Java process has ended: it ran out of memory",
    "context stopped": "Spark's context was stopped",
    "gateway ended": "Spark's Java process no longer accepts calls from Python",
    "frozen": "Spark's Java process hasn't answered for 3 s.",
}
WITHIN = 10.0  # seconds, as promised; a look that is late on a busy machine takes some more
LATE = 10.0


@pytest.mark.parametrize("how", SABOTAGE)
def test_a_runner_whose_spark_is_gone_ends_and_says_why(how: str, tmp_path: Path) -> None:
    project = Project(tmp_path / "p", "gone")
    project.write(
        "gone",
        "connections: {here: {type: files, path: .}}\n"
        'sources: {rows: {connection: here, path: in, format: {type: json, schema: "id BIGINT"},'
        " trigger: {interval: 100ms}}}\n"
        "sinks: {lake: {from: rows, connection: here, path: lake}}\n",
    )
    (project.folder / "in").mkdir()
    for number in range(3):
        (project.folder / "in" / f"{number}.json").write_text(f'{{"id": {number}}}')
    log = project.folder / "runner.log"
    with log.open("ab") as output:
        runner = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.saboteur", how, str(project.folder)],
            stdout=output,
            stderr=output,
            env={**os.environ, "PYSPARK_SUBMIT_ARGS": "--driver-memory 1g pyspark-shell"},
        )
    try:
        eventually("it leads", lambda: runner.poll() is None and (project.folder / "state/leases").exists())
        project.apply()
        (project.folder / "break").touch()
        took = Stopwatch()
        code = exit_code(runner)
        seconds = took.seconds
        assert code == 1, log.read_text()
        assert seconds < WITHIN + LATE, log.read_text()
        status = project.json("status", "--exit-code", code=8)
        (instance,) = status["instances"]
        assert not instance["alive"] and WHY[how] in instance["ended"]
        assert {query["condition"] for query in status["queries"]} == {"stopped"}
        assert WHY[how] in project.run("status").stdout
        (drift,) = project.json("drift", "--detailed-exitcode", code=3)["drift"]
        assert len(drift["addresses"]) == 2 and WHY[how] in drift["detail"]
        assert WHY[how] in project.json("why", "source.rows")["cause"]["detail"]
    finally:
        if runner.poll() is None:
            runner.kill()
        project.down()
