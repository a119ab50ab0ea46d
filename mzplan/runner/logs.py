"""The runner's log on stderr: one line per entry, as text or as JSON."""

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
# py4j logs an exception of a batch with its traceback, and Spark logs it again when the query fails.
_NOISY = {"asyncssh": logging.WARNING, "py4j": logging.CRITICAL, "pyspark": logging.WARNING}
# These loggers of PySpark have their own handler and format. The exception of the batch has the same text.
_NOISY |= {"SQLQueryContextLogger": logging.CRITICAL + 1, "DataFrameQueryContextLogger": logging.CRITICAL + 1}
LIMIT = 10 << 20  # bytes; a log file that is larger is rotated
MAX_ROTATED = 3  # rotated log files, beside the current one
_CHECK_INTERVAL = 1.0  # seconds between two checks of the size


class TextFormatter(logging.Formatter):
    """Formats a line for people, with the stack trace if there is one.

    An entry may contain text from servers and files. Lines after the first are therefore indented, so that
    they don't look like entries, and control characters are escaped.
    """

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        return "\n    ".join(safe(line.expandtabs(4)) for line in scrub(super().format(record)).splitlines())


class JsonFormatter(logging.Formatter):
    """Formats one JSON object per line: `time` (ISO 8601, UTC), `level`, `logger` and `message`.

    Adds `address` if the entry is about one query, and `exception` if there is one.
    """

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
    """Return the first address among the arguments, or of an argument that has an `address`."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    for argument in arguments:
        address = argument if isinstance(argument, Address) else getattr(argument, "address", None)
        if isinstance(address, Address):
            return address
    return None


def configure_logging(format_: LogFormat = "text") -> None:
    """Log to stderr with times in UTC. The JVM that this process starts does the same (log4j2.properties)."""
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
    # Log uncaught exceptions too: Python would write them without scrubbing secrets.
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda thrown: _log_uncaught(
        thrown.exc_type, thrown.exc_value or thrown.exc_type(), thrown.exc_traceback
    )


def _log_uncaught(type_: type[BaseException], problem: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(type_, SystemExit):
        logging.getLogger("mzplan.runner").critical("unexpected", exc_info=(type_, problem, trace))


def rotate(log: Path, stopping: threading.Event) -> None:
    """Rotate the log file of this process's stdout and stderr, until `stopping` is set.

    Keeps the current file and MAX_ROTATED rotated files, of about LIMIT bytes each. Redirects stdout and
    stderr to the new file. The JVM writes through a pipe to this process, so no process keeps writing to a
    rotated file.
    """
    while not stopping.wait(_CHECK_INTERVAL):
        with contextlib.suppress(OSError):  # for example a full disk: keep the file, and try again
            if os.path.samestat(os.fstat(2), log.lstat()) and log.stat().st_size > LIMIT:
                _rotate_now(log)


def _rotate_now(log: Path) -> None:
    fresh = log.with_name(f"{log.name}.next")
    fresh.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(fresh, flags, 0o600)
    try:
        before = os.fstat(2)
        for number in range(MAX_ROTATED, 0, -1):
            newer = log.with_name(f"{log.name}.{number - 1}") if number > 1 else log
            with contextlib.suppress(FileNotFoundError):
                newer.replace(log.with_name(f"{log.name}.{number}"))
        fresh.replace(log)
        for own in (1, 2):
            if os.path.samestat(os.fstat(own), before):
                os.dup2(handle, own)
    finally:
        os.close(handle)
