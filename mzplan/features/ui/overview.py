"""All that the store shows of a project at one moment, for those who look again and again.

Nothing but the store is read: no secret is resolved, no server and no warehouse is reached.
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

HISTORY = 100  # serials, at most, that are compared to find where a resource comes from


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """State and statuses, and what follows from them. `read_at` in seconds since the epoch. `drift` is what
    the statuses show: not that of secrets or of storage, which `mzplan drift` compares too."""

    state: State
    status: ProjectStatus
    queries: Mapping[Address, QueryStatus]
    graph: DependencyGraph
    pending: tuple[Pending, ...]
    drift: tuple[DriftItem, ...]
    read_at: float
    environments: tuple[str, ...] = ()  # of the project, by name


class OverviewReader:
    """Reads the store again and again; what has not changed since the last time is not read. One thread."""

    def __init__(self, project: Project):
        self._project = project
        self._store = project.store
        self._state: tuple[str | None, State, DependencyGraph] | None = None
        self._statuses: dict[str, NewestStatus] = {}
        self._last: tuple[object, Overview] | None = None

    @property
    def place(self) -> str:
        """Where the store is, for people."""
        return self._store.backend.describe()

    @property
    def pause(self) -> float:
        """Seconds to leave between two looks, at least."""
        return self._store.backend.idle

    def read(self) -> Overview:
        """The overview now: the very object of the last time where nothing has changed. Raises MzplanError
        where the store can't be read."""
        version = self._store.state_version()
        if self._state is None or self._state[0] != version:
            state = self._there(self._store.read_state())
            self._state = (version, state, DependencyGraph.of(state.resources))
        _, state, graph = self._state
        names = sorted({*self._project.settings.instances, *state.instances}, key=natural)
        for name in names:
            self._statuses.setdefault(name, NewestStatus(self._store, name)).read()
        leases = [self._store.leases.leader(name) for name in names]
        alive = tuple(lease.epoch if lease is not None else None for lease in leases)
        seen_now = (version, tuple(self._statuses[name].version for name in names), alive)
        # Whether a query has stalled is a matter of time alone, so now and then it is compared again.
        now = time.time()
        if self._last is None or self._last[0] != seen_now or now - self._last[1].read_at > 30:
            self._last = (seen_now, self._made(state, graph, now))
        return self._last[1]

    def recent(self) -> Recent:
        """What the runners have recorded of the last hour, of all queries. Raises MzplanError as `read`."""
        return {a: samples for name in self._statuses for a, samples in self._store.read_recent(name).items()}

    def _there(self, state: State) -> State:
        """A store without any file is that of a new project, unless there was a state in it before."""
        before = self._state[1] if self._state is not None else state
        if before.lineage and not state.lineage:
            raise error(
                "MZ030",
                f"The state in {self.place} is gone",
                f"It had serial {before.serial} when it was last read.",
                "check where it is kept; `mzplan state list` reads it as well.",
            )
        return state

    def _made(self, state: State, graph: DependencyGraph, now: float) -> Overview:
        statuses = {name: known.status for name, known in self._statuses.items() if known.status is not None}
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
    """A committed resource as a file would declare it: YAML, with secrets as their references."""
    section = next(name for name, kind in SECTIONS.items() if kind == resource.address.kind)
    return document({section: {resource.address.name: dict(resource.body)}})


def origin_of(store: Store, state: State, address: Address) -> HistoryEntry | None:
    """The serial that has made a resource what it is now. None where the last hundred have not, or the
    history does not reach so far."""
    now, origin = state.resources.get(address), state.serial
    for serial in sorted(store.serials(), reverse=True)[:HISTORY]:
        earlier = store.read_serial(serial) if serial < state.serial else None
        if earlier is None:
            continue
        if earlier.resources.get(address) != now:
            return entry_of(store, origin)
        origin = serial
    return entry_of(store, origin) if origin == 1 else None
