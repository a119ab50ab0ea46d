"""Which rows a sink writes to its target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mzplan.schema.description import Description

DIFFERENCE = "difference"
"""The value of `on_replace` with which a new generation of a sink writes only what differs."""


def writes_all(body: Mapping[str, Any]) -> bool:
    """Return whether a sink with this body writes every row that it reads.

    Such a sink has no filter, and doesn't keep only the latest row of each key.
    """
    return "where" not in body and body.get("mode", "append") == "append"


def writes_difference(query: Description) -> bool:
    """Return whether the first step of a sink's generation deletes the target's rows of other keys.

    The sink then writes only rows that are new or differ, so it must read all of its collection in that step.
    """
    return query.generation > 1 and query.body.get("on_replace") == DIFFERENCE
