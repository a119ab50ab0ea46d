"""Processes of this machine: which ones live, told apart from others that got the same pid later."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

LOG_FORMAT_VARIABLE = "MZPLAN_LOG_FORMAT"  # text or json: of a runner, and of the JVM that it starts


def started_at(pid: int) -> float:
    """When a process started, in clock ticks since boot; 0.0 where the system does not say."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return float(text.rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0.0


def pid_space() -> str:
    """What a pid has to be of to mean the same process as here: the boot of this machine, and a namespace of
    pids; "" where the system does not say."""
    boot = _said(lambda: Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
    namespace = _said(lambda: str(Path("/proc/self/ns/pid").readlink()))
    return f"{boot} {namespace}".strip()


def is_alive(pid: int, started: float = 0.0) -> bool:
    """Whether the process lives; with `started` (from `started_at`), whether it is still the same one."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # none, or not even a number that one could have
        return False
    except PermissionError:
        pass
    if _is_zombie(pid):
        return False
    now = started_at(pid)
    return not (started and now) or now == started


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal, if the process still runs: it may end between any look at it and this."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def children() -> frozenset[int]:
    """The processes that this one has started and that still run; none where the system does not say."""
    here, found = str(os.getpid()), set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            text = (folder / "stat").read_text(encoding="ascii", errors="replace")
            if text.rpartition(")")[2].split()[1] == here:
                found.add(int(folder.name))
    return frozenset(found)


def _is_zombie(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return text.rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


def _said(look: Callable[[], str]) -> str:
    try:
        return look()
    except (OSError, ValueError):
        return ""
