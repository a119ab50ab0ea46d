"""Write an archive of Spark's classes, with which the drivers of tests start in half the time.

A driver runs two small streams. When it exits, its JVM writes the classes that it has loaded.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mzplan.host.processes import is_alive
from mzplan.spark.process.session import open_session
from tests.java_options import ARCHIVE, start_quickly

SECONDS = 300.0


def main() -> None:
    print("Archiving Spark's classes, so that each driver of the tests starts in half the time …", flush=True)
    ARCHIVE.unlink(missing_ok=True)
    environment = dict(os.environ)
    start_quickly(environment, "ArchiveClassesAtExit")
    command = [sys.executable, "-m", "tools.spark_archive", "stream"]
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=False
    )
    until = time.monotonic() + SECONDS
    while done.stdout and is_alive(int(done.stdout)) and time.monotonic() < until:
        time.sleep(0.2)  # the JVM writes the archive when it ends, after its Python
    if done.returncode or not ARCHIVE.exists():
        print("The archive could not be written. Drivers start without it.")


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
    print(session.sparkContext._gateway.proc.pid)


if __name__ == "__main__":
    _stream() if sys.argv[1:] == ["stream"] else main()
