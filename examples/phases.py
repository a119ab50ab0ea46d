"""The phases of a demonstration. It prints them while it waits, and their durations at the end."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager

from examples.servers import LastingThread, ServerError

_SAY_EVERY_S = 10.0


def say(text: str) -> None:
    """Print a heading."""
    print(f"\n\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


class Phases:
    """The phases of one run.

    ``since``: when the installation began, in seconds since the epoch; None without an installation.
    ``given_up``: set once a task has failed, so that tasks which poll can end.
    """

    def __init__(self, since: float | None = None) -> None:
        now = time.time()
        self._began = time.monotonic() - (now - since if since is not None else 0.0)
        self._rows: list[tuple[str, float]] = [("packages", now - since)] if since is not None else []
        self.given_up = threading.Event()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Record the time spent in the block as one phase."""
        began = time.monotonic()
        yield
        self._rows.append((name, time.monotonic() - began))

    def together(self, name: str, tasks: Mapping[str, Callable[[], object]]) -> None:
        """Run all tasks at once, as one phase with a line for each of them.

        Returns when all have ended, even if one fails, because a server that is still starting can't be
        stopped. Raises the first failure, and prints the others.
        """
        began = time.monotonic()
        row = len(self._rows)
        waiting: dict[Future[None], str] = {}
        failures: list[BaseException] = []
        try:
            for task, work in tasks.items():
                waiting[LastingThread(work).outcome] = task
            while waiting:
                ended, _ = wait(waiting, timeout=_SAY_EVERY_S, return_when=FIRST_COMPLETED)
                seconds = time.monotonic() - began
                for future in ended:
                    task, problem = waiting.pop(future), future.exception()
                    if problem is not None:
                        print(f"  ✗ {task}: after {seconds:.1f} s", flush=True)
                        failures.append(problem)
                        self.given_up.set()
                    elif not failures:  # after a failure, it may only have given up
                        print(f"  ✓ {task}: after {seconds:.1f} s", flush=True)
                        self._rows.append((f"  {task}", seconds))
                if waiting and (failures or not ended):
                    what = "waiting for" if not failures else "to stop everything, waiting for"
                    print(f"  … {seconds:.0f} s: {what} {' and '.join(waiting.values())}", flush=True)
        except BaseException:  # Ctrl-C
            self.given_up.set()
            wait(waiting)
            raise
        for further in failures[1:]:
            print(f"error: {further}", file=sys.stderr)
        if failures:
            raise failures[0]
        self._rows.insert(row, (name, time.monotonic() - began))

    def wait_for(self, what: str, done: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait until ``done`` returns true. Raises ServerError if that takes too long."""
        until = time.monotonic() + seconds
        while not done():
            if time.monotonic() > until:
                raise ServerError(f"timed out after {seconds:.0f} s, waiting for {what}")
            time.sleep(0.2)
        print(f"  {what}", flush=True)

    def table(self) -> str:
        """Return a table of each phase with its seconds, and of their total."""
        rows = [*self._rows, ("all", time.monotonic() - self._began)]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"  {name:<{width}}  {seconds:6.1f} s" for name, seconds in rows)
