"""Ends every process that a run of tests has started, even if the run was interrupted or killed.

A process inherits the environment of its parent; this includes servers, JVMs and runners that left pytest's
session. `watch` puts a mark into pytest's environment, and starts this file as a script. The script waits
until pytest ends, then kills all processes that have the mark. This works only on Linux.
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
GRACE_S = 2.0  # Workers of pytest-xdist end by themselves in this time.
LIMIT_S = 60.0


def watch() -> None:
    """Mark the processes that this process will start. A run inside a test has the marks of both runs."""
    if sys.platform != "linux":
        return
    mark = f"{os.environ.get(VARIABLE, '')}/{uuid.uuid4().hex}"
    os.environ[VARIABLE] = mark
    command = (sys.executable, "-ISB", __file__, mark, str(os.getpid()))
    # The script has no mark and no terminal, so neither the script itself nor Ctrl-C ends it.
    subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env={}, start_new_session=True
    )


def _marked(mark: str) -> Iterator[tuple[int, int]]:
    """Yield the pids of the marked processes, each with a pidfd, which no later process can take over."""
    start = f"{VARIABLE}={mark}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            process = os.pidfd_open(int(folder.name))
        except OSError:
            continue  # The process has ended.
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            if any(one == start or one.startswith(start + b"/") for one in environment):
                yield int(folder.name), process
        except OSError:
            pass  # The process has ended, or belongs to another user.
        finally:
            os.close(process)


def _reap(mark: str) -> set[int]:
    """End all marked processes. Returns the pids of those that had to be killed."""
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
        if os.getppid() == pytest:  # Otherwise pytest has ended, and another process may have its pid.
            select.select([watched], [], [])
    except ProcessLookupError:
        pass
    if killed := _reap(mark):
        print(f"Ended what the run of tests left: {len(killed)} processes", file=sys.stderr)


if __name__ == "__main__":
    _main(sys.argv[1], int(sys.argv[2]))
