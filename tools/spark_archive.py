"""Write the archive of Spark's classes with which the drivers of tests start in half the time.

A driver that streams a little dumps what it has loaded when it ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mzplan.spark.session import open_session
from tests.java_options import ARCHIVE, start_quickly

SECONDS = 300.0


def main() -> None:
    print("Archiving Spark's classes, so that each driver of the tests starts in half the time …", flush=True)
    ARCHIVE.unlink(missing_ok=True)
    environment = dict(os.environ)
    start_quickly(environment, "ArchiveClassesAtExit")
    command = [sys.executable, "-m", "tools.spark_archive", "stream"]
    started = subprocess.Popen(command, env=environment, start_new_session=True)
    failed = started.wait(SECONDS)
    until = time.monotonic() + SECONDS
    while _is_alive(started.pid) and time.monotonic() < until:  # its JVM writes the archive after its end
        time.sleep(0.2)
    if failed or not ARCHIVE.exists():
        print("It was not written: they start without.")


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _stream() -> None:
    session = open_session("archive", {})
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "in").mkdir()
        (Path(folder) / "in" / "1.json").write_text('{"id": 1, "v": "x"}\n')
        rows = session.readStream.schema("id BIGINT, v STRING").json(f"{folder}/in").where("id > 0")
        for sink in ("parquet", "delta"):
            query = (
                rows.writeStream.format(sink)
                .option("checkpointLocation", f"{folder}/checkpoint-{sink}")
                .start(f"{folder}/{sink}")
            )
            query.processAllAvailable()
            query.stop()
            session.read.format(sink).load(f"{folder}/{sink}").groupBy("v").count().collect()
    # Not stopped: the JVM of a session that was stopped ends without its dump.


if __name__ == "__main__":
    _stream() if sys.argv[1:] == ["stream"] else main()
