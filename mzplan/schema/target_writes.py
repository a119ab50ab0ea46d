"""Which rows a sink writes to its target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mzplan.schema.columns import Column
from mzplan.schema.description import Description

DIFFERENCE = "difference"
"""The value of `on_replace` with which a new generation of a sink writes only what differs."""

HISTORY = "history"
"""The value of `mode` with which a sink keeps all versions of each key's row."""
VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"
VERSION_COLUMNS = (
    Column(VALID_FROM, "TIMESTAMP", nullable=False),
    Column(VALID_TO, "TIMESTAMP"),
    Column(IS_CURRENT, "BOOLEAN", nullable=False),
)
"""The columns of a history's target, after the sink's own. A version is valid before `valid_to`."""


def keeps_history(body: Mapping[str, Any]) -> bool:
    """Return whether a sink with this body keeps all versions of each key's row."""
    return body.get("mode") == HISTORY


def writes_all(body: Mapping[str, Any]) -> bool:
    """Return whether a sink with this body writes every row that it reads.

    Such a sink has no filter, and doesn't keep only the latest row of each key.
    """
    return "where" not in body and body.get("mode", "append") == "append"


def writes_difference(query: Description) -> bool:
    """Return whether the first step of a sink's generation deletes the target's rows of other keys.

    A history ends their versions instead. The sink then writes only rows that are new or differ, so it must
    read all of its collection in that step.
    """
    chosen = query.body.get("on_replace", DIFFERENCE if keeps_history(query.body) else None)
    return query.generation > 1 and chosen == DIFFERENCE
