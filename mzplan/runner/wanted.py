"""The queries that a committed state wants an instance to run."""

from __future__ import annotations

from mzplan.controller.decision import COMMITTED_CHANGE, WantedQuery
from mzplan.controller.terms import LagDuration, LagSteps, ReadPolicy, RetainFrom
from mzplan.model.state import State
from mzplan.model.times import seconds
from mzplan.schema.description import Description, describe
from mzplan.schema.source_columns import collection_kind


def wanted_queries(state: State, instance: str) -> list[WantedQuery]:
    """Return the queries of an instance, and the queries of other instances that read its collections.

    Queries that write collections come first.
    """
    queries = [r for a, r in state.resources.items() if a.is_query]
    queries.sort(key=lambda resource: not resource.address.writes_collection)
    own = {r.address for r in queries if r.instance == instance}
    return [
        WantedQuery(
            description=describe(resource, state.resources),
            paused=resource.paused,
            cause=resource.because or COMMITTED_CHANGE,
            instance=resource.instance,
        )
        for resource in queries
        if resource.address in own or not own.isdisjoint(resource.reads.values())
    ]


def policy_of(query: Description) -> ReadPolicy:
    """Return the read policy that a source's `retention` asks for; its default is 7 days."""
    retention = collection_kind(query.type).with_defaults(query.body).get("retention", {})
    match retention:
        case {"steps": int(steps)}:
            return LagSteps(steps=steps)
        case {"duration": str(duration)}:
            return LagDuration(seconds=seconds(duration))
        case {"from": int(step)}:
            return RetainFrom(step=step)
    return RetainFrom(step=0)  # a third-party connector, whose schema has no retention
