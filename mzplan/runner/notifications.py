"""Notifications: what a webhook is told about an instance, on a thread of its own.

Failures come from the event log in the store. A journal beside it says which events were sent, so the next
runner sends what a killed one hasn't: each failure in the log is sent at least once. Drift and new serials
are compared with the journal, too.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from mzplan.model.codec import decode, encode, parse_json
from mzplan.model.event import Event
from mzplan.model.plan import DriftItem
from mzplan.model.resources import Webhook
from mzplan.model.state import State
from mzplan.runner.loop import Runner
from mzplan.runner.metrics import FindDrift
from mzplan.secrets.resolved import scrub, shortened
from mzplan.store.event_log import EventReader, LoggedEvent
from mzplan.store.formats import canonical

log = logging.getLogger("mzplan.runner")

INTERVAL = 5.0  # seconds between two looks at the event log
DRIFT_SECONDS = 60.0  # for which a drift lasts before it is sent
FIRST_WAIT, LAST_WAIT = 1.0, 60.0  # seconds between attempts to send: the first and the longest backoff
_MAX_TEXT = 1000  # characters of a detail

Message = dict[str, Any]
Send = Callable[[Message], None]
"""Posts a message. Raises RefusedMessageError to drop it, and any other exception to retry."""


class RefusedMessageError(Exception):
    """The server will never accept this message, so a retry can't help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What a webhook was told.

    - `epoch`, `at`: of the last event that was handled. `handled`: the digests of the events at that time.
    - `failing`: what was sent as `ADDRESS KIND`, each with the serial of that failure or refusal.
    - `serial`: the newest serial that was sent. `drift`: the drift that was sent, as `ADDRESS KIND`.
    """

    epoch: int = 0
    at: str = ""
    handled: tuple[str, ...] = ()
    failing: tuple[tuple[str, int], ...] = ()
    serial: int = 0
    drift: tuple[str, ...] = ()


class Notifier:
    """Tells one webhook about the runner's instance, from `start` until `close`.

    `clock`: returns monotonic seconds.
    """

    def __init__(
        self,
        runner: Runner,
        project: str,
        hook: Webhook,
        send: Send,
        find_drift: FindDrift,
        interval: float = INTERVAL,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._runner, self._project, self._hook = runner, project, hook
        self._send, self._find_drift = send, find_drift
        self._interval, self._clock = interval, clock
        name = hashlib.sha256(hook.url.encode()).hexdigest()[:12]
        self._key = f"notifications/{runner.instance}.{name}.json"
        self._backend = runner.store.backend
        self._reader = EventReader(self._backend)
        self._journal: Journal | None = None
        self._drift_since: dict[str, float] = {}
        self._logged = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notifications", daemon=True)

    def start(self) -> Notifier:
        """Start the thread, and return this notifier."""
        self._thread.start()
        return self

    @property
    def has_journal(self) -> bool:
        """Return whether failures from now on are sent, also by another runner."""
        return self._journal is not None

    def close(self, seconds: float) -> None:
        """Stop, and wait for at most the given seconds. The next runner sends what is left."""
        self.stop()
        self._thread.join(seconds)

    def stop(self) -> None:
        """Stop after the current attempt to send."""
        self._closing.set()

    def _run(self) -> None:
        while True:
            try:
                self.look()
            except Exception as problem:  # the store doesn't answer, or a defect: no query may notice
                self._log_problem(f"{type(problem).__name__}: {problem}")
                self._read_again()
            if self._closing.wait(self._interval):
                return

    def look(self) -> None:
        """Send what is new. Returns early if the notifier closes, or if another runner leads."""
        state = self._runner.state
        if state is None or self._runner.controller.instances.loss is not None:
            return
        if self._journal is None:
            self._journal = self._read_journal(state)
            old = self._reader.newest_first(lambda line: True)
            events = reversed([logged for logged in old if self._is_new(logged, self._journal)])
            waiting = [*events, *self._reader.fresh()]
        else:
            waiting = list(self._reader.fresh())
        steps = (
            self._of_recovered(),
            self._of_events(waiting),
            self._of_serial(state),
            self._of_drift(state),
        )
        for messages in steps:
            for message, journal in messages:
                if message is not None and message["topic"] in self._hook.on and not self._deliver(message):
                    self._read_again()
                    return
                if journal != self._journal:
                    self._journal = journal
                    self._write(journal)

    def _read_again(self) -> None:
        """Read the journal and everything that was not sent with the next look."""
        self._journal, self._reader = None, EventReader(self._backend)

    def _read_journal(self, state: State) -> Journal:
        """Return the journal. A new webhook is told what happens from now on."""
        blob = self._backend.read(self._key)
        if blob is not None:
            try:
                return decode(Journal, parse_json(blob.data))
            except ValueError:
                log.warning("[MZ342] %s is damaged. Notifications continue from now on", self._key)
        newest = max(map(_order, self._own(self._reader.fresh())), default=(0, ""))
        self._reader = EventReader(self._backend)
        journal = Journal(epoch=newest[0], at=newest[1], handled=("*",), serial=state.serial)
        self._write(journal)
        return journal

    def _write(self, journal: Journal) -> None:
        self._backend.write(self._key, (canonical(encode(journal)) + "\n").encode())

    def _own(self, events: Iterator[LoggedEvent] | list[LoggedEvent]) -> Iterator[Event]:
        return (logged.event for logged in events if logged.instance == self._runner.instance)

    def _is_new(self, logged: LoggedEvent, journal: Journal) -> bool:
        if logged.instance != self._runner.instance:
            return False
        order, last = _order(logged.event), (journal.epoch, journal.at)
        known = journal.handled
        return order > last or (order == last and "*" not in known and _digest(logged.event) not in known)

    def _of_recovered(self) -> Iterator[tuple[Message | None, Journal]]:
        """Forget the failures of running queries: a restarted runner logs no event that they recovered."""
        journal, observed = self._journal, self._runner.status.observed
        assert journal is not None
        if observed is None:
            return
        seen = observed.observations.items()
        running = {str(address) for address, one in seen if one.runs_or_completed and not one.error}
        still = tuple(one for one in journal.failing if one[0].split()[0] not in running)
        if still != journal.failing:
            yield None, replace(journal, failing=still)

    def _of_events(self, waiting: list[LoggedEvent]) -> Iterator[tuple[Message | None, Journal]]:
        for logged in waiting:
            journal, event = self._journal, logged.event
            assert journal is not None
            if event.kind not in ("failed", "refused", "healed") or not self._is_new(logged, journal):
                continue
            last = (journal.epoch, journal.at) == _order(event)
            digests = (*(journal.handled if last else ()), _digest(event))
            after = replace(journal, epoch=event.epoch, at=event.at, handled=digests)
            failing = dict(journal.failing)
            if event.kind == "healed":
                known = failing.keys() & {f"{event.address} failed", f"{event.address} refused"}
                is_news = bool(known)
                failing = {name: serial for name, serial in failing.items() if name not in known}
            else:  # a change that was refused before its commit leaves the query running
                name = f"{event.address} {event.kind}"
                is_news = failing.get(name) != event.serial
                failing[name] = event.serial
            if is_news:
                after = replace(after, failing=tuple(sorted(failing.items())))
                yield (None if event.kind == "healed" else self._failure(event)), after

    def _failure(self, event: Event) -> Message:
        what = "was refused" if event.kind == "refused" else "failed"
        detail = shortened(event.detail, _MAX_TEXT)
        code = f" [{event.code}]" if event.code else ""
        return self._message(
            "failed",
            f"{event.address} {what}{code}: {detail}",
            address=str(event.address),
            code=event.code,
            detail=detail,
            serial=event.serial,
            at=event.at,
        )

    def _of_serial(self, state: State) -> Iterator[tuple[Message | None, Journal]]:
        journal, record = self._journal, state.commit
        assert journal is not None
        if state.serial <= journal.serial:
            return
        text = f"follows serial {state.serial}"
        if record is not None:
            changes = ", ".join(f"{number} {action}" for action, number in sorted(record.summary.items()))
            by = f"{record.command} by {record.actor or record.user}"
            text += (
                f" ({by}{': ' + changes if changes else ''}) {shortened(record.message, _MAX_TEXT)}".rstrip()
            )
        after = replace(journal, serial=state.serial)
        yield self._message("applied", text, serial=state.serial, at=record.time if record else None), after

    def _of_drift(self, state: State) -> Iterator[tuple[Message | None, Journal]]:
        observed = self._runner.status.observed
        if "drift" not in self._hook.on or observed is None:
            return
        items = {f"{i.address} {i.kind}": i for i in self._find_drift(state, observed, time.time())}
        if "failed" in self._hook.on:  # it is told by the event
            items = {name: item for name, item in items.items() if item.kind != "failed-query"}
        now = self._clock()
        self._drift_since = {name: self._drift_since.get(name, now) for name in items}
        for name, item in sorted(items.items()):
            journal = self._journal
            assert journal is not None
            if name not in journal.drift and now - self._drift_since[name] >= DRIFT_SECONDS:
                yield self._drift(item), replace(journal, drift=(*journal.drift, name))
        journal = self._journal
        assert journal is not None
        yield None, replace(journal, drift=tuple(name for name in journal.drift if name in items))

    def _drift(self, item: DriftItem) -> Message:
        detail = shortened(item.detail, _MAX_TEXT)
        text = f"{item.address} has drifted ({item.kind}): {detail}"
        return self._message("drift", text, address=item.address, kind=item.kind, detail=detail)

    def _message(self, topic: str, text: str, **more: Any) -> Message:
        project, instance = self._project, self._runner.instance
        told = {name: value for name, value in more.items() if value}
        head = {"text": f"{project}/{instance}: {text}", "topic": topic}
        return {**head, "project": project, "instance": instance, **told}

    def _deliver(self, message: Message) -> bool:
        """Send a message until the webhook accepts or refuses it. Return False if the notifier closes."""
        wait = FIRST_WAIT
        while not self._closing.is_set():
            try:
                self._send(message)
            except RefusedMessageError as problem:
                log.warning(
                    "[MZ342] the webhook %s refuses a notification, which is dropped: %s",
                    self._hook.url,
                    scrub(str(problem)),
                )
                return True
            except Exception as problem:
                self._log_problem(str(problem) or type(problem).__name__)
            else:
                self._log_problem("")
                return True
            if self._closing.wait(wait):
                break
            wait = min(2 * wait, LAST_WAIT)
        return False

    def _log_problem(self, problem: str) -> None:
        """Log a problem when it begins and when it changes."""
        problem = shortened(problem, 300)
        if problem and problem != self._logged:
            log.warning(
                "[MZ342] notifications can't be sent to %s: %s. Queries continue", self._hook.url, problem
            )
        self._logged = problem


def _order(event: Event) -> tuple[int, str]:
    """Return the place of an event: clocks of different machines aren't compared."""
    return event.epoch, event.at


def _digest(event: Event) -> str:
    return hashlib.sha256(canonical(encode(event)).encode(errors="replace")).hexdigest()[:16]
