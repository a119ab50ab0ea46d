"""The history: all commits, one serial, or the difference of two serials as a plan.

Also the table of past events, of a query or of a serial.
"""

from __future__ import annotations

from mzplan.features.ui.frame import chip, facts, moment, scrolled
from mzplan.model.history import CommitRecord, HistoryEntry
from mzplan.model.plan import ACTIONS
from mzplan.operations.commits import changes_between, changes_of, entry_of
from mzplan.operations.events import EventList, events_of_serial
from mzplan.render.event_text import summary
from mzplan.render.html import Content, Markup, element
from mzplan.render.plan_page import plan_view, search_field
from mzplan.store.event_log import LoggedEvent, seconds_of
from mzplan.store.store import Store

_MAX_EVENTS = 100  # events
_EVENT_COLUMNS = ("When", "What", "Query", "Why")
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
    rows = [_event_row(event) for event in events.events[:_MAX_EVENTS]]
    head = element("thead", element("tr", [element("th", name, scope="col") for name in _EVENT_COLUMNS]))
    table = element("table", head, element("tbody", rows), id="events")
    return [element("h2", title), scrolled(table, title)]


def _event_row(logged: LoggedEvent) -> Markup:
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


_MAX_SERIALS = 200  # serials; `mzplan history` lists all
_COLUMNS = ("Serial", "When", "Who", "What", "Message", "Ended")


def history_page(store: Store) -> Content:
    entries = store.read_history(_MAX_SERIALS)
    if not entries:
        return [element("h1", "History"), element("p", "Nothing is committed yet.", class_="quiet")]
    head = element("thead", element("tr", [element("th", name, scope="col") for name in _COLUMNS]))
    body = element("tbody", [_row(entry) for entry in entries])
    newest, oldest = entries[0].serial, entries[-1].serial
    fields = [
        _number("before", "From serial", max(oldest, newest - 1), oldest, newest),
        _number("after", "to serial", newest, oldest, newest),
    ]
    compare = element(
        "form", fields, " ", element("button", "Compare", type="submit"), action="/history", method="get"
    )
    return [
        element("h1", "History"),
        compare,
        search_field("Find in the history"),
        scrolled(element("table", head, body, class_="history"), "History"),
        _older(oldest, len(entries)),
    ]


def serial_page(store: Store, serial: int) -> Content:
    """Return one serial: who, why, and what it changed."""
    entry = entry_of(store, serial)
    commit, outcome = entry.commit, entry.outcome
    details: list[tuple[str, Content]] = [
        ("Committed", _author(commit)),
        ("When", commit.time),
        ("Command", commit.command),
    ]
    details += [("Message", commit.message)] if commit.message else []
    details += [("Digest of the plan", commit.digest)] if commit.digest else []
    details += [("Git", _git(commit))] if commit.git is not None else []
    details.append(("Ended", _outcome(entry)))
    unconverged = [
        f"{address}: {query.status}: {query.reason}"
        for address, query in (outcome.open if outcome else {}).items()
    ]
    current = store.read_state().serial
    changes_since = element("a", "Changes since then", href=f"/history/{serial}..{current}")
    return [
        element("h1", f"Serial {serial}", " ", chip("current", "running") if entry.current else None),
        facts(details),
        None if entry.current else element("p", changes_since),
        event_table("Events", events_of_serial(store, serial, commit)),
        [
            element("h2", "Not converged when the command ended"),
            element("pre", "\n".join(unconverged), class_="box"),
        ]
        if unconverged
        else None,
        element("h2", "Changes"),
        plan_view(changes_of(store, serial)),
    ]


def difference_page(store: Store, before: int, after: int) -> Content:
    """Return the changes that lead from one serial to another."""
    link = element("a", "In the opposite direction", href=f"/history/{after}..{before}")
    return [
        element("h1", f"From serial {before} to serial {after}"),
        element("p", link),
        plan_view(changes_between(store, before, after)),
    ]


def origin(entry: HistoryEntry | None) -> Content:
    """Return the serial that last changed a resource, and its author."""
    if entry is None:
        return None
    link = element("a", f"serial {entry.serial}", href=f"/history/{entry.serial}")
    return [link, ", ", _author(entry.commit), f": {entry.commit.message}"]


def _row(entry: HistoryEntry) -> Markup:
    commit = entry.commit
    words = [str(entry.serial), _author(commit), commit.message, commit.time]
    return element(
        "tr",
        element("th", element("a", str(entry.serial), href=f"/history/{entry.serial}"), scope="row"),
        element("td", commit.time[:19].replace("T", " ")),
        element("td", _author(commit)),
        element("td", _summary(commit)),
        element("td", commit.message, class_="wide"),
        element("td", _outcome(entry)),
        data_name=" ".join(words),
    )


def _author(commit: CommitRecord) -> str:
    where = f"{commit.user}@{commit.host}"
    return f"{commit.actor} ({commit.ci or 'CI'})" if commit.actor else where


def _summary(commit: CommitRecord) -> str:
    counts = [f"{commit.summary[action]:,} {action}" for action in ACTIONS if commit.summary.get(action)]
    return f"{commit.command}: {', '.join(counts)}" if counts else commit.command


def _git(commit: CommitRecord) -> str:
    assert commit.git is not None
    tree = {True: "clean", False: "with changes", None: "not compared"}[commit.git.clean]
    return f"{commit.git.commit[:12]}, tree {tree}"


def _outcome(entry: HistoryEntry) -> Content:
    if entry.outcome is None:
        return element("span", "unknown", class_="quiet")
    return chip(entry.outcome.status, entry.outcome.status)


def _number(name: str, label: str, value: int, minimum: int, maximum: int) -> Markup:
    field = element("input", type="number", name=name, value=value, min=minimum, max=maximum, required=True)
    return element("label", label, " ", field, " ")


def _older(oldest: int, number: int) -> Content:
    if number < _MAX_SERIALS or oldest <= 1:
        return None
    return element("p", f"Older than serial {oldest}: `mzplan history` lists all.", class_="quiet")
