"""Drift: the State compared with the Status, as data. Reads nothing itself."""

from __future__ import annotations

from collections.abc import Mapping

from mzplan.model.plan import DriftItem
from mzplan.model.state import Observation, ResourceState, State, Status


def drift_between(
    state: State, statuses: Mapping[str, Status], alive: Mapping[str, bool]
) -> tuple[DriftItem, ...]:
    """Every committed query that is not as committed, by address. `alive`: instances that have a runner.

    A change that is still on its way (`starting`) is no drift; one that was rejected or failed is.
    """
    found = []
    for address, resource in sorted(state.resources.items()):
        if address.kind == "connection":
            continue
        declared = state.instances.get(resource.instance)
        running = alive.get(resource.instance, False) or (declared is not None and declared.type == "dry")
        status = statuses.get(resource.instance)
        item = _compare(resource, status.observations.get(address) if status else None, running)
        if item is not None:
            found.append(item)
    return tuple(found)


def _compare(resource: ResourceState, seen: Observation | None, running: bool) -> DriftItem | None:
    def drift(kind: str, detail: str) -> DriftItem:
        return DriftItem(address=str(resource.address), kind=kind, detail=detail)

    if resource.paused:
        return None
    if not running:
        return drift("missing-query", f"no runner of instance {resource.instance} is alive")
    if seen is None:
        return drift("missing-query", "the runner has not taken it in yet")
    if seen.condition == "failed":
        return drift("failed-query", seen.error or "it failed")
    if seen.condition == "rejected":
        return drift("outdated-query", f"the committed change was rejected: {seen.error or ''}".rstrip(": "))
    if seen.condition == "stopped":
        return drift("missing-query", "it does not run")
    if seen.condition == "running" and seen.digest != resource.digest:
        return drift("outdated-query", "an older description runs than the committed one")
    return None
