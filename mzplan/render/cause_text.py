"""Format causes for people and as JSON: why a query was started or stopped."""

from __future__ import annotations

from typing import Any

from mzplan.model.cause import Cause
from mzplan.render.text import safe

_KINDS = {
    "change": "a change",
    "secret": "a secret",
    "hand": "by hand",
    "retry": "a retry",
    "runner": "its runner",
    "hand-over": "a hand-over",
    "canary": "a canary",
    "upgrade": "an upgrade",
}


def cause_to_json(cause: Cause) -> dict[str, Any]:
    """Return the JSON of a cause, as in status, plan and events."""
    return {
        "cause": cause.cause,
        "serial": cause.serial or None,
        "through": str(cause.through) if cause.through else None,
        "detail": cause.detail,
        "at": cause.at,
    }


def cause_in_words(cause: Cause) -> str:
    """Format a cause on one line: `serial 7: connection.shop_pg: host a → b`."""
    serial = f"serial {cause.serial}" if cause.serial else ""
    through = str(cause.through) if cause.through is not None else ""
    detail = safe(cause.detail)
    parts = (serial, "" if through in detail else through, detail or _KINDS[cause.cause])
    return ": ".join(filter(None, parts))
