"""Everything that the store shows of a project at one moment, for callers that poll it.

Only the store is read. No secret is resolved, and no server or warehouse is contacted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from mzplan.config.project_files import SECTIONS
from mzplan.config.yaml.events import document
from mzplan.model.address import Address, natural
from mzplan.model.diagnostics import error
from mzplan.model.graph import DependencyGraph
from mzplan.model.history import HistoryEntry
from mzplan.model.observed import Recent
from mzplan.model.plan import DriftItem, Pending
from mzplan.model.state import ProjectStatus, QueryStatus, ResourceState, State
from mzplan.operations.commits import entry_of
from mzplan.operations.project import Project
from mzplan.operations.status import find_drift, status_of_project
from mzplan.plan.drift import find_pending
from mzplan.store.newest_status import NewestStatus
from mzplan.store.store import Store

HISTORY = 100  # maximum serials to compare when looking for a resource's origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """State and statuses, with what follows from them.

    `read_at` is in seconds since the epoch. `drift` comes from the statuses; `mzplan drift` also compares
    secrets and storage."""

    state: State
    status: ProjectStatus
    queries: Mapping[Address, QueryStatus]
    graph: DependencyGraph
    pending: tuple[Pending, ...]
    drift: tuple[DriftItem, ...]
    read_at: float
    environments: tuple[str, ...] = ()  # of the project, by name


class OverviewReader:
    """Polls the store, and reads only files that have changed. For one thread."""

    def __init__(self, project: Project):
        self._project = project
        self._store = project.store
        self._state: tuple[str | None, State, DependencyGraph] | None = None
        self._statuses: dict[str, NewestStatus] = {}
        self._last: tuple[object, Overview] | None = None

    @property
    def place(self) -> str:
        """The location of the store, for people."""
        return self._store.backend.describe()

    @property
    def pause(self) -> float:
        """The minimum number of seconds between two reads."""
        return self._store.backend.idle_interval

    def read(self) -> Overview:
        """Return the current overview; the same object as before if nothing has changed.

        Raises MzplanError if the store can't be read."""
        version = self._store.state_version()
        if self._state is None or self._state[0] != version:
            state = self._require_state(self._store.read_state())
            self._state = (version, state, DependencyGraph.of(state.resources))
        _, state, graph = self._state
        names = sorted({*self._project.settings.instances, *state.instances}, key=natural)
        for name in names:
            self._statuses.setdefault(name, NewestStatus(self._store, name)).read()
        leases = [self._store.leases.leader(name) for name in names]
        alive = tuple(lease.epoch if lease is not None else None for lease in leases)
        versions = (version, tuple(self._statuses[name].version for name in names), alive)
        # Whether a query has stalled depends on time alone, so compare again now and then.
        now = time.time()
        if self._last is None or self._last[0] != versions or now - self._last[1].read_at > 30:
            self._last = (versions, self._build(state, graph, now))
        return self._last[1]

    def recent(self) -> Recent:
        """Return the last hour's samples of all queries by their runners. Raises MzplanError."""
        return {a: samples for name in self._statuses for a, samples in self._store.read_recent(name).items()}

    def _require_state(self, state: State) -> State:
        """Return the state. Raises MZ030 if it is empty now but wasn't before."""
        before = self._state[1] if self._state is not None else state
        if before.lineage and not state.lineage:
            raise error("MZ030.state-gone", place=self.place, serial=before.serial)
        return state

    def _build(self, state: State, graph: DependencyGraph, now: float) -> Overview:
        statuses = {
            name: newest.status for name, newest in self._statuses.items() if newest.status is not None
        }
        status = status_of_project(self._project, state, statuses)
        return Overview(
            state=state,
            status=status,
            queries={query.resource.address: query for query in status.queries},
            graph=graph,
            pending=find_pending(state, statuses),
            drift=find_drift(self._project, state, statuses, rotated={}),
            read_at=now,
            environments=self._project.settings.environments,
        )


def declaration(resource: ResourceState) -> str:
    """Return a committed resource as YAML, as a file would declare it; secrets are references."""
    section = next(name for name, kind in SECTIONS.items() if kind == resource.address.kind)
    return document({section: {resource.address.name: dict(resource.body)}})


def origin_of(store: Store, state: State, address: Address) -> HistoryEntry | None:
    """Return the serial that last changed a resource.

    Returns None if it is older than the last hundred serials or than the history."""
    current, origin = state.resources.get(address), state.serial
    for serial in sorted(store.serials(), reverse=True)[:HISTORY]:
        earlier = store.read_serial(serial) if serial < state.serial else None
        if earlier is None:
            continue
        if earlier.resources.get(address) != current:
            return entry_of(store, origin)
        origin = serial
    return entry_of(store, origin) if origin == 1 else None
