"""Builds the overview of an instance from a controller's rows and decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mzplan.controller.observations import InstanceOverview, QueryState
from mzplan.controller.table import Row
from mzplan.model.observed import Counters

if TYPE_CHECKING:
    from mzplan.controller.core import Controller
    from mzplan.controller.queries import Queries


def overview_of(controller: Controller, queries: Queries) -> InstanceOverview:
    """Return the state of the instance as of the last round."""
    executor, frontiers = controller.executor, controller.frontiers
    wanted, decisions, counted = controller.wanted, controller.decisions, executor.query_counters()
    in_flight = queries.in_flight
    active = dict.fromkeys(a for a, d in decisions.items() if d.run is not None or a in in_flight)
    states, stall, tasks = {}, executor.stall(), executor.tasks_under_way()
    for address in dict.fromkeys([*wanted, *active]):
        query = wanted[address].description if address in wanted else None
        row = queries.rows.get(address) or Row(address=address)
        states[address] = QueryState(
            wanted=wanted.get(address),
            decision=decisions.get(address),
            memory=row.memory,
            upstream=row.upstream,
            retained_steps=frontiers.describe_holds(query.id) if query is not None else None,
            secret_problem=queries.secrets_in_use.problem(address, query) if query is not None else None,
            last_step=frontiers.last_step(query) if query is not None else -1,
            counters=queries.attempts.add_to(counted.get(address, Counters()), address),
            task=tasks.get(address) or row.task,
            stall=stall if address in active else None,
        )
    digests, rotated = queries.secrets_in_use.digests(wanted)
    return InstanceOverview(
        queries=states,
        busy=controller.busy,
        maintained=(*controller.maintenance.in_progress, *controller.targets.in_progress),
        secrets=digests,
        rotated=rotated,
        foreign=tuple(executor.foreign_queries()),
        reports=queries.reports,
        cores=executor.scarce_cores(),
    )
