"""What Spark logs, and what it leaves behind, of a driver in a folder of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

DRIVER = """\
import time
from mzplan.runner.logs import configure_logging
from mzplan.secrets.resolved import remember
from mzplan.spark.session import open_session

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
