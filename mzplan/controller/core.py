"""The controller: runs the committed queries of the instance that its process leads.

Implementations differ in the engine that hosts queries (`Executor`) and in the storage of collections
(`Storage`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypedDict, Unpack

from mzplan.controller.claims import Claims
from mzplan.controller.decision import Decision, WantedQuery
from mzplan.controller.executor import CheckResult, Executor, Measurement
from mzplan.controller.frontiers import FrontierTable
from mzplan.controller.jobs import Jobs
from mzplan.controller.leadership import Instances, Leadership
from mzplan.controller.maintenance import Maintenance, TargetMaintenance
from mzplan.controller.observations import InstanceOverview
from mzplan.controller.outages import stop_unfenced
from mzplan.controller.overview import overview_of
from mzplan.controller.queries import Queries
from mzplan.controller.runs import EventQueue, takeover
from mzplan.controller.storage import Storage
from mzplan.controller.terms import (
    Gate,
    GlobalId,
    InstanceId,
    ReadPolicy,
    Step,
    StorageError,
    StorageParameters,
)
from mzplan.model.address import Address, Place
from mzplan.model.cause import Cause
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.observed import Lease, Status
from mzplan.model.state import runs_beside
from mzplan.schema.description import Description, InlinedConnection
from mzplan.secrets.references import Secrets
from mzplan.store.claims import recorded_places
from mzplan.store.store import Store

log = logging.getLogger("mzplan.controller")

BUSY_INTERVAL = 0.05  # seconds between two rounds while work is under way
MAX_LISTED = 10  # places that one log line names


class ControllerOptions(TypedDict, total=False):
    """The optional arguments of each controller (see Controller)."""

    clock: Callable[[], float]
    parameters: StorageParameters
    gates: Sequence[Gate]
    wake_event: threading.Event


class Controller:
    """Runs the queries of the attached instance as `follow` says, unless a gate holds them.

    `clock` returns monotonic seconds. Setting `wake_event` makes `ready` return.
    """

    def __init__(
        self,
        store: Store,
        executor: Executor,
        storage: Storage,
        secrets: Secrets,
        jobs: Jobs,
        **options: Unpack[ControllerOptions],
    ):
        self.store, self.executor, self.storage = store, executor, storage
        self.secrets, self.jobs, self.gates = secrets, jobs, options.get("gates", ())
        self.clock = clock = options.get("clock", time.monotonic)
        self.wake_event = options.get("wake_event") or threading.Event()
        self.parameters = options.get("parameters") or StorageParameters()  # see `update_configuration`
        self.events = EventQueue()
        self.maintenance = Maintenance(storage, jobs, clock, self.wake)
        self.frontiers = FrontierTable(self.maintenance)
        self.targets = TargetMaintenance(
            lambda sink: executor.compact(sink, self.secrets), jobs, clock, self.wake
        )
        self._committed: dict[Address, WantedQuery] = {}  # the committed queries
        self.wanted: dict[Address, WantedQuery] = {}  # with the generations that run beside them
        self.claimed: frozenset[Place] = frozenset()  # the storage that must stay
        self.queries: Queries | None = None
        self.decisions: dict[Address, Decision] = {}
        self._previous_status: Status | None = None
        self._initialized = False
        self.instances = Instances(store, self._stop_queries)
        self.leadership = Leadership(self.instances, store, storage, clock, self.raise_epoch)
        outages = self.instances.outages
        outages.survive, outages.on_change = self.parameters.survive_store_outage, self._on_outage

    def wake(self) -> None:
        """Make `ready` return. Any thread may call it."""
        self.wake_event.set()

    # --- the wanted queries

    def follow(
        self,
        queries: Sequence[WantedQuery],
        claimed: Collection[Place] = (),
        policies: Mapping[GlobalId, ReadPolicy] | None = None,
    ) -> None:
        """Run exactly these queries, once `initialization_complete` was called.

        `queries`: the queries of this instance, and the queries of other instances that read its collections.
        `claimed`: further storage that must stay. `policies`: the collections' read policies, by id.
        """
        instance = self.instances.require()
        self.frontiers.follow(queries)
        if policies is not None:
            known = self.frontiers.by_id
            self.frontiers.set_policies((i, p) for i, p in policies.items() if known[i].policy != p)
        self._committed = {q.description.address: q for q in queries if q.instance == instance}
        assert self.queries is not None
        self._want(self._wanted_now())
        self.claimed = frozenset({*claimed, *(query.description.place for query in queries)})
        self.wake()

    def initialization_complete(self) -> None:
        """Start to act on the wanted queries. Idempotent."""
        self._initialized = True
        self.wake()

    def migrate(self, places: Sequence[Place]) -> None:
        """Migrate the storage of earlier versions of mzplan to the current layout. Idempotent."""
        self.instances.require()
        try:
            self.storage.migrate(places)
        except (OSError, StorageError) as problem:  # each query's own check reports it
            log.warning("can't read the layout of storage: %s", problem)

    def update_configuration(self, parameters: StorageParameters) -> None:
        """Change parallelism, backoff and retention of dropped storage, without restarting queries."""
        self.parameters = parameters
        self.instances.outages.survive = parameters.survive_store_outage
        if self.queries is not None:
            self._configure(self.queries)
        self.maintenance.every = self.targets.every = parameters.maintain_every
        self.wake()

    # --- the instance

    def lead(self, instance: InstanceId, owner: str) -> int:
        """Take the lease of an instance, even from another runner, and return its epoch.

        `owner` is unique even among processes with the same pid on the same machine.
        """
        lease = self.instances.connect(instance, owner)
        self.attach(lease)
        return lease.epoch

    def attach(self, lease: Lease, cause: Cause | None = None) -> None:
        """Lead an instance under a lease that this process already holds.

        `cause` is the cause to report when a query that has run before starts again. By default, the cause is
        that the runner has changed.
        """
        self.instances.attached, id_ = lease, lease.instance
        before = self._previous_status = self.store.read_status(id_)
        claims = Claims(self.store, self.executor, id_, self.parameters.retain_dropped, self.events)
        self.queries = Queries(self, claims, lease.epoch, before, cause)
        self.queries.follow(self.wanted)
        self._configure(self.queries)
        self.frontiers.instance = id_
        self.wake()

    def raise_epoch(self, epoch: int) -> int:
        """Start queries under at least this epoch, which may be higher than the lease's. Return their epoch.

        A query that comes from another instance needs a higher epoch than its former runner had.
        """
        self.instances.require()
        assert self.queries is not None
        self.queries.command_runner.epoch = max(epoch, self.queries.command_runner.epoch)
        return self.queries.command_runner.epoch

    # --- work

    def overview(self) -> InstanceOverview:
        """Return the state of the instance as of the last call of `process`."""
        if self.queries is None or not self._initialized:
            return InstanceOverview()
        return overview_of(self, self.queries)

    @property
    def busy(self) -> bool:
        """Whether work is under way, so that `process` should be called again soon."""
        queries = self.queries
        starting = any(
            d.condition == "starting" and (d.hold is None or not d.hold.starts_nothing)
            for d in self.decisions.values()
        )
        return starting or (queries is not None and (bool(queries.in_flight) or queries.claims.is_removing))

    def ready(self) -> None:
        """Wait until there is work to process."""
        self.wake_event.wait(BUSY_INTERVAL if self.busy else self.store.backend.idle_interval)
        self.wake_event.clear()

    def process(self) -> None:
        """Take the next step of each query, and return soon. Raises NotAttachedError without the lease."""
        if self.instances.loss is not None:
            self.executor.close()
        self.instances.require()
        queries = self.queries
        if queries is None or not self._initialized:
            return
        queries.collect_results()
        if not self.executor.is_open() or not self.leadership.may_start():
            self.decisions = {}
            return
        if queries.takeover is None:
            queries.takeover = self._takeover()
        self.decisions = queries.reconcile()
        if not self.instances.is_store_away and (wanted := self._wanted_now()) != self.wanted:
            self._want(wanted)
            self.wake()
        if self.instances.is_store_away and (overtaken := queries.overtaken()) is not None:
            self.instances.give_up(f"the target of {overtaken} shows that another runner leads")
            return
        self._observe(self.wanted)
        queries.check_secrets()
        if self.instances.is_store_away:
            return  # another runner may need the storage that is due for removal or maintenance
        holds = (decision.hold for decision in self.decisions.values())
        self.frontiers.maintain([hold.description for hold in holds if hold and hold.description])
        self.targets.start_due(self._running_sinks(self.wanted))
        queries.reclaim(self.decisions)

    def stop_unclaimed(self) -> None:
        """Stop the queries of this project that aren't wanted here, and log unclaimed storage."""
        self.instances.require()
        unclaimed = [r.name for r in self.executor.reports() if r.name.address not in self.wanted]
        for name in unclaimed:
            log.info("stopping %s: it is not committed on this instance", name)
            self.executor.stop(name)
        try:
            listed = self.storage.places()
            recorded = recorded_places(self.store)
        except (OSError, MzplanError) as problem:  # only the log needs the list, so the runner continues
            log.warning("can't list unclaimed storage: %s", problem)
            return
        places = sorted({*listed} - self.claimed - recorded)
        if places:
            names = ", ".join(f"{id_} g{generation}" for id_, generation in places[:MAX_LISTED])
            more = f" and {len(places) - MAX_LISTED} more" if len(places) > MAX_LISTED else ""
            log.info("unclaimed storage: %s%s (mzplan state gc)", names, more)

    def validate(self, description: Description, values: Mapping[str, str] | None = None) -> CheckResult:
        """Check a description against its servers, without changing anything. Any thread may call it.

        `values` are values of `${env:NAME}` references, by name, for this check alone.
        """
        secrets = self.secrets.proposed(values)
        secrets.permit(description)
        return self.executor.check(description, secrets)

    def update_secret_values(self, values: Mapping[str, str]) -> None:
        """Use these values of `${env:NAME}` references, by name, from now on.

        Failed queries that use a changed value are retried at once.
        """
        environment = self.secrets.environment
        changed = {f"${{env:{name}}}" for name in values if environment.get(name) != values[name]}
        environment.update(values)
        if changed and self.queries is not None:
            self.queries.retry_with_secrets(changed)
            self.wake()

    def retry_failed(self) -> None:
        """Retry failed queries at once, because a command asks for it."""
        if self.queries is not None:
            self.queries.retry_failed()
            self.wake()

    def retry_reconnected(self, connections: Mapping[Address, Address]) -> None:
        """Retry failed queries at once. `connections`: for each query, its connection that answers again."""
        if connections and self.queries is not None:
            self.queries.retry_reconnected(connections)
            self.wake()

    def inspect(self, description: Description, with_endpoint: bool = True) -> tuple[Diagnostic, ...]:
        """Return the problems of a running query's checkpoint and collection.

        If `with_endpoint`, also checks its upstream or target. Changes nothing. Any thread may call it.
        """
        missing = self.executor.missing_storage(description)
        if missing or not with_endpoint:
            return missing
        checked = self.executor.check(description, self.secrets)
        return (*checked.diagnostics, *checked.missing)

    def measure(self, description: Description) -> Measurement:
        """Measure the backlog of a query, whether it runs or not. Any thread may call it."""
        return self.executor.measure(description, self.secrets)

    def check_connection(self, connection: InlinedConnection) -> tuple[Diagnostic, ...]:
        """Return the problems of a connection, empty if it works. Any thread may call it."""
        return self.executor.check_connection(connection, self.secrets)

    def release(self) -> None:
        """Give the lease back. The caller stops the queries first."""
        self.instances.release()

    # --- inside

    def _wanted_now(self) -> dict[Address, WantedQuery]:
        """Return the committed queries, and the new generations that run beside the ones in service."""
        wanted = dict(self._committed)
        for address, decision in self.decisions.items():
            query, hold = self._committed.get(address), decision.hold
            if query is None or hold is None or not hold.beside or hold.description is None:
                continue
            new = query.description
            # The decision may be of a former state.
            if hold.description.generation < new.generation and runs_beside(address, new.body):
                at = address.beside(new.generation)
                wanted[at] = replace(query, description=replace(new, address=at))
        return wanted

    def _want(self, wanted: dict[Address, WantedQuery]) -> None:
        assert self.queries is not None
        self.wanted = wanted
        self.queries.follow(wanted)

    def _stop_queries(self) -> None:
        """Stop every query, because the lease is lost. Called on the thread that kept the lease."""
        log.error("the lease is lost: %s; stopping every query", self.instances.loss)
        self.executor.close()
        self.wake()

    def _on_outage(self, is_away: bool) -> None:
        """Stop the sinks that can't reject rows of another runner.

        Called on the thread that watches the lease. The next round would do the same, but it may be blocked
        in the store. After the outage, the next round restarts the sinks.
        """
        self.wake()
        if is_away and self.queries is not None:
            stop_unfenced(self.queries, self.wake)

    def _takeover(self) -> Cause:
        lease, versions = self.instances.require_lease(), self.executor.versions()
        cause = takeover(self.store.leases.former, self._previous_status, lease.epoch, versions)
        self.events.add("runner-began", cause=cause, detail=cause.detail, versions=versions)
        return cause

    def _configure(self, queries: Queries) -> None:
        queries.claims.retain = self.parameters.retain_dropped
        queries.backoff = self.parameters.backoff
        self.jobs.set_threads("start", self.parameters.parallelism)

    def _running_sinks(self, wanted: Mapping[Address, WantedQuery]) -> dict[Address, Description]:
        """Return the committed descriptions of the running sinks."""
        running = {address for address, decision in self.decisions.items() if decision.condition == "running"}
        return {a: w.description for a, w in wanted.items() if a in running and a.writes_target}

    def _observe(self, wanted: Mapping[Address, WantedQuery]) -> None:
        """Update uppers and conditions from the last decisions."""
        uppers: list[tuple[GlobalId, Step]] = []
        for address, decision in self.decisions.items():
            known = self.frontiers.of(wanted[address].description) if address in wanted else None
            if known is None:
                continue
            id_, generation = known.place
            known.condition = decision.condition
            run = decision.run
            if run is not None and run.name.generation == generation:
                uppers.append((id_, run.step + 1))
        self.frontiers.advance(uppers)
