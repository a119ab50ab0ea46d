"""Sends events one after the other, on a thread of its own, from a queue that never makes anybody wait."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable

from mzplan.host.extras import missing_extras_reported
from mzplan.runner.run_events.watch import RunEvent
from mzplan.secrets.resolved import shortened

log = logging.getLogger("mzplan.runner")

MOST = 1000  # events that wait; of more, the oldest are dropped
FIRST_WAIT, LAST_WAIT = 1.0, 60.0  # seconds until a server that takes no events is tried again
_SHOWN = 300  # characters of what a server, or a library, says


class NotTakenError(Exception):
    """The server will never take this event, whatever happens."""


class EventSender:
    """Begins at once, and sends until it is closed. `send` raises NotTakenError for an event that is to be
    dropped, and anything else where it is to be tried again. `server`: for people."""

    def __init__(self, send: Callable[[RunEvent], None], server: str, most: int = MOST):
        self.dropped = 0
        self._send = send
        self._server = server
        self._most = most
        self._queue: deque[RunEvent] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._problem = ""
        self._thread = threading.Thread(target=self._run, name="run events", daemon=True)
        self._thread.start()

    def put(self, event: RunEvent) -> None:
        """Any thread may; it takes no time."""
        with self._changed:
            if len(self._queue) >= self._most:
                self._queue.popleft()
                self._drop(f"{self._most} wait already, and the oldest go")
            self._queue.append(event)
            self._changed.notify()

    def close(self, seconds: float) -> None:
        """Send what waits, for so long at most; what is left is lost."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(seconds)

    def _run(self) -> None:
        while (event := self._next()) is not None:
            wait = FIRST_WAIT
            while not self._delivered(event):
                with self._changed:
                    if self._closing or self._changed.wait_for(lambda: self._closing, wait):
                        return  # who stops a runner does not wait for a server that is down
                wait = min(2 * wait, LAST_WAIT)

    def _next(self) -> RunEvent | None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._queue) or self._closing)
            return self._queue.popleft() if self._queue else None

    def _delivered(self, event: RunEvent) -> bool:
        """Whether it need not be sent again."""
        try:
            with missing_extras_reported():
                self._send(event)
        except NotTakenError as problem:
            with self._changed:
                self._drop(shortened(str(problem), _SHOWN))
        except Exception as problem:  # whatever it is: no query may know of it
            self._log_problem(shortened(str(problem) or type(problem).__name__, _SHOWN))
            return False
        else:
            self._log_problem("")
        return True

    def _drop(self, why: str) -> None:
        """Logged for the first one alone: then the number is, when events are sent again."""
        self.dropped += 1
        if self.dropped == 1:
            log.warning("[MZ178] a run event for %s is dropped: %s. More may follow", self._server, why)

    def _log_problem(self, problem: str) -> None:
        """When it begins, or becomes another one; and its end."""
        if problem and problem != self._problem:
            log.warning(
                "[MZ178] run events can't be sent to %s: %s. Up to %d wait; queries go on",
                self._server,
                problem,
                self._most,
            )
        elif self._problem and not problem:
            log.info("run events are sent to %s again; %d were dropped", self._server, self.dropped)
        self._problem = problem
