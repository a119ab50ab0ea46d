"""The watchdog of a runner: ends the process if no query can make progress, even if a thread hangs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from mzplan.runner.ending import GONE, end_within
from mzplan.runner.loop import Runner

log = logging.getLogger("mzplan.runner")

LOOK = 1.0  # seconds between two looks
HUNG = 600  # looks without the end of a round; a count, because time also passes while a process is suspended


class Watchdog:
    """Checks the engine and the loop on a thread of its own, because the loop may hang in a call.

    `fail`: called with the reason, a sentence; makes the main thread end.
    `end`: called with the reason if the main thread doesn't end.
    """

    def __init__(self, runner: Runner, fail: Callable[[str], None], end: Callable[[str], None]):
        self._runner = runner
        self._executor = runner.controller.executor
        self._fail, self._end = fail, end
        self._closed = threading.Event()
        self._round_ended_at = runner.round_ended_at
        self._looks = 0  # looks since that round ended

    def start(self) -> None:
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def close(self) -> None:
        """Stop the watchdog, because the runner is ending."""
        self._closed.set()

    def look(self) -> str | None:
        """Return why the runner can't continue; None while it can. Call every LOOK seconds."""
        if (why := self._executor.failure_reason()) is not None:
            return why
        if self._round_ended_at != self._runner.round_ended_at:
            self._round_ended_at, self._looks = self._runner.round_ended_at, 0
        self._looks += 1
        if self._looks > HUNG:
            return f"No round of the runner has ended for {HUNG * LOOK:.0f} s."
        return None

    def _run(self) -> None:
        while not self._closed.wait(LOOK):
            if (why := self.look()) is not None:
                log.error("%s The runner ends.", why)
                end_within(GONE, lambda: self._end(why))
                self._executor.kill()
                self._fail(why)
                return
