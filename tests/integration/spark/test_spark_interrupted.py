"""A signal to a command that has a Spark session of its own, such as `mzplan verify`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from tests.support import eventually

# A command on a real session, in place of verify's comparison: its query never ends.
COMMAND = """\
import sys
from mzplan.cli.context import Invocation
from mzplan.cli.exit import run_to_exit
from mzplan.spark.command_session import close_command_session, open_command_session

def run():
    print("starting", flush=True)
    session = open_command_session()
    try:
        print("working", flush=True)
        session.range(10**15).selectExpr("sum(id * id % 7)").collect()
    finally:
        close_command_session(session)

sys.exit(run_to_exit(Invocation(), run))
"""
MARK = "MZPLAN_TEST_INTERRUPTED"


@pytest.mark.skipif(sys.platform != "linux", reason="it looks for left processes in /proc")
@pytest.mark.parametrize("begun", ["starting", "working"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_line_exit_130_and_no_java_is_left(tmp_path: Path, begun: str, number: signal.Signals) -> None:
    mark = uuid.uuid4().hex
    running = subprocess.Popen(
        [sys.executable, "-c", COMMAND],
        cwd=tmp_path,
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert running.stdout is not None
    while running.stdout.readline().strip() != begun:
        assert running.poll() is None
    eventually("Java runs", lambda: len(marked(mark)) > 1)
    os.killpg(running.pid, number)  # as a terminal and `timeout` do
    _, told = running.communicate(timeout=60)
    assert running.returncode == 130
    lines = [line for line in told.splitlines() if " WARN " not in line]
    assert lines == ["Interrupted."]
    # Killed, not asked to end: it's gone as soon as the kernel has removed it.
    eventually("no process is left", lambda: not marked(mark), 2)


def marked(mark: str) -> list[str]:
    """The processes that the command has started, and it."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                found.append(folder.name)
        except OSError:
            continue
    return found
