"""Processes with a Spark session of their own: a signal to a command such as `mzplan verify`; and what Spark
logs and leaves behind of a driver in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError

from mzplan.connectors.frames.micro_batches import micro_batch
from tests.integration.spark_lab import Lab
from tests.machines import environment_of
from tests.support import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# A command on a real session, in place of verify's comparison: its query never ends. Like verify, it reads
# rows that Python tasks made, takes any error of Spark for a finding, and prints its findings at the end.
COMMAND = """\
import sys
from mzplan.cli.context import Invocation
from mzplan.cli.exit import run_to_exit
from mzplan.spark.process.command_session import close_command_session, open_command_session

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
                print("finalizer", flush=True, file=sys.__stdout__)
                endless()
        Collected()
        session.range(1).collect()
    elif "batch" in sys.argv:
        def batch(rows, step):
            print("batch", flush=True, file=sys.__stdout__)
            endless()
        rows = session.readStream.format("rate").load()
        rows.writeStream.foreachBatch(batch).trigger(once=True).start().awaitTermination()
    else:
        print("working", flush=True, file=sys.__stdout__)
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


def marked(mark: str) -> list[int]:
    """The processes that the command has started, and it."""
    pids = (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
    return [pid for pid in pids if f"{MARK}={mark}" in environment_of(pid)]


DRIVER = """\
import time
from mzplan.runner.logs import configure_logging
from mzplan.secrets.resolved import remember
from mzplan.spark.process.session import open_session

configure_logging("json")
remember("geheim-17")
session = open_session("logs", {"spark.master": "local[1]"})
session.sql("CREATE TABLE t (a INT) USING parquet")
session.sql("INSERT INTO t VALUES (1)")
try:
    session.sql("SELECT CAST('geheim-17' AS INT) FROM t").collect()
except Exception as problem:
    assert "geheim-17" in str(problem)
java = session._jvm
logger = java.org.apache.logging.log4j.LogManager.getLogger("a.b.C")
logger.warn('two\\nlines "of" geheim-17')
logger.error("with a trace", java.java.lang.RuntimeException("boom"))
java.java.lang.System.err.println("a line of the JVM itself, geheim-17")
time.sleep(2)
"""


def test_each_line_is_one_object_with_our_keys_and_the_folder_stays_empty(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", DRIVER], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    lines = [json.loads(line) for line in ran.stderr.splitlines()]
    assert all(one.keys() >= {"time", "level", "logger", "message"} for one in lines)
    assert all(one.keys() <= {"time", "level", "logger", "message", "exception"} for one in lines)
    found = {one["message"]: one for one in lines}
    assert found['two\nlines "of" ***']["logger"] == "a.b.C"
    assert "RuntimeException: boom" in found["with a trace"]["exception"]
    assert found["a line of the JVM itself, ***"]["logger"] == "mzplan.spark.jvm"
    assert "geheim-17" not in ran.stderr
    assert list(tmp_path.iterdir()) == []  # no spark-warehouse, metastore_db or derby.log


def test_a_stop_interrupts_a_batch_with_a_long_error(lab: Lab) -> None:
    """Spark's check of an error recurses for each character of it."""
    spark, errors, began = lab.spark, list[BaseException](), threading.Event()
    java: Any = spark._jvm

    def sleep(_: DataFrame, __: int) -> None:
        with micro_batch(errors.append):
            began.set()
            try:
                java.java.lang.Thread.sleep(60_000)
            except Py4JJavaError as problem:
                raise ValueError("x" * 1_000_000) from problem

    query = spark.readStream.format("rate").load().writeStream.foreachBatch(sleep).start()
    assert began.wait(60)
    query.stop()
    assert query.exception() is None
    for problem, is_interruption in ((errors[0], True), (ValueError("x"), False)):
        with pytest.raises(RuntimeError) as raised, micro_batch(errors.append):
            raise problem
        error = java.py4j.Py4JException(str(raised.value))
        streaming = java.org.apache.spark.sql.execution.streaming.runtime
        assert is_interruption == streaming.StreamExecution.isInterruptionException(
            error, spark.sparkContext._jsc.sc()
        )
