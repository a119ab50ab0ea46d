"""What the two servers have in common: a folder, one process, and facts that outlive it."""

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
    """A server that lives in ``workdir``: its data, its log and the facts that must not change.

    The same ``workdir`` is the same server, on the same ports, also for another process. As a context
    manager it starts the server and stops it.
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
        """End the server in order, if it runs."""

    @abstractmethod
    def remove_data(self) -> None:
        """Stop the server and delete its data. The log stays."""

    @property
    def pid(self) -> int | None:
        """The server's process id while it runs, else None."""
        return self._process.pid

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self._process.log

    def kill(self) -> None:
        """End the server at once (SIGKILL), as a crash would, and wait until it is gone."""
        self._process.end((signal.SIGKILL, 30.0))

    def restart(self) -> None:
        """Stop and start, on the same ports with the same data."""
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
        """What an earlier process wrote with ``_keep_facts``; empty for a new server."""
        try:
            facts: dict[str, Any] = json.loads(self._facts_file.read_text())
        except FileNotFoundError:
            return {}
        return facts

    def _keep_facts(self, **facts: object) -> None:
        write_private(self._facts_file, json.dumps(facts, indent=2) + "\n")

    def _wait_until_ready(self, problem: Callable[[], str | None], *, timeout_s: float) -> None:
        """Wait until ``problem()`` is None; else end the process and raise with what its log says."""
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
    """Write a file at once and whole, for our own eyes only (it may hold a password)."""
    fresh = path.with_name(path.name + ".new")
    fresh.touch(mode=0o600)
    fresh.write_text(text)
    fresh.replace(path)


def remove_tree(path: Path) -> None:
    """Delete a folder, or the folder that a link points to together with the link."""
    if path.is_symlink():
        shutil.rmtree(path.resolve(), ignore_errors=True)
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
