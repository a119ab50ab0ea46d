"""Events of queries, from the event logs in the store. No runner is needed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Set
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

from mzplan.model.address import Address
from mzplan.model.cause import Cause
from mzplan.model.diagnostics import MzplanError
from mzplan.model.event import Event, EventKind
from mzplan.model.history import CommitRecord
from mzplan.model.resources import is_dry
from mzplan.operations.commits import committed_state
from mzplan.store.event_log import EventReader, LoggedEvent, seconds_of
from mzplan.store.store import Store

MOST = 2000  # the most events to search for an explanation
DAY = 86_400.0  # seconds
_DONE: tuple[EventKind, ...] = ("started", "stopped", "failed", "healed", "refused", "ddl")
_OF_A_RUN: tuple[EventKind, ...] = ("started", "stopped", "failed")
_OF_A_RUNNER: tuple[EventKind, ...] = ("runner-began", "runner-ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Selects events to show.

    `addresses`: events of these queries, also of generations that run beside the ones in service; None for
    all events, including events of whole instances.
    `since`: events from this time on, in seconds since the epoch.
    `kinds`: events of these kinds; empty for all kinds.
    """

    addresses: Set[Address] | None = None
    since: float = 0.0
    kinds: Collection[EventKind] = ()

    def passes(self, event: Event) -> bool:
        """Return whether the filter shows an event."""
        address = event.address
        if self.addresses is not None and (
            address is None or self.addresses.isdisjoint((address, address.resource))
        ):
            return False
        return seconds_of(event) >= self.since and (not self.kinds or event.kind in self.kinds)

    def may_pass(self, line: bytes) -> bool:
        """Return whether an undecoded line may hold an event that passes."""
        if self.addresses is not None and len(self.addresses) <= 20:
            return any(_mentions(line, a) or f'"{a}@'.encode() in line for a in self.addresses)
        return True


def _mentions(line: bytes, address: Address) -> bool:
    return f'"{address}"'.encode() in line


@dataclass(frozen=True, slots=True, kw_only=True)
class EventList:
    """Events, the number of lines that aren't events, and the keys of unreadable segments."""

    events: tuple[LoggedEvent, ...]
    unreadable: int = 0
    unreadable_segments: tuple[str, ...] = ()


NOTHING = EventList(events=())


def read_events(store: Store, event_filter: EventFilter) -> EventList:
    """Return the events, oldest first."""
    reader = EventReader(store.backend)
    newest = [
        logged
        for logged in reader.newest_first(event_filter.may_pass, event_filter.since)
        if event_filter.passes(logged.event)
    ]
    return EventList(
        events=_in_order(reversed(newest)),
        unreadable=reader.unreadable,
        unreadable_segments=tuple(reader.unreadable_segments),
    )


def follow_events(store: Store, event_filter: EventFilter, wait: Callable[[], bool]) -> Iterator[EventList]:
    """Yield new events from now on, in batches; end when `wait` returns False."""
    reader = EventReader(store.backend)
    list(reader.fresh())  # skip existing events
    while wait():
        if fresh := [logged for logged in reader.fresh() if event_filter.passes(logged.event)]:
            yield EventList(events=_in_order(fresh))


def latest_events(store: Store, address: Address, most: int, since: float) -> EventList:
    """Return the newest events of a query, newest first."""
    event_filter = EventFilter(addresses={address}, since=since)
    events = EventReader(store.backend).newest_first(event_filter.may_pass, since)
    return EventList(
        events=tuple(islice((logged for logged in events if event_filter.passes(logged.event)), most))
    )


def events_of_serial(store: Store, serial: int, commit: CommitRecord | None) -> EventList:
    """Return the events that a serial caused within a day of its commit.

    These are the starts and stops for the serial, and the failures and refusals while its runner followed it.
    """
    if commit is None:
        return NOTHING
    since = datetime.fromisoformat(commit.time).timestamp() - 1.0  # a commit's time has no fraction
    until = since + DAY
    reader, named = EventReader(store.backend), f'"serial":{serial}'.encode()

    def is_of_it(event: Event) -> bool:
        cause = event.cause
        of_it = event.serial == serial if cause is None else cause.serial == serial
        return of_it and event.kind in _DONE and since <= seconds_of(event) < until

    events = [
        logged
        for logged in reader.newest_first(lambda line: named in line, since, until)
        if is_of_it(logged.event)
    ]
    return EventList(events=_in_order(reversed(events)))


