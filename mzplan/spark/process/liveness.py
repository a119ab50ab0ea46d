"""Checks that Spark's Java process runs, answers Python, and still has its context."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SILENT = 60  # looks (one a second) for which a question may stay unanswered: garbage collection can take long
FAILED = 2  # failed questions in a row
_OUT_OF_MEMORY = 3  # Java's exit code under ExitOnOutOfMemoryError


class Liveness:
    """Asks Spark on a separate thread, because a question to a hanging process never returns."""

    def __init__(self, spark: SparkSession, on_answer: Callable[[], str | None] = lambda: None):
        """`on_answer` asks Spark more after each answer, and returns why Spark is useless, or None."""
        self._on_answer = on_answer
        self._process: Any = getattr(spark.sparkContext._gateway, "proc", None)  # none under spark-submit
        self._context: Any = spark.sparkContext._jsc.sc()
        self._due = threading.Event()
        self._closed = False
        self._stopped = False
        self._failed = 0
        self._silent = 0
        self._why_useless: str | None = None
        self._reason: str | None = None  # the first: Java may then be killed for it
        threading.Thread(target=self._ask, name="spark-liveness", daemon=True).start()

    def why_dead(self) -> str | None:
        """Return why Spark can no longer run queries, as a sentence; None while it can.

        Call this once a second. It returns immediately, with the result of the last question.
        """
        self._reason = self._reason or self._look()
        return self._reason

    def _look(self) -> str | None:
        if (ended := self.why_ended()) is not None:
            return ended
        if self._closed:
            return None
        if self._stopped:
            return "Spark's context was stopped, and this process can't have another one."
        if self._failed >= FAILED:
            return "Spark's Java process no longer accepts calls from Python (Py4J's gateway has ended)."
        if self._silent >= SILENT:
            return f"Spark's Java process hasn't answered for {SILENT} s."
        if self._why_useless is not None:
            return self._why_useless
        self._silent += 1  # counts looks, not time: time also passes while this process is suspended
        self._due.set()
        return None

    def why_ended(self) -> str | None:
        """Return why Spark's Java process exited, as a sentence; None while it runs."""
        code = self._process.poll() if self._process is not None else None
        if code is None:
            return None
        return self._reason or f"Spark's Java process has ended: {_how(code)}."

    def kill(self) -> None:
        """Kill Spark's Java process, so that hanging calls into it return. Never kills a parent process."""
        if self._process is not None:
            self._process.kill()
            with suppress(Exception):
                self._process.wait(2.0)

    def close(self) -> None:
        """Stop asking, before the session is closed."""
        self._closed = True
        self._due.set()

    def _ask(self) -> None:
        while True:
            self._due.wait()
            self._due.clear()
            if self._closed:
                return
            try:
                self._stopped = bool(self._context.isStopped())
                self._failed = 0
                with suppress(Exception):
                    self._why_useless = self._on_answer()
            except Exception:  # Py4J: nothing listens, or the connection broke
                self._failed += 1
            self._silent = 0


def _how(code: int) -> str:
    if code == _OUT_OF_MEMORY:
        return "it ran out of memory (raise spark.driver.memory, or spread the queries over instances)"
    if code == -signal.SIGKILL:
        return "it was killed (SIGKILL), perhaps because the machine ran out of memory"
    if code < 0:
        return f"it was ended by signal {-code}"
    return f"its exit code is {code}"
