"""Run events of one runner, from its start to its end: nothing of it may stand in the way of a query."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from mzplan.controller.observations import Overview
from mzplan.host.extras import missing_extras_reported, require_extra
from mzplan.model.diagnostics import Diagnostic, MzplanError, sentence
from mzplan.model.resources import ProjectSettings, RunEventSettings
from mzplan.runner.run_events.receiver import Receiver, clear_text, receiver_of
from mzplan.runner.run_events.sender import EventSender
from mzplan.runner.run_events.watch import RunEvent, RunWatch
from mzplan.secrets.policy import Policy
from mzplan.secrets.references import Secrets

log = logging.getLogger("mzplan.runner")

LAST_SECONDS = 5.0  # that a runner which stops gives to what it has not sent yet


class RunEvents:
    """What a runner reports of runs; nothing, where no server is named."""

    def __init__(self, sender: EventSender | None = None, interval: float = 0.0):
        self._sender = sender
        self._watch = RunWatch(sender.put, interval) if sender is not None else None

    def look(self, overview: Overview) -> None:
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


def run_events_of(
    settings: ProjectSettings,
    wanted: RunEventSettings,
    secrets: Secrets,
    policy: Policy | None,
    warehouse: str,
) -> RunEvents:
    """Those that are wanted; a server that can't be used is a warning. `warehouse`: an absolute path or
    URI."""
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
    made: list[Callable[[RunEvent], None]] = []

    def send(event: RunEvent) -> None:
        if not made:
            from mzplan.runner.run_events.server import Server

            made.append(Server(receiver, namespace, directory, warehouse).send)
        made[0](event)

    return send
