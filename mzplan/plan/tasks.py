"""Plans of tasks: what a query does once before it starts (a backfill, a replay), recorded in the state
until it is done."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from mzplan.model.address import natural
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.graph import DependencyGraph
from mzplan.model.observed import Status
from mzplan.model.plan import Change, Plan
from mzplan.model.state import Backfill, Replay, ResourceState, State, Task
from mzplan.plan.causes import task_reason
from mzplan.plan.manual_changes import plan_of
from mzplan.schema.description import digest_of


def left_of(record: ResourceState, statuses: Mapping[str, Status]) -> tuple[Task, ...]:
    """The tasks of a query that are not known to be done."""
    status = statuses.get(record.instance)
    seen = status.observations.get(record.address) if status is not None else None
    return tuple(task for task in record.tasks if not record.has_done(task, seen))


def plan_tasks(
    state: State,
    before: ResourceState,
    tasks: Sequence[Task],
    statuses: Mapping[str, Status],
    notices: tuple[Diagnostic, ...] = (),
) -> Plan:
    """A plan that gives a query these tasks in place of all that it had; the query restarts for them."""
    after = dataclasses.replace(
        before,
        backfills=tuple(task for task in tasks if isinstance(task, Backfill)),
        replays=tuple(task for task in tasks if isinstance(task, Replay)),
        restart_token=before.restart_token + 1,
    )
    after = dataclasses.replace(after, digest=digest_of(after, state.resources))
    change = Change(
        address=before.address,
        action="restart",
        effect="restart",
        reason=task_reason(before, after),
        before=before,
        after=after,
        cause="hand",
    )
    downstream = DependencyGraph.of(state.resources).reach([before.address]) - {before.address}
    return plan_of(state, [change], statuses, tuple(sorted(downstream, key=natural)), notices)
