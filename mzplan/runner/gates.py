"""What holds queries back on an instance that is led from here."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from mzplan.controller.types import InstanceId
from mzplan.runner.canaries import Canaries
from mzplan.runner.handover import Handover
from mzplan.store.store import Store


class Gates(NamedTuple):
    """In the order in which the controller asks them. The runner and its controller share them."""

    handover: Handover
    canaries: Canaries


def gates_of(store: Store, instance: InstanceId, clock: Callable[[], float]) -> Gates:
    """With the verdicts that are written down. To be read under the lease. Raises MzplanError."""
    before = store.read_status(instance)
    return Gates(Handover(store, instance, clock), Canaries(before.canaries if before is not None else {}))
