"""A run of tests that is interrupted or killed leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.machines import command_line, environment_of
from tests.support import eventually

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(sys.platform != "linux", reason="the reaper reads /proc"),
]
# As a server, or a runner that `apply` has started: in a session of its own, tied to nobody, and deaf.
STARTS = """
import subprocess, sys, time
from pathlib import Path

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"

def start():
    return subprocess.Popen([sys.executable, "-c", DEAF], start_new_session=True)

def test_one():
    start()
    (Path(__file__).parent / "started").touch()
    {then}
"""


def of_run(folder: Path) -> set[int]:
    """The processes that have been started by a run on this folder, itself among them."""
    pids = (int(one.name) for one in Path("/proc").glob("[0-9]*"))
    return {pid for pid in pids if f"MZPLAN_TRIED_IN={folder}" in environment_of(pid).split()}


def run(folder: Path, *tests: Path | str) -> subprocess.Popen[str]:
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
    return subprocess.Popen(
        [*command, "--basetemp", folder / "temporary", *tests],
        cwd=ROOT,
        env={**os.environ, "MZPLAN_TRIED_IN": str(folder)},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def small(folder: Path, then: str) -> tuple[str, ...]:
    """A test that starts a process and goes on."""
    (folder / "conftest.py").write_text("from tests.conftest import pytest_configure  # noqa: F401\n")
    (folder / "test_it.py").write_text(STARTS.format(then=then))
    return ("-c", os.devnull, "--rootdir", str(folder), str(folder))


def end(running: subprocess.Popen[str], number: signal.Signals) -> None:
    if number == signal.SIGINT:
        os.killpg(running.pid, number)  # as a terminal does
    else:
        running.send_signal(number)
    running.communicate(timeout=120)


FEW, MANY = (), ("-n", "2")


@pytest.mark.parametrize(
    ("number", "workers"),
    [
        (signal.SIGINT, FEW),
        (signal.SIGINT, MANY),
        (signal.SIGTERM, MANY),
        (signal.SIGKILL, MANY),
    ],
)
def test_a_run_that_is_ended_takes_all_along(
    tmp_path: Path, number: signal.Signals, workers: tuple[str, ...]
) -> None:
    beside = subprocess.Popen(["sleep", "600"])  # of this run, and not of that one
    running = run(tmp_path, *small(tmp_path, "time.sleep(600)"), *workers)
    try:
        eventually("it has started a process", (tmp_path / "started").exists, 60)
        assert len(of_run(tmp_path)) >= 2
        end(running, number)
        eventually("nothing is left of it", lambda: not of_run(tmp_path), 60)
        assert beside.poll() is None
    finally:
        beside.kill()
        beside.wait()
        running.kill()


def test_servers_runners_and_their_jvms_are_taken_along(tmp_path: Path) -> None:
    running = run(tmp_path, "tests/integration/test_pipeline.py", "-n", "1", "--dist", "loadfile")

    def started() -> bool:
        assert running.poll() is None, running.communicate()
        lines = [command_line(pid) for pid in of_run(tmp_path)]
        wanted = ("kafka.Kafka", "bin/postgres", "mzplan -C", "org.apache.spark.deploy.SparkSubmit")
        return all(any(word in line for line in lines) for word in wanted)

    try:
        eventually("all is started", started, 240)
        end(running, signal.SIGTERM)
        eventually("nothing is left of it", lambda: not of_run(tmp_path), 60)
    finally:
        running.kill()


def test_so_does_one_that_ends_by_itself_and_says_so(tmp_path: Path) -> None:
    printed, _ = run(tmp_path, *small(tmp_path, "pass")).communicate(timeout=120)
    eventually("nothing is left of it", lambda: not of_run(tmp_path), 60)
    assert "1 passed" in printed
    assert "Ended what the run of tests left: 1 processes" in printed
