"""What the runner logs: one line each on stderr, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from datetime import UTC, datetime
from types import TracebackType
from typing import Literal

from mzplan.model.address import Address
from mzplan.secrets.resolved import scrub

LogFormat = Literal["text", "json"]
# py4j logs what a batch raises with its traceback, and Spark does so again when the query ends of it.
_NOISY = {"asyncssh": logging.WARNING, "py4j": logging.CRITICAL, "pyspark": logging.WARNING}


class TextFormatter(logging.Formatter):
    """A line for people, with the stack trace where there is one."""

    converter = staticmethod(time.gmtime)

    def format(self, record: logging.LogRecord) -> str:
        return scrub(super().format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time` (ISO 8601, UTC), `level`, `logger`, `message`, `address` where it is of
    one query, `exception` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        found = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": scrub(record.getMessage()),
        }
        address = _address(record)
        if address is not None:
            found["address"] = str(address)
        if record.exc_info:
            found["exception"] = scrub(self.formatException(record.exc_info))
        return json.dumps(found)


def _address(record: logging.LogRecord) -> Address | None:
    """Of what was logged: an address, or what has one (the name of a query, a description)."""
    arguments = record.args if isinstance(record.args, tuple) else ()
    for argument in arguments:
        found = argument if isinstance(argument, Address) else getattr(argument, "address", None)
        if isinstance(found, Address):
            return found
    return None


def configure_logging(format_: LogFormat = "text") -> None:
    """Logs to stderr, one line each, UTC."""
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
