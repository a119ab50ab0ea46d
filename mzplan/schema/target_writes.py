"""Which rows a sink writes to its target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mzplan.model.state import runs_beside
from mzplan.schema.columns import Column
from mzplan.schema.description import Description
from mzplan.schema.kinds import resource_kind

DIFFERENCE = "difference"
"""The value of `on_replace` with which a new generation of a sink writes only what differs."""

UPSERT = "upsert"
"""The value of `mode` with which a sink keeps the latest row of each key."""

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


def compares_generations(type_: str, body: Mapping[str, Any]) -> bool:
    """Return whether a sink writes only the difference between two generations of its view, by default.

    Such a sink can delete a key. Otherwise, keys that only the former generation has would stay for ever.
    """
    if body.get("mode") != UPSERT or "on_replace" in body:
        return False
    return UPSERT in resource_kind("sink", type_).schema.get("x-deletes", {}).get("mode", ())


def has_same_target(type_: str, former: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether two sinks over one connection write rows with the same key to the same target.

    Both bodies have their defaults. How the rows are written, such as the format of a record, may differ.
    """
    targets = resource_kind("sink", type_).schema.get("x-replace", {}).get("targets", ())
    return all(former.get(name) == now.get(name) for name in (*targets, "mode", "key"))


def writes_alike(type_: str, former: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether two sinks write an equal row in the same way, such as the format of a record."""
    kind = resource_kind("sink", type_)
    before, after = kind.identifying_part(former), kind.identifying_part(now)
    for name in kind.row_properties:
        before.pop(name, None)
        after.pop(name, None)
    return before == after


def may_compare_generations(query: Description) -> bool:
    """Return whether a sink compares generations once its view is replaced side by side."""
    read = query.input
    return (
        query.address.writes_target
        and read is not None
        and runs_beside(read.address, read.body)
        and compares_generations(query.type, query.body)
    )


def writes_generation_difference(query: Description) -> bool:
    """Return whether the first step of a sink's generation may write the difference to the former one.

    The sink must then read all of its collection in that step. It finds the former generation when it starts
    (mzplan.spark.generations).
    """
    read = query.input
    is_replaced = query.generation > 1 and read is not None and read.generation > 1
    return is_replaced and may_compare_generations(query)