def _in_order(events: Iterable[LoggedEvent]) -> tuple[LoggedEvent, ...]:
    """Return events sorted by time; equal times keep the order of the log."""
    return tuple(sorted(events, key=lambda logged: seconds_of(logged.event)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a query last started or stopped, up to a given time.

    `event`: the start or stop; None if none is recorded.
    `commit`: the commit of the serial that caused it; None if the history doesn't have it.
    `is_first`: whether it is the query's first start.
    `seconds_before`: how many seconds the query had run before; None if unknown.
    `was_killed`: whether the runner was killed. `seconds_before` then ends when its successor started, so it
    is an upper bound.
    `later_events`: the query's events after `event`.
    `has_runner`: False if `event` is a start, but no runner of the instance is alive now.
    `unreadable_segments`: the segments of the event log that can't be read.
    """

    address: Address
    event: LoggedEvent | None = None
    commit: CommitRecord | None = None
    is_first: bool = False
    seconds_before: float | None = None
    was_killed: bool = False
    later_events: tuple[LoggedEvent, ...] = ()
    has_runner: bool = True
    unreadable_segments: tuple[str, ...] = ()

    @property
    def cause(self) -> Cause | None:
        """Return the cause of the event."""
        return self.event.event.cause if self.event is not None else None


def explain(store: Store, address: Address, at: float | None = None) -> Explanation:
    """Explain why a query last started or stopped. `at`: up to this time (seconds since the epoch)."""
    reader = EventReader(store.backend)
    events = _events_to_explain(reader, address, at)
    unreadable_segments = tuple(reader.unreadable_segments)
    past = [logged for logged in events if at is None or seconds_of(logged.event) <= at]
    running = _of_status(store, address) if at is None else None
    if running is not None and all(logged.event.run_id != running.event.run_id for logged in past):
        past = list(_in_order([*past, running]))  # the runner writes its log after its Status
    last = next((n for n in range(len(past) - 1, -1, -1) if _bounds_run(past, n, address)), None)
    if last is None:
        return Explanation(address=address, unreadable_segments=unreadable_segments)
    event = past[last].event
    before = [logged.event for logged in past[:last] if logged.event.address == address]
    ran, was_killed = _run_time(past[: last + 1], address)
    return Explanation(
        address=address,
        event=past[last],
        commit=_commit_of(store, event.cause),
        is_first=event.kind == "started" and not any(earlier.kind == "started" for earlier in before),
        seconds_before=ran,
        was_killed=was_killed,
        later_events=tuple(logged for logged in past[last + 1 :] if logged.event.address == address),
        has_runner=at is not None or event.kind != "started" or _has_runner(store, past[last].instance),
        unreadable_segments=unreadable_segments,
    )


def _has_runner(store: Store, name: str) -> bool:
    return store.leases.leader(name) is not None or is_dry(store.read_state().instances, name)


def _events_to_explain(reader: EventReader, address: Address, at: float | None) -> list[LoggedEvent]:
    """Return the events, oldest first, that explain a query's last event up to a time."""
    events: list[LoggedEvent] = []
    starts = 0
    for logged in reader.newest_first(lambda line: _mentions(line, address) or b'"runner-' in line):
        event = logged.event
        if (event.address is None or event.address == address) and (at is None or seconds_of(event) <= at):
            events.append(logged)
            starts += event.kind == "started"
        if starts > 2 or len(events) >= MOST:
            break
    return list(_in_order(reversed(events)))


def _of_status(store: Store, address: Address) -> LoggedEvent | None:
    """Return the start of the run that a runner's Status shows, as an event."""
    for instance, status in store.read_statuses().items():
        seen = status.observations.get(address)
        cause = seen.started_because if seen is not None else None
        if seen is not None and cause is not None and cause.at is not None:
            start = Event(
                at=cause.at,
                kind="started",
                address=address,
                run_id=seen.run_id,
                generation=seen.generation,
                cause=cause,
            )
            return LoggedEvent(instance=instance, event=start)
    return None


def _bounds_run(events: list[LoggedEvent], number: int, address: Address) -> bool:
    """Return whether this event started or ended a run of the query, or ended its runner."""
    event, instance = events[number].event, events[number].instance
    if event.address == address:
        return event.kind in _OF_A_RUN
    if event.kind != "runner-ended":
        return False
    bounds = (logged for logged in reversed(events[:number]) if _bounds(logged, address, instance))
    last = next(bounds, None)
    return last is not None and last.event.kind == "started" and last.instance == instance


def _bounds(logged: LoggedEvent, address: Address, instance: str) -> bool:
    """Return whether this event separates two runs of the query on an instance."""
    event = logged.event
    if event.address == address:
        return event.kind in _OF_A_RUN
    return event.kind in _OF_A_RUNNER and logged.instance == instance


def _run_time(past: list[LoggedEvent], address: Address) -> tuple[float | None, bool]:
    """Return how long the query had run before, and whether that is an upper bound.

    It is an upper bound if the runner was killed at an unknown time.
    """
    own_events = [n for n, logged in enumerate(past[:-1]) if logged.event.address == address]
    start = next((n for n in reversed(own_events) if past[n].event.kind == "started"), None)
    if start is None:
        return None, False
    ends = (logged for logged in past[start + 1 :] if _bounds(logged, address, past[start].instance))
    end = next(ends, past[-1]).event
    return max(0.0, seconds_of(end) - seconds_of(past[start].event)), end.kind == "runner-began"


def _commit_of(store: Store, cause: Cause | None) -> CommitRecord | None:
    if cause is None or not cause.serial:
        return None
    try:
        return committed_state(store, cause.serial).commit
    except MzplanError:
        return None
