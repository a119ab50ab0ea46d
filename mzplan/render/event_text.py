"""Events for people and as JSON; and why a query last started or stopped."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

from mzplan.model.cause import NEW, Cause
from mzplan.model.codec import encode
from mzplan.model.event import Event, EventKind
from mzplan.model.history import CommitRecord
from mzplan.model.words import span
from mzplan.operations.events import EventList, Explanation
from mzplan.render.cause_text import cause_in_words, cause_to_json
from mzplan.render.text import Paint, brief, safe
from mzplan.store.event_log import LoggedEvent, seconds_of

MAX_SHOWN = 400  # characters of an event's detail
MAX_LISTED = 10  # events per serial
MAX_AFTER = 5  # events shown after the explained one
_COLOURS: dict[EventKind, str] = {"failed": "red", "refused": "red", "stopped": "yellow", "healed": "green"}
_VERBS: dict[EventKind, str] = {"started": "restarted", "failed": "failed"}


def event_to_json(logged: LoggedEvent) -> dict[str, Any]:
    event = logged.event
    cause = event.cause
    return {
        "at": event.at,
        "instance": logged.instance,
        "kind": event.kind,
        "address": str(event.address) if event.address else None,
        "serial": event.serial,
        "epoch": event.epoch,
        "run_id": event.run_id,
        "generation": event.generation,
        "step": event.step,
        "cause": cause_to_json(cause) if cause else None,
        "code": event.code or None,
        "detail": event.detail or None,
        "versions": encode(event.versions) if event.versions else None,
    }


def events_to_json(events: EventList) -> dict[str, Any]:
    """Return the document of `events --json`, oldest first."""
    return {
        "events": [event_to_json(logged) for logged in events.events],
        "unreadable": events.unreadable,
    }


def render_events(events: EventList, color: bool = False) -> str:
    """Format the events, one a line, oldest first."""
    if not events.events:
        return "Nothing is recorded.\n"
    paint = Paint(color)
    rows = [(logged, _when(logged.event), _who(logged)) for logged in events.events]
    width = max(len(who) for _, _, who in rows)
    lines = []
    for logged, when, who in rows:
        message = summary(logged.event)
        text = f"{when}  {who.ljust(width)}  {logged.event.kind.ljust(12)}  {message}".rstrip()
        style = _COLOURS.get(logged.event.kind)
        lines.append(paint(text, style) if style else text)
    return "\n".join(lines) + "\n"


def summary(event: Event) -> str:
    """Return the content of an event on one line."""
    parts = [f"step {event.step}"] if event.step is not None else []
    if event.kind == "generation":
        parts.append(f"generation {event.generation}")
    cause = event.cause
    if cause is not None and cause.detail != event.detail:
        parts.append(cause_in_words(cause))
    if event.detail:
        parts.append(f"{f'[{safe(event.code)}] ' if event.code else ''}{brief(event.detail, MAX_SHOWN)}")
    if event.versions is not None:
        parts.append(f"mzplan {safe(event.versions.mzplan)}, {safe(str(event.versions))}")
    return "; ".join(parts)


def _when(event: Event) -> str:
    return datetime.fromtimestamp(seconds_of(event), UTC).strftime("%Y-%m-%d %H:%M:%S")


def _who(logged: LoggedEvent) -> str:
    return str(logged.event.address or f"instance {logged.instance}")


def render_serial_events(events: EventList) -> str:
    """Format the effects of a serial: the number of events of each kind, and the first MAX_LISTED events."""
    if not events.events:
        return "Events:  none recorded\n"
    counts = Counter(logged.event.kind for logged in events.events)
    lines = [f"Events:  {', '.join(f'{number} {kind}' for kind, number in counts.items())}"]
    for logged in events.events[:MAX_LISTED]:
        lines.append(
            f"  {_when(logged.event)}  {_who(logged)}  {logged.event.kind}  {summary(logged.event)}".rstrip()
        )
    if (more := len(events.events) - MAX_LISTED) > 0:
        lines.append(f"  and {more} more: mzplan events --since …")
    return "\n".join(lines) + "\n"


def explanation_to_json(explanation: Explanation) -> dict[str, Any]:
    """Return the document of `why --json`.

    - `ran_seconds`: how long the query had run before.
    - `has_runner`: false if the query last started but no runner of its instance is alive now.
    """
    recorded = explanation.event
    event = event_to_json(recorded) if recorded is not None else {}
    for name in ("address", "cause"):
        event.pop(name, None)
    return {
        "address": str(explanation.address),
        "event": event or None,
        "cause": cause_to_json(explanation.cause) if explanation.cause else None,
        "commit": encode(explanation.commit) if explanation.commit else None,
        "ran_seconds": explanation.seconds_before,
        "has_runner": explanation.has_runner,
        "since": [event_to_json(logged) for logged in explanation.later_events],
    }


def render_explanation(explanation: Explanation, color: bool = False) -> str:
    """Format why a query last started or stopped, and what happened since."""
    if explanation.event is None:
        return (
            f"No start or stop of {explanation.address} is recorded: no runner had started it, or the event "
            "log no longer has the event.\n"
        )
    event, paint = explanation.event.event, Paint(color)
    verb = "started" if explanation.is_first else _VERBS.get(event.kind, "stopped")
    lines = [f"{paint(str(explanation.address), 'bold')} {verb} {_when(event)} UTC, {reason(explanation)}."]
    if not explanation.has_runner:
        lines.insert(0, f"It isn't running now: no runner of instance {explanation.event.instance} is alive.")
    if event.kind == "started" and event.step is not None:
        lines.append(f"It resumed after step {event.step}.")
    elif event.kind in ("stopped", "failed") and event.step is not None:
        lines.append(f"Its last step was {event.step}.")
    if explanation.seconds_before is not None:
        most = "at most " if explanation.was_killed else ""
        lines.append(f"Before that it had run for {most}{span(explanation.seconds_before)}.")
    if explanation.later_events:
        lines.append("Since then:")
        for logged in explanation.later_events[-MAX_AFTER:]:
            lines.append(f"  {_when(logged.event)}  {logged.event.kind}  {summary(logged.event)}".rstrip())
    return "\n".join(lines) + "\n"


def reason(explanation: Explanation) -> str:
    """Return the reason in words: `because serial 7 (ada: PR 41) changed connection.shop_pg: host a → b`."""
    assert explanation.event is not None
    event, cause = explanation.event.event, explanation.cause
    if event.kind == "failed":
        code = f"[{safe(event.code)}] " if event.code else ""
        return f"and the log says: {code}{brief(event.detail, MAX_SHOWN).rstrip('.')}"
    if cause is None:
        return "for an unrecorded reason"
    if not cause.serial:
        return f"because {cause_in_words(cause).rstrip('.')}"
    by = f" ({_committer(explanation.commit)})" if explanation.commit is not None else ""
    return f"because {_cause_clause(cause, f'serial {cause.serial}{by}')}"


def _cause_clause(cause: Cause, serial: str) -> str:
    detail = brief(cause.detail, MAX_SHOWN).rstrip(".")
    match cause.cause:
        case "change" if cause.through is not None:
            return f"{serial} changed {cause.through}: {detail}"
        case "change":
            return f"{serial} declared it" if detail == NEW else f"{serial} changed it: {detail}"
        case "secret" | "hand":
            return f"of {serial}: {detail}"
    return f"{detail} ({serial})"


def _committer(commit: CommitRecord) -> str:
    who = safe(commit.actor or commit.user)
    return f"{who}: {brief(commit.message, 80)}" if commit.message else who
