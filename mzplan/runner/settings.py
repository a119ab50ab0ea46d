"""How a runner works, as the committed state says: the pace of retries, and how long storage is kept."""

from __future__ import annotations

from dataclasses import replace

from mzplan.controller.reconcile import Pace
from mzplan.controller.types import StorageParameters
from mzplan.model.resources import RunnerSettings


def parameters_of(settings: RunnerSettings, now: StorageParameters) -> StorageParameters:
    """What the settings say of parameters; of others, those of `now`."""
    retries = settings.retries
    pace = Pace(first=retries.first, last=retries.last, budget=retries.budget)
    return replace(now, retain_dropped=settings.retain_dropped, pace=pace)
