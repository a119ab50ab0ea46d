"""Causes and drift for people and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mzplan.model.cause import Cause
from mzplan.model.plan import DriftItem
from mzplan.model.words import first_names
from mzplan.render.text import brief, safe

MAX_NAMED = 5  # addresses per cause


def drift_lines(drift: Iterable[DriftItem], longest: int) -> list[str]:
    """Return a line for each cause, with at most `longest` characters of detail."""
    return [
        f"{first_names([safe(name) for name in names], MAX_NAMED)}: {kind}: {brief(detail, longest)}"
        for (kind, detail), names in _causes(drift).items()
    ]


def drift_to_json(drift: Iterable[DriftItem]) -> list[dict[str, Any]]:
    """Return an entry for each cause. A cause with several addresses also has `addresses`."""
    return [
        {"address": names[0], "kind": kind, "detail": detail}
        | ({"addresses": names} if len(names) > 1 else {})
        for (kind, detail), names in _causes(drift).items()
    ]


def _causes(drift: Iterable[DriftItem]) -> Mapping[tuple[str, str], list[str]]:
    """Group the addresses by kind and detail, because equal items have one cause, such as one dead runner."""
    causes: dict[tuple[str, str], list[str]] = {}
    for item in drift:
        causes.setdefault((item.kind, item.detail), []).append(item.address)
    return causes


_KINDS = {
    "change": "a change",
    "secret": "a secret",
    "hand": "by hand",
    "retry": "a retry",
    "runner": "its runner",
    "hand-over": "a hand-over",
    "canary": "a canary",
    "upgrade": "an upgrade",
    "completed": "it has read what was there",
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
