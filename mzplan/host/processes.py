"""Processes of this machine: whether a process is alive, or another process has its pid now."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
from collections.abc import Callable
from pathlib import Path

_STATE, _PARENT, _STARTED = 0, 1, 19  # fields of /proc/PID/stat after the name

SCRATCH_PREFIX = "mzplan-spark-"  # of the name of a runner's temporary folder, removed when the runner exits
LOG_FORMAT_VARIABLE = "MZPLAN_LOG_FORMAT"  # text or json, for a runner and the JVM that it starts


def started_at(pid: int) -> float:
    """Return when a process started, in clock ticks since boot; 0.0 if the system doesn't report it."""
    return float(_stat(pid, _STARTED) or 0)


def pid_space() -> str:
    """Return the boot of the machine and the pid namespace, within which a pid means the same process.

    Returns "" if the system reports neither.
    """
    boot = _read_or_empty(lambda: Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    namespace = _read_or_empty(lambda: str(Path("/proc/self/ns/pid").readlink()))
    return f"{boot} {namespace}".strip()


def is_alive(pid: int, started: float = 0.0) -> bool:
    """Whether the process is alive. With `started` (from `started_at`), it must also be the same process."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # no such process, or the number is too large for a pid
        return False
    except PermissionError:
        pass
    if _stat(pid, _STATE) == "Z":
        return False
    now = started_at(pid)
    return not (started and now) or now == started


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal if the process still runs. It may end at any time before the call."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def children() -> frozenset[int]:
    """Return the running processes that this process started; none if the system doesn't list processes."""
    own_pid, pids = str(os.getpid()), (int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
    return frozenset(pid for pid in pids if _stat(pid, _PARENT) == own_pid)


def _stat(pid: int, field: int) -> str:
    """Return a field of `/proc/PID/stat`; "" without such a process. Field 0 is the one after the name."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return text.rpartition(")")[2].split()[field]
    except (OSError, IndexError):
        return ""


def _read_or_empty(read: Callable[[], str]) -> str:
    try:
        return read()
    except (OSError, ValueError):
        return ""


def user() -> str:
    """Return the name of the user, or the user id if there is no name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may have no entry for the user
        return str(os.getuid())
