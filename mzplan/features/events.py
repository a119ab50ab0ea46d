"""The `why` and `events` commands: what happened to queries and why. They need no live runner."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import click

from mzplan.cli.arguments import QUERY, SINCE, selecting
from mzplan.cli.context import Invocation, command
from mzplan.model.event import EventKind
from mzplan.model.state import unknown_address
from mzplan.model.words import first_names
from mzplan.operations.events import EventFilter, explain, follow_events, latest_events, read_events
from mzplan.operations.status import read_project_status, select
from mzplan.render.event_text import (
    events_to_json,
    explanation_to_json,
    render_events,
    render_explanation,
)
from mzplan.render.status_json import query_to_json
from mzplan.render.status_notes import awaited_rows, render_now

if TYPE_CHECKING:
    from mzplan.model.address import Address
    from mzplan.operations.selection import Selection

KINDS: tuple[EventKind, ...] = get_args(EventKind)
FOLLOW_EVERY = 0.5  # seconds; for an object store, its longer poll interval


@command("why")
@click.argument("address", type=QUERY)
@click.option(
    "--at",
    "at",
    metavar="T",
    type=SINCE,
    help="Show the last start or stop before this time: 10m (ago), or 2026-01-31T10:00.",
)
def command_why(invocation: Invocation, address: Address, at: float | None) -> None:
    """Show why a query last started or stopped, and what keeps it from delivering rows now."""
    project = invocation.project()
    store = project.store
    explanation = explain(store, address, at)
    state = store.read_state()
    record = state.resources.get(address)
    if explanation.event is None and record is None:
        raise unknown_address(address, state)
    queries = read_project_status(project).queries if at is None else ()
    query = next((query for query in queries if query.resource.address == address), None)
    text, document = render_explanation(explanation, invocation.color), explanation_to_json(explanation)
    if query is not None:
        awaited = awaited_rows(query.resource, query.observation)
        text += render_now(query) + (f"{awaited[0].upper()}{awaited[1:]}.\n" if awaited else "")
    now = query_to_json(query) if query is not None else None
    invocation.result(document | {"now": now}, text)
    _note_unreadable_segments(invocation, explanation.unreadable_segments)


def _note_unreadable_segments(invocation: Invocation, keys: tuple[str, ...]) -> None:
    if keys:
        invocation.note(f"warning: {first_names(keys, 1)} of the event log can't be read and is skipped")


@command("events")
@selecting()
@click.option(
    "--since", metavar="T", type=SINCE, help="Only entries since this time: 10m (ago), or 2026-01-31T10:00."
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="K",
    type=click.Choice(KINDS),
    help=f"Only this kind; repeatable: {', '.join(KINDS)}.",
)
@click.option("--follow", is_flag=True, help="Keep printing new entries until interrupted.")
def command_events(
    invocation: Invocation,
    selection: Selection,
    since: float | None,
    kinds: tuple[EventKind, ...],
    follow: bool,
) -> None:
    """Show past events of queries and their causes, oldest first."""
    if follow and invocation.json:
        raise click.UsageError("--follow and --json can't be combined: --json prints one document.")
    project = invocation.project()
    store, addresses = project.store, None
    state, single = store.read_state(), selection.single
    if single is not None and single not in state.resources and latest_events(store, single, 1, 0.0).events:
        addresses = frozenset([single])  # no longer committed, but still in the log
    elif not selection.is_everything:
        addresses = frozenset(resource.address for resource in select(project, state, selection))
        if not addresses:
            invocation.note(selection.chose_nothing)
    event_filter = EventFilter(addresses=addresses, since=since or 0.0, kinds=kinds)
    if follow:

        def wait() -> bool:
            return invocation.output.is_read_after(max(FOLLOW_EVERY, store.backend.poll_interval))

        if since is not None:
            invocation.out(render_events(read_events(store, event_filter), invocation.color))
        for fresh in follow_events(store, event_filter, wait):
            invocation.out(render_events(fresh, invocation.color))
        return
    events = read_events(store, event_filter)
    invocation.result(events_to_json(events), render_events(events, invocation.color))
    _note_unreadable_segments(invocation, events.unreadable_segments)
    if (lines := events.unreadable) > len(events.unreadable_segments) and not invocation.json:
        invocation.note(f"notice: {lines} lines of the event log can't be read and are skipped")
