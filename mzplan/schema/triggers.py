"""The `trigger` of a query: an interval, or `available-now`."""

from __future__ import annotations

from mzplan.model.address import Kind
from mzplan.model.resources import Body
from mzplan.schema.kinds import resource_kind

AVAILABLE_NOW = "available-now"


def is_available_now(body: Body) -> bool:
    """Return whether a query reads what is there, and then stops."""
    return body.get("trigger") == AVAILABLE_NOW


def interval_of(kind: Kind, type_: str, body: Body) -> str:
    """Return the shortest time between two micro-batches, such as `5s`; "" without one."""
    if is_available_now(body):
        return ""
    return str(resource_kind(kind, type_).with_defaults(body).get("trigger", {}).get("interval", ""))
