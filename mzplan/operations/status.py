"""status and drift: what the store says of reality."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.model.plan import DriftItem
from mzplan.model.state import DroppedStorage, InstanceStatus, ProjectStatus, QueryStatus, State, Status
from mzplan.operations.project import Project


def read_project_status(project: Project) -> ProjectStatus:
    """State, leases and statuses, put together. Reads only the store."""
    from mzplan.plan.canaries import verdict_of

    store = project.store
    state = store.read_state()
    statuses = store.read_statuses()
    instances = {**project.settings.instances, **state.instances}
    alive: dict[str, bool] = {}
    shown = []
    for name in sorted(instances):
        lease = store.read_lease(name)
        is_dry = instances[name].type == "dry"
        alive[name] = is_dry or store.leader(name) is not None
        status = statuses.get(name)
        shown.append(
            InstanceStatus(
                name=name,
                epoch=lease.epoch if lease else 0,
                alive=alive[name],
                heartbeat=lease.heartbeat if lease else None,
                serial=status.serial if status else 0,
            )
        )
    queries = []
    for address, resource in sorted(state.resources.items()):
        if address.kind == "connection":
            continue
        status = statuses.get(resource.instance)
        observation = status.observations.get(address) if status else None
        if observation is not None and not alive.get(resource.instance, False):
            observation = replace(observation, condition="stopped", input_rows_per_second=0.0)
        queries.append(QueryStatus(resource=resource, observation=observation))
    dropped = tuple(
        DroppedStorage(
            address=f"{entry.kind}.{entry.name}",
            id=entry.id,
            generation=entry.generation,
            dropped_at=entry.dropped_at,
        )
        for name in sorted(instances)
        for entry in store.read_journal(name)
    )
    return ProjectStatus(
        serial=state.serial,
        instances=tuple(shown),
        queries=tuple(queries),
        dropped=dropped,
        canaries=tuple((canary, verdict_of(canary, state, statuses)) for canary in state.canaries),
    )


def find_drift(
    project: Project,
    state: State | None = None,
    statuses: Mapping[str, Status] | None = None,
    rotated: Mapping[Address, tuple[str, ...]] | None = None,
) -> tuple[DriftItem, ...]:
    """State against reality, as far as the status tells. What is not given is read, or found out."""
    from mzplan.operations.rotation import find_rotations
    from mzplan.plan.drift import drift_between

    store = project.store
    if state is None:
        state = store.read_state()
    if statuses is None:
        statuses = store.read_statuses()
    if rotated is None:
        rotated = find_rotations(project.settings.directory, state, statuses).queries
    alive = {name: store.leader(name) is not None for name in state.instances}
    return drift_between(state, statuses, alive, rotated, time.time())


def find_all_drift(project: Project) -> tuple[int, tuple[DriftItem, ...]]:
    """The serial, and everything that `drift` looks at: what the status tells, the state's own file, and the
    storage where it lies on this machine. Raises MzplanError for a store that can't be read."""
    from mzplan.plan.drift import edits_by_hand

    store = project.store
    edits: tuple[DriftItem, ...] = ()
    try:
        state = store.read_state()
    except MzplanError as problem:
        if problem.diagnostics[0].code != "MZ032":
            raise
        state = store.read_edited()
        edits = edits_by_hand(state)
    found = (*edits, *find_drift(project, state), *_missing_storage(project, state))
    return state.serial, tuple(sorted(found, key=lambda item: (item.address, item.kind)))


def _missing_storage(project: Project, state: State) -> list[DriftItem]:
    """The collections and checkpoints that queries have written, and that are no longer there. Of a warehouse
    elsewhere only its runner can tell, by the query that fails."""
    from mzplan.connectors.paths import absolute, local_path

    place = local_path(absolute(project.settings.directory, state.warehouse))
    if place is None or not (place.is_dir() or place.parent.is_dir()):
        return []  # not on this machine
    found = []
    for name, status in project.store.read_statuses().items():
        instance = state.instances.get(name)
        if instance is None or instance.type == "dry":
            continue
        for address, seen in status.observations.items():
            record = state.resources.get(address)
            if record is None or seen.step < 0 or seen.generation != record.generation:
                continue
            folders = {"checkpoint-missing": "checkpoints"}
            if address.kind == "source":
                folders["collection-missing"] = "collections"
            for kind, folder in folders.items():
                path = place / folder / record.id / f"g{record.generation}"
                if not path.is_dir():
                    found.append(DriftItem(address=str(address), kind=kind, detail=f"{path} is gone"))
    return found
