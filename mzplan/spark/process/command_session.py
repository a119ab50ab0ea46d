"""The Spark session of a command such as `mzplan verify`; a signal ends it."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from mzplan.connectors.api.queries import ResolvedQuery, resolve
from mzplan.host.processes import children, send_signal
from mzplan.schema.description import Description
from mzplan.secrets.references import Secrets
from mzplan.spark.process.session import discard_java_output, open_session
from mzplan.spark.process.settings import NO_PACKAGES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_OPTIONS: Mapping[str, str] = {}
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryToVerify:
    """A query that a command verifies, and what its parts are opened with.

    `starting`: called before Spark starts in this process, if it does.
    """

    description: Description
    secrets: Secrets
    directory: str
    warehouse: str
    starting: Callable[[], None] = lambda: None

    def resolve(self, description: Description | None = None) -> ResolvedQuery:
        """Return the query, or another description of it, with its secrets. Raises MzplanError."""
        return resolve(description or self.description, self.secrets, self.directory, self.warehouse)

    def open_session(self, packages: Mapping[str, tuple[str, ...]] = NO_PACKAGES) -> SparkSession:
        return open_command_session(self.starting, packages)


def open_command_session(
    starting: Callable[[], None] = lambda: None,
    packages: Mapping[str, tuple[str, ...]] = NO_PACKAGES,
    options: Mapping[str, str] = NO_OPTIONS,
) -> SparkSession:
    """Open a command's session, whose log is discarded. See open_session for its parameters and errors.

    `starting` is called first: it tells the user why the command takes longer.
    """
    starting()
    discard_java_output()
    _output.redirect()
    try:
        if threading.current_thread() is not threading.main_thread():
            return open_session("mzplan verify", options, packages)
        _interruption.watch()
        return _opened_on_a_thread(packages, options)
    except BaseException:
        _output.restore()
        raise


def close_command_session(session: SparkSession) -> None:
    """Close the session.

    Raises KeyboardInterrupt if a signal has ended the session. PySpark may have replaced that interrupt by
    its own error, which the command would report as a problem with the data.
    """
    _output.restore()
    if _interruption.happened:
        raise KeyboardInterrupt
    try:
        session.stop()
    finally:
        _interruption.unwatch()


def _opened_on_a_thread(packages: Mapping[str, tuple[str, ...]], options: Mapping[str, str]) -> SparkSession:
    """Open the session on a thread, because on the main thread PySpark replaces the SIGINT handler."""
    opened: list[SparkSession] = []
    problems: list[BaseException] = []

    def work() -> None:
        try:
            opened.append(open_session("mzplan verify", options, packages))
        except BaseException as problem:
            problems.append(problem)

    opening = threading.Thread(target=work, name="open", daemon=True)
    opening.start()
    opening.join()
    if problems:
        _interruption.unwatch()
        raise problems[0]
    return opened[0]


class _Interruption:
    """Kills Java before the command's own handler raises KeyboardInterrupt.

    If KeyboardInterrupt is raised during a call to a living Java process, Py4J logs Python and Java stacks.
    Nothing is lost, because a command's session only reads.
    """

    def __init__(self) -> None:
        self.happened = False
        self._handlers: dict[int, Any] = {}
        self._other_children: frozenset[int] = frozenset()  # this process's children other than Java

    def watch(self) -> None:
        self._other_children = children()
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler) and handler != self._interrupt:
                self._handlers[number] = handler
                signal.signal(number, self._interrupt)

    def unwatch(self) -> None:
        while self._handlers:
            signal.signal(*self._handlers.popitem())

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self.happened = True
        logging.disable()
        _silence_python()
        for pid in children() - self._other_children:
            send_signal(pid, signal.SIGKILL)
        self._handlers[number](number, frame)


class _Output:
    """Sends text that the user's functions print to stderr, because stdout only has the command's result."""

    def __init__(self) -> None:
        self._results: TextIO | None = None

    def redirect(self) -> None:
        if self._results is None or sys.stdout is not sys.stderr:  # another command left it in this process
            self._results, sys.stdout = sys.stdout, sys.stderr

    def restore(self) -> None:
        if self._results is not None:
            sys.stdout, self._results = self._results, None


def _silence_python() -> None:
    """Suppress the errors that Python prints once Java is gone.

    They come from threads, finalizers, and the server that receives accumulators from Java.
    """
    from pyspark import SparkContext

    def ignore(*_: object) -> None:
        """Print nothing."""

    sys.unraisablehook = threading.excepthook = ignore
    context: Any = SparkContext._active_spark_context
    if (server := getattr(context, "_accumulatorServer", None)) is not None:
        server.handle_error = ignore


_interruption = _Interruption()
_output = _Output()
