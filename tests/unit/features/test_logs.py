"""The log of a runner: bounded, whatever writes to it, and read as one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mzplan.operations.logs import entries

WRITER = """\
import os, sys, threading, time
from pathlib import Path
from mzplan.runner import logs

logs.LIMIT, logs._CHECK_INTERVAL = 4000, 0.01
log, stopping = Path(sys.argv[1]), threading.Event()
thread = threading.Thread(target=logs.rotate, args=(log, stopping))
thread.start()
logs.configure_logging()
for number in range(200):
    logs.logging.getLogger("mzplan.runner").info("line %d", number)
    os.write(1, b"sink.hot step 1: printed\\n")
    time.sleep(0.001)
stopping.set()
thread.join()
"""


def test_a_log_is_bounded_and_its_parts_are_read_in_order(tmp_path: Path) -> None:
    log = tmp_path / "local.log"
    for _ in range(2):  # the next runner goes on with it
        with log.open("ab") as output:
            subprocess.run([sys.executable, "-c", WRITER, log], stdout=output, stderr=output, check=True)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["local.log", "local.log.1", "local.log.2", "local.log.3"]
    assert all(path.stat().st_size < 40_000 for path in tmp_path.iterdir())
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir() if path != log)
    found = list(entries("local", log))
    numbers = [int(one.message.split()[1]) for one in found if one.message.startswith("line ")]
    assert numbers[-1] == 199 and len(numbers) > 40
    assert numbers == [*range(numbers[0], 200)] or numbers == [*range(numbers[0], 200), *range(200)]
    assert any(one.message == "sink.hot step 1: printed" for one in found)
    before = [path.stat().st_size for path in sorted(tmp_path.iterdir())]
    done = subprocess.run([sys.executable, "-c", WRITER, log], capture_output=True, check=True)
    assert b"line 199" in done.stderr, "the log isn't its standard error, so it isn't rotated"
    assert [path.stat().st_size for path in sorted(tmp_path.iterdir())] == before


def test_a_log_that_is_rotated_meanwhile_is_read_once(tmp_path: Path) -> None:
    log = tmp_path / "local.log"
    log.write_text("2026-01-31T10:00:00.123Z INFO a: one\n")
    os.link(log, tmp_path / "local.log.1")
    assert [one.message for one in entries("local", log)] == ["one"]
