"""status and drift: the observed state, as the store shows it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from mzplan.model.address import Address, natural, natural_item
from mzplan.model.diagnostics import MzplanError
from mzplan.model.observed import Condition, Lease, Status
from mzplan.model.plan import DriftItem
from mzplan.model.resources import is_dry
from mzplan.model.state import (
    DroppedStorage,
    InstanceStatus,
    ProjectStatus,
    QueryStatus,
    ResourceState,
    StaleInput,
    State,
)
from mzplan.operations.connections import find_rotations, warehouses_elsewhere
from mzplan.operations.project import Project
from mzplan.operations.selection import ALL, Selection, choose
from mzplan.plan.canaries import verdict_of
from mzplan.plan.drift import (
    DRIFT_BY_PROBLEM,
    copied_environments,
    drift_between,
    drift_of_copies,
    edits_by_hand,
)
from mzplan.schema.kinds import resource_kind
from mzplan.schema.relations.parse import recomputes
from mzplan.schema.statement_options import StatementOptions
from mzplan.warehouse.paths import absolute, local_path

_STALE: tuple[Condition, ...] = ("failed", "degraded")


def read_project_status(project: Project, selection: Selection = ALL) -> ProjectStatus:
    """Return the status of the project, with the selected queries. Reads only the store."""
    store = project.store
    state = store.read_state()
    status = status_of_project(project, state, store.read_statuses())
    if selection.is_everything:
        return status
    chosen = {r.address for r in choose(selection, state, lambda: _conditions(status))}
    return replace(status, queries=tuple(q for q in status.queries if q.resource.address.resource in chosen))


def select(project: Project, state: State, selection: Selection) -> list[ResourceState]:
    """Return the selected queries of a state; reads the statuses for their conditions."""
    return choose(
        selection,
        state,
        lambda: _conditions(status_of_project(project, state, project.store.read_statuses())),
    )


def _end_reason(lease: Lease | None, status: Status | None) -> str:
    """Return why the runner that held the lease has ended; "" if it was stopped."""
    if lease is None:
        return ""
    if status is not None and status.epoch == lease.epoch and status.ended:
        return status.ended
    if lease.released:
        return ""
    runner = f"The last runner (process {lease.pid} on {lease.host})"
    return f"{runner} didn't release its lease: it was killed, or lost its connection to the store."


def _conditions(status: ProjectStatus) -> dict[Address, Condition]:
    return {query.resource.address: query.condition for query in status.queries}


def status_of_project(project: Project, state: State, statuses: Mapping[str, Status]) -> ProjectStatus:
    """Like read_project_status, for a given state and statuses; also reads leases and journals."""
    store = project.store
    instances = {**project.settings.instances, **state.instances}
    alive: dict[str, bool] = {}
    shown, elsewhere = [], dict(warehouses_elsewhere(project, state, statuses))
    starting_instances: set[str] = set()  # instances whose runner hasn't reported yet
    for name in sorted(instances, key=natural):
        lease = store.leases.read(name)
        dry = is_dry(instances, name)
        alive[name] = dry or store.leases.leader(name) is not None
        status = statuses.get(name)
        has_leader = alive[name] and not dry and lease is not None
        is_new = has_leader and lease is not None and (status is None or status.epoch < lease.epoch)
        if is_new:
            starting_instances.add(name)
        shown.append(
            InstanceStatus(
                name=name,
                epoch=lease.epoch if lease else 0,
                alive=alive[name],
                heartbeat=lease.heartbeat if lease else None,
                serial=status.serial if status else 0,
                is_dry=dry,
                is_embedded=instances[name].type == "embedded",
                is_starting=is_new or bool(has_leader and status and status.opening_since is not None),
                opening_since=status.opening_since if status and alive[name] else None,
                opened_in=status.opened_in if status else None,
                versions=status.versions if status else None,
                replaced=status.replaced if status and alive[name] else "",
                ended="" if alive[name] else _end_reason(lease, status),
                caught_up_at=status.caught_up_at if status and not alive[name] else None,
                cores=status.cores if status and alive[name] else 0,
                slowest=status.slowest if status and alive[name] else None,
                jobs=status.jobs if status and alive[name] else (),
                elsewhere=elsewhere.get(name),
            )
        )
    heartbeats = {instance.name: instance.heartbeat for instance in shown}
    queries = []
    for address, resource in sorted(_with_beside(state, statuses).items(), key=natural_item):
        if address.is_connection:
            continue
        status = statuses.get(resource.instance)
        observation = status.observations.get(address) if status else None
        as_of = None
        if observation is not None and not alive.get(resource.instance, False):
            # Without a runner, nobody knows whether a server answers now, or when it is retried.
            has_caught_up = status is not None and status.caught_up_at is not None
            keeps = has_caught_up and observation.condition in ("failed", "rejected")
            observation = replace(
                observation,
                condition=observation.condition if keeps else "stopped",
                input_rows_per_second=0.0,
                retry_at=None,
                at_fault=None,
            )
            as_of = heartbeats.get(resource.instance)
        elif observation is not None and resource.instance in starting_instances:
            observation = replace(observation, condition="starting", retry_at=None, at_fault=None)
        connection = observation.at_fault if observation is not None and not observation.fault_fix else None
        repair = repair_of(state, connection)
        starts = status is not None and observation is not None and observation.condition == "starting"
        queries.append(
            QueryStatus(
                resource=resource,
                observation=observation,
                as_of=as_of,
                repair=repair,
                start_stage=status.start_stage(address) if starts and status else None,
            )
        )
    dropped = tuple(
        DroppedStorage(
            address=f"{entry.kind}.{entry.name}",
            id=entry.id,
            generation=entry.generation,
            dropped_at=entry.dropped_at,
        )
        for name in sorted(instances, key=natural)
        for entry in store.read_journal(name)
    )
    return ProjectStatus(
        serial=state.serial,
        instances=tuple(shown),
        queries=_with_stale_inputs(queries),
        dropped=dropped,
        canaries=tuple((canary, verdict_of(canary, state, statuses)) for canary in state.canaries),
        environment=project.settings.environment,
    )


def _with_beside(state: State, statuses: Mapping[str, Status]) -> dict[Address, ResourceState]:
    """Return the resources, and those generations that run beside the ones in service."""
    resources = dict(state.resources)
    for status in statuses.values():
        for address in filter(lambda address: address.is_beside, status.observations):
            resource = state.resources.get(address.resource)
            if resource is not None and resource.instance == status.instance:
                resources[address] = replace(resource, address=address)
    return resources


def _with_stale_inputs(queries: Sequence[QueryStatus]) -> tuple[QueryStatus, ...]:
    """Add the failed queries upstream of each running query."""
    by_address = {query.resource.address: query for query in queries}

    def stale(reader: QueryStatus, through: Address | None) -> Iterator[StaleInput]:
        for address in {**reader.resource.reads, **reader.resource.snapshots}.values():
            query = by_address.get(address)
            if query is None:
                continue
            if query.condition in _STALE:
                as_of = query.observation.last_batch_at if query.observation is not None else None
                yield StaleInput(address=address, condition=query.condition, as_of=as_of, through=through)
            else:
                yield from stale(query, through or address)

    return tuple(
        replace(query, stale_inputs=tuple({found.address: found for found in stale(query, None)}.values()))
        if query.condition in ("running", "degraded", "starting")
        else query
        for query in queries
    )


def repair_of(state: State, connection: Address | None) -> str | None:
    """Return the ALTER statement that moves a connection to another server; None if there is none."""
    committed = state.resources.get(connection) if connection is not None else None
    if connection is None or committed is None:
        return None
    options = StatementOptions(resource_kind("connection", committed.type)).locating
    if not options:
        return None
    values = [
        f"{option.name} = " + (f"('{new}')" if option.schema.get("type") == "array" else f"'{new}'")
        for option in options
        if (new := option.schema["x-locates"])
    ]
    return f"ALTER CONNECTION {connection.name} SET {', '.join(values)}"


def find_drift(
    project: Project,
    state: State | None = None,
    statuses: Mapping[str, Status] | None = None,
    rotated: Mapping[Address, tuple[str, ...]] | None = None,
) -> tuple[DriftItem, ...]:
    """Return the differences between state and statuses; reads the arguments that aren't given."""
    store = project.store
    if state is None:
        state = store.read_state()
    if statuses is None:
        statuses = store.read_statuses()
    if rotated is None:
        rotated = find_rotations(project.settings.directory, state, statuses).queries
    alive = {name: store.leases.leader(name) is not None for name in state.instances}
    drift = drift_between(state, statuses, alive, rotated, time.time())
    reported = {(item.address, item.kind) for item in drift}
    copies = drift_of_copies(state, _other_states(project, state))
    new = (item for item in copies if (item.address, item.kind) not in reported)
    return tuple(sorted((*drift, *new), key=lambda item: (natural(item.address), item.kind)))


