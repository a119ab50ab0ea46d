"""What a runner does beside its queries, as the committed state says: its metrics, and run events."""

from __future__ import annotations

import threading
from collections.abc import Callable

from mzplan.controller.observations import Overview
from mzplan.model.resources import MetricsPlace, RunEventSettings, RunnerSettings
from mzplan.runner.metrics import MetricsServer
from mzplan.runner.run_events.reporting import RunEvents


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

    def look(self, overview: Overview) -> None:
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
