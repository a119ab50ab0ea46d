"""A server's process: started, found again by a later process, and ended without hitting another one.

A pid alone names a process only until it is reused. So a pid is recorded together with the moment at which
its process began, and both must fit before any signal is sent.
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
    """A user of the machine to run a server as."""

    name: str
    uid: int
    gid: int


def unprivileged_account() -> Account | None:
    """Whom to run as a server that refuses root: None (ourselves) unless we are root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid)
    # Any number will do: the kernel asks for no entry in the user database, and neither does PostgreSQL.
    return Account(name="65534", uid=65534, gid=65534)


def began(pid: int) -> str | None:
    """When the process began, as a string to compare; None if there is no such process (or a dead one)."""
    try:
        fields = _fields(Path(f"/proc/{pid}/stat"))
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None if Path("/proc/self/stat").exists() else _began_by_ps(pid)
    state, threads, ticks = fields[0], int(fields[17]), fields[19]
    # A process whose first thread is dead may have others on their way out, which still hold its ports.
    ended = state in "ZX" and threads <= 1
    return None if ended else f"{boot}/{ticks}"


def children_of(pid: int) -> list[int]:
    """The pids of the process's direct children (empty where there is no /proc)."""
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
    """The pids of the process's children, of their children, and so on."""
    children = children_of(pid)
    return [*children, *(one for child in children for one in descendants_of(child))]


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal, if the process still runs: it may end at any moment."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@contextlib.contextmanager
def frozen(pid: int) -> Iterator[None]:
    """The process and all below it stand still meanwhile."""
    stopped: set[int] = set()
    try:
        # A signal arrives a little later than it is sent, and a child may be started meanwhile.
        while awake := [one for one in (pid, *descendants_of(pid)) if _state(one) not in "TtZX"]:
            for one in awake:
                send(one, signal.SIGSTOP)
            stopped.update(awake)
        yield
    finally:
        for one in stopped:
            send(one, signal.SIGCONT)


def _state(pid: int) -> str:
    """The letter that ps shows; X (dead) where there is no such process, or no /proc."""
    try:
        return _fields(Path(f"/proc/{pid}/stat"))[0]
    except OSError:
        return "X"


def _fields(stat: Path) -> list[str]:
    """Of a process's stat in /proc, what follows its program's name, in brackets, which may hold blanks.
    Raises OSError where there is no such process."""
    return stat.read_text().rpartition(")")[2].split()


def wait_until_gone(pids: Sequence[int], *, timeout_s: float) -> bool:
    """Wait for processes that have been told to end; False when the time is up."""
    deadline = time.monotonic() + timeout_s
    known = {pid: began(pid) for pid in pids}
    while any(moment is not None and began(pid) == moment for pid, moment in known.items()):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class LastingThread(threading.Thread):
    """Does some work, whose ``outcome`` is a future, and then lives on until this process ends: the processes
    that it has started are tied to this process, as if the main thread had started them."""

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
        """The process's pid while it runs, whoever started it."""
        if self._child is not None:
            self._child.poll()  # else our own child, once dead, would stay as a zombie
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
        """Start the process in a session of its own, so that a Ctrl-C in this terminal doesn't reach it.

        Unless ``detached``, the kernel sends it the signal ``when_orphaned`` should this process die without
        having ended it (Linux, with util-linux's setpriv).
        """
        # The kernel ties a child to the *thread* that started it; one that will end soon can't be a parent.
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
        """Wait for the end of the process; False when the time is up."""
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
        """The last lines of the log."""
        try:
            with self.log.open(errors="replace") as log:
                return "".join(deque(log, maxlen=lines)).rstrip()
        except FileNotFoundError:
            return ""


def _began_by_ps(pid: int) -> str | None:
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True)
    return shown.stdout.strip() or None
