"""A signal to a command that has a Spark session of its own, such as `mzplan verify`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.support import eventually

# A command on a real session, in place of verify's comparison: its query never ends. Like verify, it reads
# rows that Python tasks made, takes any error of Spark for a finding, and prints its findings at the end.
COMMAND = """\
import sys
from mzplan.cli.context import Invocation
from mzplan.cli.exit import run_to_exit
from mzplan.spark.command_session import close_command_session, open_command_session

def run():
    print("starting", flush=True)
    session, findings = open_command_session(), []
    try:
        session._jvm.org.slf4j.LoggerFactory.getLogger("noise").warn("A line of Spark's log")
        session.createDataFrame([(1,)], "id INT").collect()
        work(session, lambda: session.range(10**15).selectExpr("sum(id % 7)").collect())
    except Exception as problem:
        findings.append(problem)
    finally:
        close_command_session(session)
    print("False findings:", findings, file=sys.stderr)

def work(session, endless):
    if "finalizer" in sys.argv:  # Python ignores exceptions there, and Py4J has finalizers
        class Collected:
            def __del__(self):
                print("finalizer", flush=True)
                endless()
        Collected()
        session.range(1).collect()
    elif "batch" in sys.argv:
        def batch(rows, step):
            print("batch", flush=True)
            endless()
        rows = session.readStream.format("rate").load()
        rows.writeStream.foreachBatch(batch).trigger(once=True).start().awaitTermination()
    else:
        print("working", flush=True)
        endless()

sys.exit(run_to_exit(Invocation(), run))
"""
MARK = "MZPLAN_TEST_INTERRUPTED"


@pytest.mark.skipif(sys.platform != "linux", reason="it looks for left processes in /proc")
@pytest.mark.parametrize(
    ("begun", "number"),
    [
        ("starting", signal.SIGTERM),
        ("working", signal.SIGINT),
        pytest.param("batch", signal.SIGTERM, marks=pytest.mark.nightly),
        pytest.param("finalizer", signal.SIGINT, marks=pytest.mark.nightly),
    ],
)
def test_one_line_exit_130_and_no_java_is_left(tmp_path: Path, begun: str, number: signal.Signals) -> None:
    mark = uuid.uuid4().hex
    running = subprocess.Popen(
        [sys.executable, "-c", COMMAND, begun],
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
    if begun != "starting":
        time.sleep(1)  # until Spark is computing
    eventually("Java runs", lambda: len(marked(mark)) > 1)
    os.killpg(running.pid, number)  # as a terminal and `timeout` do
    _, told = running.communicate(timeout=60)
    assert running.returncode == 130
    assert told.splitlines() == ["Interrupted."]
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
