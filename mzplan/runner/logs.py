"""What the runner logs: one line each on stderr, as text or as JSON."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Literal

from mzplan.host.processes import LOG_FORMAT_VARIABLE
from mzplan.model.address import Address
from mzplan.model.words import safe
from mzplan.secrets.resolved import scrub

LogFormat = Literal["text", "json"]
# py4j logs what a batch raises with its traceback, and Spark does so again when the query ends of it.
_NOISY = {"asyncssh": logging.WARNING, "py4j": logging.CRITICAL, "pyspark": logging.WARNING}
# PySpark's own, with a handler and a form of theirs: what they say is in what the batch raises, too.
_NOISY |= {"SQLQueryContextLogger": logging.CRITICAL + 1, "DataFrameQueryContextLogger": logging.CRITICAL + 1}
LIMIT = 10 << 20  # bytes of a log, from which the next one is begun
KEPT = 3  # logs before the newest
_LOOK = 1.0  # seconds


class TextFormatter(logging.Formatter):
    """A line for people, with the stack trace where there is one. What servers and files say may stand in
    it: lines after the first are indented, so that none is taken for an entry of its own, and what would move
    the cursor is an escape."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        return "\n    ".join(safe(line.expandtabs(4)) for line in scrub(super().format(record)).splitlines())


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time` (ISO 8601, UTC), `level`, `logger`, `message`, `address` where it is of
    one query, `exception` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": scrub(record.getMessage()),
        }
        address = _address(record)
        if address is not None:
            line["address"] = str(address)
        if record.exc_info:
            line["exception"] = scrub(self.formatException(record.exc_info))
        return json.dumps(line)


def _address(record: logging.LogRecord) -> Address | None:
    """Of what was logged: an address, or what has one (the name of a query, a description)."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    for argument in arguments:
        address = argument if isinstance(argument, Address) else getattr(argument, "address", None)
        if isinstance(address, Address):
            return address
    return None


def configure_logging(format_: LogFormat = "text") -> None:
    """Logs to stderr, one line each, UTC; so does the JVM that this process starts (log4j2.properties)."""
    os.environ[LOG_FORMAT_VARIABLE] = format_
    handler = logging.StreamHandler(sys.stderr)
    if format_ == "json":
        handler.setFormatter(JsonFormatter())
    else:
        text = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s"
        handler.setFormatter(TextFormatter(text, datefmt="%Y-%m-%dT%H:%M:%S"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    for noisy, level in _NOISY.items():
        logging.getLogger(noisy).setLevel(level)
    # What nothing has caught is logged too: Python would write it past the filter.
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda thrown: _log_uncaught(
        thrown.exc_type, thrown.exc_value or thrown.exc_type(), thrown.exc_traceback
    )


def _log_uncaught(type_: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(type_, SystemExit):
        logging.getLogger("mzplan.runner").critical("unexpected", exc_info=(type_, problem, trace))


def rotate(log: Path, stopping: threading.Event) -> None:
    """Until it stops, see that a log of this process's standard output and error stays bounded: the newest
    and KEPT before it, of LIMIT bytes each. Both are led into a new file. The JVM has neither, but a pipe to
    this process, which writes its lines: so nothing goes on writing to a file that is set aside."""
    while not stopping.wait(_LOOK):
        with contextlib.suppress(OSError):  # a full disk, say: it goes on where it is, and is tried again
            if os.path.samestat(os.fstat(2), log.lstat()) and log.stat().st_size > LIMIT:
                _set_aside(log)


def _set_aside(log: Path) -> None:
    fresh = log.with_name(f"{log.name}.next")
    fresh.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(fresh, flags, 0o600)
    try:
        before = os.fstat(2)
        for number in range(KEPT, 0, -1):
            newer = log.with_name(f"{log.name}.{number - 1}") if number > 1 else log
            with contextlib.suppress(FileNotFoundError):
                newer.replace(log.with_name(f"{log.name}.{number}"))
        fresh.replace(log)
        for own in (1, 2):
            if os.path.samestat(os.fstat(own), before):
                os.dup2(handle, own)
    finally:
        os.close(handle)
