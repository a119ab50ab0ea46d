"""The proof of a repair: where each query that a changed connection has restarted went on, and what it has
read since."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from mzplan.model.address import Address, natural
from mzplan.model.plan import Plan
from mzplan.model.state import Observation, State
from mzplan.operations.follower import Outcome
from mzplan.store.newest_status import NewestStatus
from mzplan.store.store import Store

PATIENCE = 6.0  # seconds for the runner to tell: it counts what is durable, and reports every two


def resumed_queries(
    store: Store,
    state: State,
    plan: Plan,
    outcomes: Mapping[Address, Outcome],
    before: Mapping[Address, str | None],
    until: float,
) -> dict[Address, Observation]:
    """What runners tell of the queries that came up again after a connection changed. Waits a moment for what
    is not counted yet, or not read: what waits is measured now and then, and may have been read since; but
    not past `until`, in seconds, monotonic."""
    if not any(change.address.kind == "connection" for change in plan.changes):
        return {}
    wanted = {
        address: outcome.run_id
        for address, outcome in outcomes.items()
        if outcome.status == "applied" and outcome.run_id not in (None, before.get(address))
    }
    instances = sorted({state.resources[a].instance for a in wanted if a in state.resources}, key=natural)
    statuses = [NewestStatus(store, name) for name in instances]
    until = min(until, time.monotonic() + PATIENCE)
    while True:
        found = _observed(statuses, wanted)
        complete = all(one.run_rows is not None and one.lag == 0 for one in found.values())
        if complete or time.monotonic() >= until:
            return found
        time.sleep(store.backend.look)


def _observed(
    statuses: Sequence[NewestStatus], wanted: Mapping[Address, str | None]
) -> dict[Address, Observation]:
    found: dict[Address, Observation] = {}
    for newest in statuses:
        status = newest.read()
        seen = status.observations if status is not None else {}
        found |= {
            address: one
            for address, one in seen.items()
            if one.resumed is not None and one.run_id is not None and wanted.get(address) == one.run_id
        }
    return found
