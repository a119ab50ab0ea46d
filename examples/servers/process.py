"""Starts a server's process, finds it again from a later process, and stops it but never another process.

The system reuses pids. A pid is therefore recorded together with the start time of its process, and both must
match before a signal is sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A user of the machine, as which a server runs."""

    name: str
    uid: int
    gid: int


def unprivileged_account() -> Account | None:
    """Return the account for a server that refuses root; None, for our own account, unless we are root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid)
    # Any number works: neither the kernel nor PostgreSQL needs an entry in the user database.
    return Account(name="65534", uid=65534, gid=65534)


def began(pid: int) -> str | None:
    """Return the process's start time, as a string to compare; None if it is dead or doesn't exist."""
    try:
        fields = _fields(Path(f"/proc/{pid}/stat"))
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _began_by_ps(pid)
    state, threads, ticks = fields[0], int(fields[17]), fields[19]
    # If the first thread is dead, other threads may still be ending, and hold the ports until then.
    ended = state in "ZX" and threads <= 1
    return None if ended else f"{boot}/{ticks}"


def children_of(pid: int) -> list[int]:
    """Return the pids of the process's direct children; an empty list without /proc."""
    children = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(_fields(path)[1])
        except OSError:
            continue
        if parent == pid:
            children.append(int(path.parent.name))
    return children


def descendants_of(pid: int) -> list[int]:
    """Return the pids of all descendants of the process."""
    children = children_of(pid)
    return [*children, *(one for child in children for one in descendants_of(child))]


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal; ignore a process that has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Freeze the process and all its descendants while the block runs."""
    stopped: set[int] = set()
    try:
        # A signal arrives with a delay, and the process may start a child meanwhile.
        while awake := [one for one in (pid, *descendants_of(pid)) if _state(one) not in "TtZX"]:
            for one in awake:
                send(one, signal.SIGSTOP)
            stopped.update(awake)
        yield
    finally:
        for one in stopped:
            send(one, signal.SIGCONT)


def _state(pid: int) -> str:
    """Return the process's state as ps shows it; X (dead) without such a process, or without /proc."""
    try:
        return _fields(Path(f"/proc/{pid}/stat"))[0]
    except OSError:
        return "X"


def _fields(stat: Path) -> list[str]:
    """Return the fields after the program's name in a stat file of /proc. The name may contain blanks.

    Raises OSError if there is no such process.
    """
    return stat.read_text().rpartition(")")[2].split()


def wait_until_gone(pids: Sequence[int], *, timeout_s: float) -> bool:
    """Wait until the processes have ended. Return False if they haven't in time."""
    deadline = time.monotonic() + timeout_s
    known = {pid: began(pid) for pid in pids}
    while any(moment is not None and began(pid) == moment for pid, moment in known.items()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class LastingThread(threading.Thread):
    """Does some work, and then stays alive until this process ends. ``outcome`` is the work's future.

    The kernel ties a child process to the thread that started it. Because this thread stays alive, its
    children live as long as this process, as if the main thread had started them.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.outcome: Future[None] = Future()
        self._work = work
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as problem:
            self.outcome.set_exception(problem)
        else:
            self.outcome.set_result(None)
        threading.Event().wait()


class ServerProcess:
    """At most one process, with its pid file ``<name>.pid`` and its log ``<name>.log`` in ``workdir``."""

    def __init__(self, name: str, workdir: Path) -> None:
        self.log = workdir / f"{name}.log"
        self._pid_file = workdir / f"{name}.pid"
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Return the pid of the process while it runs, even if an earlier process has started it."""
        if self._child is not None:
            self._child.poll()  # otherwise our child would stay as a zombie after it ends
        try:
            record = json.loads(self._pid_file.read_text())
        except FileNotFoundError:
            return None
        pid = int(record["pid"])
        now = began(pid)
        return pid if now is not None and now == record["began"] else None

    def spawn(
        self,
        command: Sequence[str | Path],
        *,
        detached: bool,
        cwd: Path,
        account: Account | None = None,
        env: Mapping[str, str] | None = None,
        when_orphaned: str = "KILL",
    ) -> None:
        """Start the process in its own session, so that a Ctrl-C in this terminal doesn't reach it.

        Unless ``detached``, the kernel sends it the signal ``when_orphaned`` if this process dies first. This
        needs Linux and setpriv from util-linux.
        """
        # The kernel ties a child to the *thread* that started it, so a thread that ends soon can't do this.
        thread = threading.current_thread()
        if not detached and (thread is threading.main_thread() or isinstance(thread, LastingThread)):
            setpriv = shutil.which("setpriv")
            command = [setpriv, "--pdeathsig", when_orphaned, *command] if setpriv else command
        with self.log.open("ab") as log:
            self._child = subprocess.Popen(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                cwd=cwd,
                env=env,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
            )
        record = {"pid": self._child.pid, "began": began(self._child.pid)}
        fresh = self._pid_file.with_suffix(".new")
        fresh.write_text(json.dumps(record))
        fresh.replace(self._pid_file)

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process still runs."""
        pid = self.pid
        if pid is not None:
            send(pid, number)

    def wait(self, *, timeout_s: float) -> bool:
        """Wait until the process has ended. Return False if it hasn't in time."""
        deadline = time.monotonic() + timeout_s
        while self.pid is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        self._pid_file.unlink(missing_ok=True)
        return True

    def end(self, *steps: tuple[signal.Signals, float]) -> None:
        """Send one signal after the other, each with its time limit in seconds, until the process is gone."""
        for number, timeout_s in steps:
            self.send(number)
            if self.wait(timeout_s=timeout_s):
                return

    def tail(self, lines: int = 20) -> str:
        """Return the last lines of the log."""
        try:
            with self.log.open(errors="replace") as log:
                return "".join(deque(log, maxlen=lines)).rstrip()
        except FileNotFoundError:
            return ""


def _began_by_ps(pid: int) -> str | None:
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True)
    return shown.stdout.strip() or None
