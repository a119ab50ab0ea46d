"""A project whose runners a test starts, and kills or freezes; and the ids that its targets hold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from examples.servers.process import descendants_of, send
from mzplan.connectors.files.manifest import committed_files
from mzplan.host.failpoints import Failpoint
from tests.integration.committed import committed
from tests.support import Project, eventually, rows_of

SECONDS = 240.0
ASKED = ("--auto-approve", "--wait", "0s")


def points(*kinds: str) -> list[Failpoint]:
    """Return the failpoints of these kinds, in the order of the enum: `points("source", "sink")`."""
    return [point for point in Failpoint if point.value.partition(".")[0] in kinds]


def start_runner(
    folder: Path, failpoint: str = "", environment: Mapping[str, str] | None = None, instance: str = "local"
) -> subprocess.Popen[bytes]:
    """Start a runner, which dies at the failpoint. Its output is in runner.log."""
    log = (folder / "runner.log").open("ab")
    command = [sys.executable, "-m", "mzplan", "-C", str(folder), "run", "--instance", instance]
    given = {**os.environ, **(environment or {}), "MZPLAN_FAILPOINT": failpoint}
    return subprocess.Popen(command, stdout=log, stderr=log, env=given)


class Doomed:
    """A project and the runners that a test has started for it."""

    def __init__(self, project: Project):
        self.project = project
        self.started: list[subprocess.Popen[bytes]] = []

    def runner(self, failpoint: str = "", instance: str = "local") -> subprocess.Popen[bytes]:
        """Start a runner, which dies at the failpoint."""
        project = self.project
        self.started.append(start_runner(project.folder, failpoint, project.environment, instance))
        return self.started[-1]

    def dies_at(self, point: Failpoint) -> None:
        """Start a runner, and wait until it has died at the failpoint."""
        self.is_killed(self.runner(point))

    def is_killed(self, runner: subprocess.Popen[bytes]) -> None:
        """Wait until a runner has died of SIGKILL."""
        assert runner.wait(SECONDS) == -signal.SIGKILL, self.log()

    def stop(self, runner: subprocess.Popen[bytes]) -> None:
        runner.terminate()
        assert runner.wait(SECONDS) == 0, self.log()

    def killed_in(
        self, kind: str, ask: Callable[[], CompletedProcess[str]], between: Callable[[], object]
    ) -> None:
        """Kill a runner at the first failpoint of that kind, when it is asked for something, and its
        successors at the other ones."""
        first, *others = points(kind)
        runner = self.runner(first)
        eventually("it runs", self.is_running, SECONDS)
        asked = ask()
        assert asked.returncode == 8, asked.stdout + asked.stderr
        self.is_killed(runner)
        for point in others:
            between()
            self.dies_at(point)
        assert self.project.json("plan")["changes"] == []

    def is_running(self) -> bool:
        return {query["condition"] for query in self.project.queries().values()} == {"running"}

    def has_nothing_to_do(self) -> bool:
        tasks = [task for query in self.project.queries().values() for task in query.get("tasks", ())]
        return all(task["done"] for task in tasks) and self.project.json("plan")["pending"] == []

    def log(self) -> str:
        return (self.project.folder / "runner.log").read_text(errors="replace")[-6000:]

    def close(self) -> None:
        """Stop all runners."""
        self.project.down()
        for process in self.started:
            if process.poll() is None:
                for pid in (*descendants_of(process.pid), process.pid):
                    send(pid, signal.SIGKILL)
            process.wait(30)


def steps_of(project: Project, address: str) -> list[dict[str, Any]]:
    """Return the recorded steps of a query; none may be missing or there twice."""
    steps: list[dict[str, Any]] = project.json("steps", address)["steps"]
    assert [step["step"] for step in steps] == list(range(len(steps))), steps
    return steps


def verify(project: Project, *addresses: str) -> None:
    """Check that each collection and target holds what was recorded of the steps."""
    for address in addresses:
        found = project.json("verify", address)
        assert found["difference"] is None and found["verified"] > 0, (address, found)


def arrive(targets: Mapping[str, Callable[[], Iterable[int]]], wanted: Counter[int]) -> None:
    """Wait until each target holds the wanted ids; it may never hold more of any."""
    missing: dict[str, int] = {}

    def are_there() -> bool:
        for name, ids in targets.items():
            found = Counter(ids())
            assert found <= wanted, f"too often in {name}: {(found - wanted).most_common(3)}"
            missing[name] = (wanted - found).total()
        return not any(missing.values())

    try:
        eventually(f"{wanted.total()} rows", are_there, SECONDS)
    except AssertionError as problem:
        raise AssertionError(f"{problem}: missing {missing}") from None


def ids_in_table(dsn: str, table: str) -> list[int]:
    return [row[0] for row in rows_of(dsn, f"SELECT id FROM {table}")]


def ids_in_topic(bootstrap: str, topic: str) -> list[int]:
    """Return the ids that a consumer of committed records sees."""
    return [value["id"] for _, _, value in committed(bootstrap, topic)]


def ids_in_delta(table: Path) -> list[int]:
    if not DeltaTable.is_deltatable(str(table)):
        return []
    return list(DeltaTable(str(table)).to_pyarrow_table(columns=["id"])["id"].to_pylist())


def ids_in_files(folder: Path) -> list[int]:
    files = committed_files(folder)
    return list(pq.ParquetDataset(files).read(columns=["id"])["id"].to_pylist()) if files else []