def _other_states(project: Project, state: State) -> dict[str, State]:
    """Return the states of the environments that a state's queries copy, as far as they can be read."""
    states = {}
    for name in copied_environments(state):
        with suppress(MzplanError):
            states[name] = project.in_environment(name).store.read_state()
    return states


# For how many seconds to wait for a runner that hasn't read the newest serial.
SETTLE = 10.0
_ON_ITS_WAY = frozenset({"missing-query", "outdated-query", "foreign-query"})


def find_all_drift(project: Project) -> tuple[int, tuple[DriftItem, ...]]:
    """Return the serial and all drift: in statuses, the state's file, and local storage.

    Raises MzplanError if the store can't be read.
    """
    store = project.store
    edits: tuple[DriftItem, ...] = ()
    try:
        state = store.read_state()
    except MzplanError as problem:
        if problem.kind != "edited":
            raise
        state = store.read_edited()
        edits = edits_by_hand(state)
    statuses = store.read_statuses()
    drift = find_drift(project, state, statuses)
    until = time.monotonic() + SETTLE
    while not edits and _is_on_its_way(project, state, statuses, drift) and time.monotonic() < until:
        time.sleep(0.2)  # a serial was just committed, and a runner is about to read it
        state, statuses = store.read_state(), store.read_statuses()
        drift = find_drift(project, state, statuses)
    reported = {(item.address, item.kind) for item in drift}
    stored = [i for i in _storage_drift(project, state, statuses) if (i.address, i.kind) not in reported]
    return state.serial, tuple(
        sorted((*edits, *drift, *stored), key=lambda item: (natural(item.address), item.kind))
    )


