"""Nothing that a run of tests has started outlives it, however it ends: orderly, interrupted or killed.

Every process inherits the environment of the one that starts it: so do servers, JVMs and runners that left
pytest's session and its parents. The run's mark is in that environment, and a process that waits for
pytest's end (this file as a script) kills what has the mark. Linux only: elsewhere nobody looks.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "MZPLAN_TESTS_OF_RUN"
GRACE_S = 2.0  # for what ends by itself, as workers of pytest-xdist do
LIMIT_S = 60.0


def watch() -> None:
    """Mark what this process will start. A run that a test of another one starts has the marks of both."""
    if sys.platform != "linux":
        return
    mark = f"{os.environ.get(VARIABLE, '')}/{uuid.uuid4().hex}"
    os.environ[VARIABLE] = mark
    command = (sys.executable, "-ISB", __file__, mark, str(os.getpid()))
    # Without the mark, and where no signal of the terminal arrives. Its one line goes to pytest's own stderr.
    subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env={}, start_new_session=True
    )


def _marked(mark: str) -> Iterator[tuple[int, int]]:
    """The processes that have the mark, each with a file descriptor that stands for no later process."""
    start = f"{VARIABLE}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            process = os.pidfd_open(int(folder.name))
        except OSError:
            continue  # it has ended
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            if any(one == start or one.startswith(start + b"/") for one in environment):
                yield int(folder.name), process
        except OSError:
            pass  # somebody else's, or ended
        finally:
            os.close(process)


def _reap(mark: str) -> set[int]:
    """End all that have the mark; returns the pids of those that had to be killed."""
    killed: set[int] = set()
    begin = time.monotonic()
    while (spent := time.monotonic() - begin) < LIMIT_S:
        found = 0
        for pid, process in _marked(mark):
            found += 1
            if spent > GRACE_S:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    killed.add(pid)
        if not found:
            break
        time.sleep(0.05)
    return killed


def _main(mark: str, pytest: int) -> None:
    try:
        watched = os.pidfd_open(pytest)
        if os.getppid() == pytest:  # else it has ended, and the number may be another's by now
            select.select([watched], [], [])
    except ProcessLookupError:
        pass
    if killed := _reap(mark):
        print(f"Ended what the run of tests left: {len(killed)} processes", file=sys.stderr)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
