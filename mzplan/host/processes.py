"""Processes of this machine: which are alive, and which only reuse the pid of an earlier one."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

LOG_FORMAT_VARIABLE = "MZPLAN_LOG_FORMAT"  # text or json, for a runner and the JVM that it starts


def started_at(pid: int) -> float:
    """Return when a process started, in clock ticks since boot; 0.0 if the system doesn't report it."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return float(text.rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0.0


def pid_space() -> str:
    """Return where pids mean the same processes as here: this boot of the machine, and the pid namespace.

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
    if _is_zombie(pid):
        return False
    now = started_at(pid)
    return not (started and now) or now == started


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal if the process still runs. It may end at any time before the call."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def children() -> frozenset[int]:
    """Return the running processes that this process started; none if the system doesn't list processes."""
    own_pid, pids = str(os.getpid()), set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            text = (folder / "stat").read_text(encoding="ascii", errors="replace")
            if text.rpartition(")")[2].split()[1] == own_pid:
                pids.add(int(folder.name))
    return frozenset(pids)


def _is_zombie(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return text.rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


def _read_or_empty(read: Callable[[], str]) -> str:
    try:
        return read()
    except (OSError, ValueError):
        return ""