def _is_on_its_way(
    project: Project, state: State, statuses: Mapping[str, Status], drift: tuple[DriftItem, ...]
) -> bool:
    """Return whether drift may exist only because a live runner hasn't read this serial yet."""
    if not any(item.kind in _ON_ITS_WAY for item in drift):
        return False
    return any(
        (statuses[name].serial if name in statuses else -1) != state.serial
        and project.store.leases.leader(name) is not None
        for name in state.instances
    )


def _storage_drift(project: Project, state: State, statuses: Mapping[str, Status]) -> Iterator[DriftItem]:
    """Yield the missing collections and checkpoints, and other writers' changes, in a local warehouse.

    Runners report them in the status for warehouses elsewhere.
    """
    from mzplan.warehouse.step_history import StepHistory
    from mzplan.warehouse.storage import missing_storage

    warehouse = absolute(project.settings.directory, state.warehouse)
    place = local_path(warehouse)
    if place is None or not place.is_dir():
        return  # not on this machine
    elsewhere = dict(warehouses_elsewhere(project, state, statuses))
    for name, status in statuses.items():
        lease = project.store.leases.read(name)
        if lease is None or lease.host != socket.gethostname() or name in elsewhere:
            continue  # to its runner, that path is another folder
        if name not in state.instances or is_dry(state.instances, name):
            continue
        for address, seen in status.observations.items():
            record = state.resources.get(address)
            if record is None or seen.step < 0 or seen.generation != record.generation:
                continue
            reads = {read: state.resources[read].place for read in record.reads.values()}
            needs_each_step = not recomputes(record.body)
            for gone in missing_storage(
                warehouse, address, record.place, reads, needs_each_step=needs_each_step
            ):
                kind = DRIFT_BY_PROBLEM.get(gone.kind, "")
                if kind == "checkpoint-missing" or (kind and address.writes_collection):
                    yield DriftItem(address=str(address), kind=kind, detail=f"{gone.summary}. {gone.detail}")
            with suppress(OSError):
                foreign = StepHistory(warehouse, record.place).newest_foreign()
                if address.writes_collection and foreign is not None:
                    yield DriftItem(address=str(address), kind="unmanaged-change", detail=str(foreign))
