"""The base class of the servers: a folder, one process, and facts that outlive the process."""

from __future__ import annotations

import json
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from examples.servers.errors import ServerError
from examples.servers.process import ServerProcess


class Server(ABC):
    """A server with its data, its log and its permanent facts in ``workdir``.

    The same ``workdir`` gives the same server, on the same ports, also in another process. As a context
    manager, it starts the server and stops it.
    """

    name: ClassVar[str]

    def __init__(self, workdir: Path) -> None:
        workdir.mkdir(parents=True, exist_ok=True)
        self.workdir = workdir.resolve()
        self._process = ServerProcess(self.name, self.workdir)

    @abstractmethod
    def start(self) -> None:
        """Start the server unless it runs, and wait until it answers. Raises ServerError."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the server cleanly, if it runs."""

    @abstractmethod
    def remove_data(self) -> None:
        """Stop the server and delete its data. Keep the log."""

    @property
    def pid(self) -> int | None:
        """Return the server's process id while it runs; otherwise None."""
        return self._process.pid

    @property
    def log(self) -> Path:
        """Return the path of the server's log file."""
        return self._process.log

    def kill(self) -> None:
        """Kill the server (SIGKILL), as in a crash, and wait until it is gone."""
        self._process.end((signal.SIGKILL, 30.0))

    def restart(self) -> None:
        """Stop the server, and start it on the same ports with the same data."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _facts_file(self) -> Path:
        return self.workdir / f"{self.name}.json"

    def _facts(self) -> dict[str, Any]:
        """Return the facts that ``_keep_facts`` wrote, perhaps in an earlier process; {} for a new server."""
        try:
            facts: dict[str, Any] = json.loads(self._facts_file.read_text())
        except FileNotFoundError:
            return {}
        return facts

    def _keep_facts(self, **facts: object) -> None:
        write_private(self._facts_file, json.dumps(facts, indent=2) + "\n")

    def _wait_until_ready(self, problem: Callable[[], str | None], *, timeout_s: float) -> None:
        """Wait until ``problem()`` returns None. After the timeout, kill the process and raise ServerError.

        The error contains the end of the log.
        """
        deadline = time.monotonic() + timeout_s
        while (what := problem()) is not None:
            if self.pid is None:
                why = "its process ended while it started"
            elif time.monotonic() > deadline:
                why = f"it did not answer within {timeout_s:.0f} s ({what})"
            else:
                time.sleep(0.1)
                continue
            tail = self._process.tail()
            self.kill()
            raise ServerError(f"{self.name} did not start: {why}; its log is {self.log}", tail)


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically. Only this user can read it, because it may contain a password."""
    fresh = path.with_name(path.name + ".new")
    fresh.touch(mode=0o600)
    fresh.write_text(text)
    fresh.replace(path)


def remove_tree(path: Path) -> None:
    """Delete a folder. For a link, delete both the link and the folder to which it points."""
    if path.is_symlink():
        shutil.rmtree(path.resolve(), ignore_errors=True)
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
