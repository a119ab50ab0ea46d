"""Pending: what is committed, and, by the last Status, not reached yet."""

from __future__ import annotations

from collections.abc import Mapping

from mzplan.model.address import natural
from mzplan.model.plan import Pending
from mzplan.model.state import Observation, ResourceState, State, Status


def find_pending(state: State, statuses: Mapping[str, Status]) -> tuple[Pending, ...]:
    """The observed queries that are not as the state requires, sorted by address.

    Its cost grows with the observations, not with the state. A query that no runner has reported is not
    among them.
    """
    found = []
    for status in statuses.values():
        for address, observation in status.observations.items():
            resource = state.resources.get(address)
            if resource is None or resource.instance != status.instance:
                continue
            reason = _why_pending(resource, observation)
            if reason:
                condition = "held" if observation.held else observation.condition
                found.append(Pending(address=address, condition=condition, reason=reason))
    return tuple(sorted(found, key=lambda pending: natural(pending.address)))


def _why_pending(resource: ResourceState, seen: Observation) -> str:
    """Why the query is not as committed; "" when it is."""
    if resource.paused:
        return "" if seen.condition in ("paused", "stopped") else _error(seen) or "to be paused"
    if seen.held:
        return seen.held
    if seen.condition in ("rejected", "failed"):
        return _error(seen) or seen.condition
    if (seen.generation, seen.digest) != (resource.generation, resource.digest):
        return _error(seen) or _backfill(resource, seen) or "the committed description is not running yet"
    if seen.condition == "running":
        return ""
    return _error(seen) or ("to be resumed" if seen.condition == "paused" else seen.condition)


def _backfill(resource: ResourceState, seen: Observation) -> str:
    return "; ".join(f"the backfill {one} is not done yet" for one in resource.open_backfills(seen))


def _error(seen: Observation) -> str:
    if not seen.error:
        return ""
    return f"{seen.error_code}: {seen.error}" if seen.error_code else seen.error
