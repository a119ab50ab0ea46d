"""What the runner logs: one line each on stderr, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import Literal

from mzplan.model.address import Address

LogFormat = Literal["text", "json"]
_NOISY = ("asyncssh", "py4j", "pyspark")


class JsonFormatter(logging.Formatter):
    """One JSON object a line: `time` (ISO 8601, UTC), `level`, `logger`, `message`, `address` where it is of
    one query, `exception` where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        found = {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        address = _address(record)
        if address is not None:
            found["address"] = str(address)
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
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
        formatter = logging.Formatter(text, datefmt="%Y-%m-%dT%H:%M:%S")
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=logging.INFO)
    for noisy in _NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)
