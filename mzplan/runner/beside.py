"""What a runner does beside its queries, as the committed state says: its metrics, and run events."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable

from mzplan.controller.observations import InstanceOverview
from mzplan.host.extras import missing_extras_reported, require_extra
from mzplan.model.diagnostics import Diagnostic, MzplanError, sentence
from mzplan.model.resources import MetricsPlace, ProjectSettings, RunEventSettings, RunnerSettings
from mzplan.runner.metrics import MetricsServer
from mzplan.runner.run_events.receiver import Receiver, clear_text, receiver_of
from mzplan.runner.run_events.server import LineageServer
from mzplan.runner.run_events.watch import EventSender, RunEvent, RunWatch
from mzplan.secrets.policy import Policy
from mzplan.secrets.references import Secrets

log = logging.getLogger("mzplan.runner")

LAST_SECONDS = 5.0  # that a runner which stops gives to what it has not sent yet


class RunEvents:
    """What a runner reports of runs; nothing, where no server is named."""

    def __init__(self, sender: EventSender | None = None, interval: float = 0.0):
        self._sender = sender
        self._watch = RunWatch(sender.put, interval) if sender is not None else None

    def look(self, overview: InstanceOverview) -> None:
        """After each round."""
        if self._watch is None:
            return
        try:
            self._watch.look(overview)
        except Exception:  # a defect of ours: it costs events, never a query
            log.exception("run events are not sent any more")
            self._watch = None

    def close(self, *, lost: bool) -> None:
        """Every query is stopped. `lost`: because another runner leads."""
        if self._watch is not None:
            self._watch.close("ABORT" if lost else "COMPLETE")
        if self._sender is not None:
            self._sender.close(LAST_SECONDS)


class Beside:
    """Both, begun anew where a commit changes what is said of them. `serve` and `report` begin them; `place`
    is where metrics are served whatever the state says, as whoever has started the runner wants it."""

    def __init__(
        self,
        instance: str,
        serve: Callable[[MetricsPlace], MetricsServer | None],
        report: Callable[[RunEventSettings], RunEvents],
        place: MetricsPlace | None = None,
    ):
        self._instance = instance
        self._serve, self._report = serve, report
        self._fixed = place
        self._place: MetricsPlace | None = None
        self._server: MetricsServer | None = None
        self._wanted: RunEventSettings | None = None
        self._events = RunEvents()

    def take_in(self, settings: RunnerSettings) -> None:
        """What is committed now."""
        place = self._fixed or settings.metrics.get(self._instance)
        if place != self._place:
            self.close_server()
            self._place = place
            self._server = self._serve(place) if place is not None else None
        if settings.run_events != self._wanted:
            before, self._wanted = self._events, settings.run_events
            self._events = self._report(settings.run_events)
            # Its server may not answer: no round waits for that.
            threading.Thread(target=before.close, kwargs={"lost": False}, name="events", daemon=True).start()

    def look(self, overview: InstanceOverview) -> None:
        """After each round."""
        self._events.look(overview)

    def close_server(self) -> None:
        """Nobody is served metrics any more."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self, *, lost: bool) -> None:
        """Every query is stopped. `lost`: because another runner leads."""
        self._events.close(lost=lost)


def run_events_of(
    settings: ProjectSettings,
    wanted: RunEventSettings,
    secrets: Secrets,
    policy: Policy | None,
    warehouse: str,
) -> RunEvents:
    """The events of runs that the settings ask for; a server that can't be used is a warning. `warehouse`: an
    absolute path or URI."""
    try:
        receiver = receiver_of(wanted, settings.directory, secrets, policy, os.environ)
        if receiver is None:
            return RunEvents()
        with missing_extras_reported():
            require_extra("lineage")
    except MzplanError as problem:
        log.warning("run events are not sent: %s", "; ".join(map(_line, problem.diagnostics)))
        return RunEvents()
    if (warning := clear_text(receiver)) is not None:
        log.warning("%s", _line(warning))
    namespace = wanted.namespace or settings.project
    log.info("run events are sent to %s, of jobs in namespace %s", receiver.server, namespace)
    sender = EventSender(_sending(receiver, namespace, settings.directory, warehouse), receiver.server)
    return RunEvents(sender, wanted.interval)


def _line(problem: Diagnostic) -> str:
    return f"[{problem.code}] {sentence(problem)}"


def _sending(
    receiver: Receiver, namespace: str, directory: str, warehouse: str
) -> Callable[[RunEvent], None]:
    """Makes the client when it is needed first, in the sender's thread: its library takes long to import."""
    senders: list[Callable[[RunEvent], None]] = []

    def send(event: RunEvent) -> None:
        if not senders:
            senders.append(LineageServer(receiver, namespace, directory, warehouse).send)
        senders[0](event)

    return send
