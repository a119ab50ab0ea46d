"""The metrics and the run events of a runner, as the committed state configures them."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from mzplan.controller.observations import InstanceOverview
from mzplan.host.extras import missing_extras_reported, require_extra
from mzplan.model.diagnostics import Diagnostic, MzplanError, sentence
from mzplan.model.history import GitRevision
from mzplan.model.resources import MetricsPlace, ProjectSettings, RunEventSettings, RunnerSettings, Webhook
from mzplan.runner.metrics import MetricsServer
from mzplan.runner.notifications import Notifier
from mzplan.runner.run_events.receiver import cleartext_warning, receiver_of
from mzplan.runner.run_events.watch import EventSender, RunWatch
from mzplan.secrets.policy import Policy
from mzplan.secrets.references import Secrets

log = logging.getLogger("mzplan.runner")

RETRY_SECONDS = 60.0  # after which a metrics server that couldn't start is started again
LAST_SECONDS = 5.0  # seconds in which a stopping runner may still send its queued events


class RunEvents:
    """Reports the runs of a runner's queries. Does nothing without a sender."""

    def __init__(self, sender: EventSender | None = None, interval: float = 0.0):
        self._sender = sender
        self._watch = RunWatch(sender.put, interval) if sender is not None else None

    def follow(self, revision: GitRevision | None) -> None:
        """Name the git commit of the newest serial in later events."""
        if self._watch is not None:
            self._watch.revision = revision

    def observe(self, overview: InstanceOverview) -> None:
        """Queue events for the changes of a round. Call after each round."""
        if self._watch is None:
            return
        try:
            self._watch.observe(overview)
        except Exception:  # a defect may cost events, but never a query
            log.exception("stopped sending run events")
            self._watch = None

    def close(self, *, lost: bool) -> None:
        """Report the end of every run, and send the queued events for at most LAST_SECONDS.

        `lost`: whether the queries stopped because another runner leads.
        """
        if self._watch is not None:
            self._watch.close("ABORT" if lost else "COMPLETE")
        if self._sender is not None:
            self._sender.close(LAST_SECONDS)


class Telemetry:
    """Runs the metrics server and the run events. Restarts each when a commit changes its settings.

    `serve` starts the metrics server, and `report` the run events. `place`, from the command line, overrides
    the metrics address in the state. If the metrics server can't start, `observe` starts it again after
    RETRY_SECONDS. `notifier` starts to notify a webhook; None if the runner notifies nobody. `clock` returns
    monotonic seconds.
    """

    def __init__(
        self,
        instance: str,
        serve: Callable[[MetricsPlace], MetricsServer | None],
        report: Callable[[RunEventSettings], RunEvents],
        place: MetricsPlace | None = None,
        clock: Callable[[], float] = time.monotonic,
        notifier: Callable[[Webhook], Notifier] | None = None,
    ):
        self._instance = instance
        self._serve, self._report = serve, report
        self._override = place
        self._clock, self._serve_again_at = clock, 0.0
        self._place: MetricsPlace | None = None
        self._server: MetricsServer | None = None
        self._settings: RunEventSettings | None = None
        self._events = RunEvents()
        self._notifier = notifier
        self._hooks: tuple[Webhook, ...] = ()
        self._notifiers: list[Notifier] = []

    def configure(self, settings: RunnerSettings, revision: GitRevision | None = None) -> None:
        """Restart the metrics or the run events if the committed settings differ from the current ones.

        `revision`: the git commit of the newest serial.
        """
        place = self._override or settings.metrics.get(self._instance)
        if place != self._place:
            self.close_server()
            self._place = place
            self._start_server()
        if settings.run_events != self._settings:
            before, self._settings = self._events, settings.run_events
            self._events = self._report(settings.run_events)
            # In a thread, because the former server may not answer, and no round should wait for it.
            threading.Thread(target=before.close, kwargs={"lost": False}, name="events", daemon=True).start()
        self._events.follow(revision)
        if settings.notify != self._hooks and self._notifier is not None:
            self._close_notifiers(0.0)
            self._hooks, self._notifiers = settings.notify, [*map(self._notifier, settings.notify)]

    def observe(self, overview: InstanceOverview) -> None:
        """Queue run events for a round, and start the metrics server if an earlier start failed."""
        self._events.observe(overview)
        if self._server is None and self._clock() >= self._serve_again_at:
            self._start_server()

    def _start_server(self) -> None:
        self._server = self._serve(self._place) if self._place is not None else None
        self._serve_again_at = self._clock() + RETRY_SECONDS

    def close_server(self) -> None:
        """Stop serving metrics."""
        if self._server is not None:
            self._server.close()
        self._server = self._place = None

    def close(self, *, lost: bool) -> None:
        self._events.close(lost=lost)
        self._close_notifiers(LAST_SECONDS)

    def _close_notifiers(self, seconds: float) -> None:
        for notifier in self._notifiers:
            notifier.close(seconds)
        self._notifiers = []


def run_events_of(
    settings: ProjectSettings,
    run_events: RunEventSettings,
    secrets: Secrets,
    policy: Policy | None,
    warehouse: str,
) -> RunEvents:
    """Return the run events that the settings ask for. Logs a warning if the server can't be used.

    `warehouse`: an absolute path or URI.
    """
    try:
        receiver = receiver_of(run_events, settings.directory, secrets, policy, os.environ)
        if receiver is None:
            return RunEvents()
        with missing_extras_reported():
            require_extra("lineage")
            from mzplan.runner.run_events.server import LineageServer  # takes long to import
    except MzplanError as problem:
        log.warning("can't send run events: %s", "; ".join(map(_line, problem.diagnostics)))
        return RunEvents()
    if (warning := cleartext_warning(receiver)) is not None:
        log.warning("%s", _line(warning))
    namespace = run_events.namespace or settings.project
    log.info("sending run events to %s, namespace %s", receiver.server, namespace)
    server = LineageServer(receiver, namespace, settings.directory, warehouse)
    return RunEvents(EventSender(server.send, receiver.server), run_events.interval)


def _line(problem: Diagnostic) -> str:
    return f"[{problem.code}] {sentence(problem)}"
