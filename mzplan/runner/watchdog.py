"""The watchdog of a runner: stops the process if no query can make progress, even if a thread hangs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from mzplan.runner.loop import Runner
from mzplan.runner.shutdown import DEAD_ENGINE_SECONDS, exit_within

log = logging.getLogger("mzplan.runner")

CHECK_INTERVAL = 1.0  # seconds between two checks
MAX_CHECKS = 600  # checks during one round; time would also pass while the process is suspended


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
        self._checks = 0  # checks since that round ended

    def start(self) -> None:
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def close(self) -> None:
        """Stop the watchdog, because the runner is shutting down."""
        self._closed.set()

    def check(self) -> str | None:
        """Return why the runner can't continue; None while it can. Call every CHECK_INTERVAL seconds."""
        if (why := self._executor.failure_reason()) is not None:
            return why
        if self._round_ended_at != self._runner.round_ended_at:
            self._round_ended_at, self._checks = self._runner.round_ended_at, 0
        self._checks += 1
        if self._checks > MAX_CHECKS:
            return f"No round of the runner has ended for {MAX_CHECKS * CHECK_INTERVAL:.0f} s."
        return None

    def _run(self) -> None:
        while not self._closed.wait(CHECK_INTERVAL):
            if (why := self.check()) is not None:
                log.error("%s Stopping the runner.", why)
                exit_within(DEAD_ENGINE_SECONDS, lambda: self._end(why))
                self._executor.kill()
                self._fail(why)
                return
