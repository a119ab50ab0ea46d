"""What a demonstration waits for: said while it waits, and with its seconds at the end."""

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
    """A heading."""
    print(f"\n\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


class Phases:
    """The phases of one run. ``since`` is when its first one, the installation, began (seconds since the
    epoch), if there was one. ``given_up`` is set once something has failed: who polls is to end."""

    def __init__(self, since: float | None = None) -> None:
        now = time.time()
        self._began = time.monotonic() - (now - since if since is not None else 0.0)
        self._rows: list[tuple[str, float]] = [("packages", now - since)] if since is not None else []
        self.given_up = threading.Event()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is done meanwhile, as one phase."""
        began = time.monotonic()
        yield
        self._rows.append((name, time.monotonic() - began))

    def together(self, name: str, tasks: Mapping[str, Callable[[], object]]) -> None:
        """Run all tasks at once, as one phase with a line for each of them.

        Returns when all have ended, also when one fails: a server that is still being started could not be
        ended. Raises the first failure; others are printed.
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
                    elif not failures:  # else it may only have given up
                        print(f"  ✓ {task}: after {seconds:.1f} s", flush=True)
                        self._rows.append((f"  {task}", seconds))
                if waiting and (failures or not ended):
                    what = "waiting for" if not failures else "before all is ended, waiting for"
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
        """Wait until something holds. Raises ServerError when it does not in time."""
        until = time.monotonic() + seconds
        while not done():
            if time.monotonic() > until:
                raise ServerError(f"there are not {what} after {seconds:.0f} s")
            time.sleep(0.2)
        print(f"  {what}", flush=True)

    def table(self) -> str:
        """Each phase with its seconds, and all of them."""
        rows = [*self._rows, ("all", time.monotonic() - self._began)]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"  {name:<{width}}  {seconds:6.1f} s" for name, seconds in rows)
