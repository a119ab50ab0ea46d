"""A table of past events: of a query, or of a serial."""

from __future__ import annotations

from mzplan.features.ui.frame import chip, moment, scrolled
from mzplan.operations.events import EventList
from mzplan.render.event_text import summary
from mzplan.render.html import Content, Markup, element
from mzplan.store.event_log import LoggedEvent, seconds_of

_MAX_EVENTS = 100  # events
_COLUMNS = ("When", "What", "Query", "Why")
_LOOKS = {
    "failed": "failed",
    "refused": "rejected",
    "stopped": "stopped",
    "started": "running",
    "healed": "running",
}


def event_table(title: str, events: EventList) -> Content:
    """Return the events as a table in their order, or None without events."""
    if not events.events:
        return None
    rows = [_row(event) for event in events.events[:_MAX_EVENTS]]
    head = element("thead", element("tr", [element("th", name, scope="col") for name in _COLUMNS]))
    table = element("table", head, element("tbody", rows), id="events")
    return [element("h2", title), scrolled(table, title)]


def _row(logged: LoggedEvent) -> Markup:
    event = logged.event
    serial = event.cause.serial if event.cause is not None else 0
    link = element("a", f"serial {serial}", href=f"/history/{serial}") if serial else None
    return element(
        "tr",
        element("td", moment(seconds_of(event))),
        element("td", chip(event.kind, _LOOKS.get(event.kind, "quiet"))),
        element("td", str(event.address or f"instance {logged.instance}")),
        element("td", summary(event), " ", link, class_="wide"),
    )
