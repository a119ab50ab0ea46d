"""The controller that both implementations are: what is hosted, who holds what, and what follows from it.

What differs is below it: the engine that hosts queries (`Executor`), and the storage of collections
(`Storage`). StorageController is the contract of its methods.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor as Pool
from concurrent.futures import Future

from mzplan.controller.catalog import Capabilities, Catalog
from mzplan.controller.claims import Claims, was_known
from mzplan.controller.executor import CheckResult, Executor, Measured
from mzplan.controller.instances import Instances
from mzplan.controller.maintenance import Maintenance, TargetMaintenance
from mzplan.controller.observations import Overview, QueryState
from mzplan.controller.pools import WorkPool
from mzplan.controller.queries import Queries
from mzplan.controller.reconcile import Decision, Desired, Memory
from mzplan.controller.secrets_used import SecretsUsed
from mzplan.controller.storage import Storage
from mzplan.controller.types import (
    AppendCommand,
    Attached,
    CollectionDescription,
    CollectionState,
    CreateExportToken,
    Diff,
    ExportDescription,
    ExportState,
    Gate,
    GlobalId,
    InstanceId,
    InstanceInUseError,
    ReadBeforeSinceError,
    ReadPolicy,
    ReplicaLocation,
    Row,
    Step,
    StorageError,
    StorageParameters,
)
from mzplan.model.address import Address, Place
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.observed import Counters, Lease, Versions
from mzplan.schema.description import Description, InlinedConnection
from mzplan.secrets.references import Secrets
from mzplan.store.claims import recorded_places, unclaimed
from mzplan.store.journal import Prepared
from mzplan.store.store import Store

log = logging.getLogger("mzplan.controller")

LOCAL = "local"  # the type of sources that are appended to
BUSY = 0.05  # seconds between looks while something is under way
SHOWN = 10  # places in a line of the log


class Controller:
    """Implements StorageController for the instance that its process leads.

    It knows the instances, collections and exports that were created, and runs the queries of the instance
    that is attached to it, where no gate holds them. `clock` gives seconds, monotonic.
    """

    def __init__(
        self,
        store: Store,
        executor: Executor,
        storage: Storage,
        secrets: Secrets,
        pool: Pool,
        clock: Callable[[], float] = time.monotonic,
        parameters: StorageParameters | None = None,
        gates: Sequence[Gate] = (),
    ):
        self.store = store
        self.project = store.project
        self.executor = executor
        self.storage = storage
        self.secrets = secrets
        self.pool = pool
        self.clock = clock
        self.parameters = parameters or StorageParameters()
        self.gates = gates
        self.woken = threading.Event()
        self.instances = Instances(store, self._sever)
        self.catalog = Catalog()
        self.maintenance = Maintenance(storage, pool, clock, self.woken.set)
        self.targets = TargetMaintenance(
            lambda sink: executor.compact(sink, self.secrets), pool, clock, self.woken.set
        )
        self.capabilities = Capabilities(self.catalog, self.maintenance, self.instances)
        self.queries: Queries | None = None
        self.decisions: dict[Address, Decision] = {}
        self._initialized = False

    # --- initialization

    def initialization_complete(self) -> None:
        self._initialized = True
        self.wake()

    def update_configuration(self, parameters: StorageParameters) -> None:
        self.parameters = parameters
        if self.queries is not None:
            self._configure(self.queries)
        if isinstance(self.pool, WorkPool):
            self.pool.resize(parameters.parallelism)
        self.maintenance.every = self.targets.every = parameters.maintain_every
        self.wake()

    # --- instances

    def create_instance(self, id_: InstanceId) -> None:
        self.instances.create(id_)

    def drop_instance(self, id_: InstanceId) -> None:
        self.instances.ensure(id_)
        hosted = sorted(str(a) for a, one in self.catalog.hosted().items() if one.instance == id_)
        if hosted:
            raise InstanceInUseError(f"Instance {id_} still has {', '.join(hosted[:5])}: drop them first.")
        self.instances.drop(id_)

    def connect_replica(self, id_: InstanceId, location: ReplicaLocation) -> int:
        lease = self.instances.connect(id_, location)
        self.attach(id_, lease)
        return lease.epoch

    def attach(self, id_: InstanceId, lease: Lease) -> None:
        """Lead an instance under a lease that somebody has taken (see connect_replica)."""
        self.instances.attached = (id_, lease)
        before = self.store.read_status(id_)
        claims = Claims(self.store, self.executor, id_, self.parameters.retain_dropped)
        self.queries = Queries(
            self.project,
            self.executor,
            self.secrets,
            self.catalog,
            claims,
            SecretsUsed(before.secrets if before is not None else {}, self.clock),
            self.gates,
            self.pool,
            self.woken.set,
            self.clock,
            {a: one.lag for a, one in before.observations.items() if one.lag} if before is not None else {},
        )
        self.queries.epoch = lease.epoch
        self._configure(self.queries)
        for entry in self.store.read_prepared(id_):
            self.catalog.adopt(CreateExportToken(id=entry.id, from_id=entry.from_id, step=entry.step))
        self.wake()

    def attached(self) -> Attached | None:
        lease = self.instances.lease
        return Attached(lease=lease, lost=self.instances.lost) if lease is not None else None

    def raise_epoch(self, epoch: int) -> None:
        self._attached()
        assert self.queries is not None
        self.queries.epoch = max(epoch, self.queries.epoch)

    # --- collections and exports

    def collection(self, id_: GlobalId) -> CollectionState:
        return self.catalog.collection(id_)

    def collection_mut(self, id_: GlobalId) -> CollectionState:
        return self.catalog.collection(id_)

    def collections(self) -> Iterator[tuple[GlobalId, CollectionState]]:
        return iter(sorted(self.catalog.collections.items()))

    async def migrate_collections(
        self, collections: Sequence[tuple[GlobalId, CollectionDescription]]
    ) -> None:
        self._attached()
        places = [one.query.place for _, one in collections]
        try:
            await asyncio.to_thread(self.storage.migrate, places)
        except OSError as problem:  # each query's own check will say so
            log.warning("the layout of storage is not known: %s", problem)

    async def create_collections(self, collections: Sequence[tuple[GlobalId, CollectionDescription]]) -> None:
        self._attached()
        self.catalog.create_collections(collections)
        self.catalog.restore_holds()
        self.wake()

    def export(self, id_: GlobalId) -> ExportState:
        return self.catalog.export(id_)

    def export_mut(self, id_: GlobalId) -> ExportState:
        return self.catalog.export(id_)

    def exports(self) -> Iterator[tuple[GlobalId, ExportState]]:
        return iter(sorted(self.catalog.exports.items()))

    def prepare_export(self, id_: GlobalId, from_id: GlobalId) -> CreateExportToken:
        (token,) = self.prepare_exports([(id_, from_id)])
        return token

    def prepare_exports(self, wanted: Sequence[tuple[GlobalId, GlobalId]]) -> list[CreateExportToken]:
        instance = self._attached()
        tokens = self.catalog.to_prepare(wanted)
        after = {**self.catalog.prepared, **{token.id: token for token in tokens}}
        if after != self.catalog.prepared:
            # Journalled before they are given away: a crash must not forget what somebody relies on.
            self._journal_tokens(instance, after.values())
            self.catalog.prepare(tokens)
        return tokens

    def cancel_prepare_export(self, token: CreateExportToken) -> None:
        self._cancel([token] if self.catalog.prepared.get(token.id) == token else [])

    def keep_prepared(self, wanted: Collection[GlobalId]) -> None:
        self._cancel(self.catalog.left_prepared(wanted))

    def _cancel(self, tokens: Sequence[CreateExportToken]) -> None:
        instance = self._attached()
        if tokens:
            self._journal_tokens(instance, self.catalog.without(set(tokens)))
        for token in tokens:
            log.info("%s was prepared to read %s, and is not wanted any more", token.id, token.from_id)
            self.catalog.cancel(token)

    async def create_exports(self, exports: Sequence[tuple[CreateExportToken, ExportDescription]]) -> None:
        instance = self._attached()
        self.catalog.ensure_installable(exports)
        if exports:
            self._journal_tokens(instance, self.catalog.without({token for token, _ in exports}))
        self.catalog.create_exports(exports)
        self.wake()

    def drop_sources(self, ids: Sequence[GlobalId]) -> None:
        self._attached()
        self.catalog.ensure_known(ids, "source", self._was_known)
        self.drop_sources_unvalidated(ids)

    def drop_sources_unvalidated(self, ids: Sequence[GlobalId]) -> None:
        self._attached()
        for id_ in ids:
            self.catalog.drop_collection(id_)
        self.wake()

    def drop_sinks(self, ids: Sequence[GlobalId]) -> None:
        self._attached()
        self.catalog.ensure_known(ids, "sink", self._was_known)
        self.drop_sinks_unvalidated(ids)

    def drop_sinks_unvalidated(self, ids: Sequence[GlobalId]) -> None:
        self._attached()
        for id_ in ids:
            self.catalog.drop_export(id_)
        self.wake()

    # --- data and frontiers

    def append(self, commands: Sequence[AppendCommand]) -> Future[None]:
        self._attached()
        planned = [(self.catalog.collection(one.id).description, one) for one in commands]
        for description, _ in planned:
            if description.query.type != LOCAL:
                raise StorageError(
                    f"{description.query.address} is not local: nothing can be appended to it."
                )
        return self.pool.submit(self._append, planned)

    def _append(self, planned: Sequence[tuple[CollectionDescription, AppendCommand]]) -> None:
        self.storage.append(planned)
        self.woken.set()

    async def snapshot(self, id_: GlobalId, as_of: Step) -> list[tuple[Row, Diff]]:
        state = self.catalog.collection(id_)
        extent = await asyncio.to_thread(self.storage.extent, state.place)
        since = max(state.since, extent.since)
        if not since <= as_of < extent.upper:
            raise ReadBeforeSinceError(
                f"{state.description.query.address} can be read as of steps {since} to {extent.upper} "
                f"(excluded), not {as_of}."
            )
        return await asyncio.to_thread(self.storage.snapshot, state.place, as_of)

    def set_read_policy(self, policies: Sequence[tuple[GlobalId, ReadPolicy]]) -> None:
        self._attached()
        self.capabilities.set_policies(policies)

    def update_write_frontiers(self, updates: Sequence[tuple[GlobalId, Step]]) -> None:
        self.capabilities.advance_uppers(updates)

    def update_read_capabilities(self, updates: Mapping[GlobalId, Mapping[str, Step | None]]) -> None:
        self.capabilities.move(updates)

    # --- work

    def overview(self) -> Overview:
        queries = self.queries
        if queries is None or not self._initialized:
            return Overview()
        wanted, decisions, counted = queries.desired(), self.decisions, self.executor.counted()
        left = [a for a, d in decisions.items() if d.shown is not None or a in queries.under_way]
        states = {}
        for address in dict.fromkeys([*wanted, *left]):
            query = wanted[address].description if address in wanted else None
            states[address] = QueryState(
                wanted=wanted.get(address),
                decision=decisions.get(address),
                memory=queries.memories.get(address) or Memory(),
                upstream=queries.upstreams.get(address),
                keeps=self.capabilities.holds_back(query.id) if query is not None else None,
                unread=queries.unread(address, query) if query is not None else None,
                reached=self.catalog.reached(query) if query is not None else -1,
                counters=queries.attempts.added_to(counted.get(address, Counters()), address),
            )
        digests, rotated = queries.secrets_in_use(wanted)
        at_work = (self.maintenance, self.targets)
        return Overview(
            queries=states,
            busy=self.busy,
            maintained=tuple(one.at_work_on for one in at_work if one.at_work_on is not None),
            secrets=digests,
            rotated=rotated,
            foreign=tuple(self.executor.foreign()),
            reports=queries.reports,
        )

    @property
    def busy(self) -> bool:
        """Whether something is under way that is worth another look at once."""
        queries = self.queries
        starting = any(one.condition == "starting" for one in self.decisions.values())
        return starting or (queries is not None and (bool(queries.under_way) or queries.claims.removing))

    def is_open(self) -> bool:
        return self.executor.is_open()

    def versions(self) -> Versions | None:
        return self.executor.versions()

    def wake(self) -> None:
        self.woken.set()

    async def ready(self) -> None:
        await asyncio.to_thread(self.woken.wait, BUSY if self.busy else self.store.backend.idle)
        self.woken.clear()

    async def process(self) -> None:
        if self.instances.lost is not None:
            await asyncio.to_thread(self.close_engine)
        self._attached()
        queries = self.queries
        if queries is None or not self._initialized:
            return
        queries.harvest()
        if not self.is_open():
            self.decisions = {}
            return
        wanted = queries.desired()
        self.decisions = queries.round(wanted)
        self._observe(wanted)
        queries.look_at_secrets()
        self.capabilities.maintain(self._attached())
        self.targets.look(self._running_sinks(wanted))
        queries.reclaim(wanted, self.decisions)

    async def reconcile_state(self) -> None:
        self._attached()
        hosted = self.catalog.hosted()
        strange = [r.name for r in self.executor.reports() if r.name.address not in hosted]
        for name in strange:
            log.info("%s is claimed by nothing: it is stopped", name)
            await asyncio.to_thread(self.executor.stop, name)
        try:
            listed = await asyncio.to_thread(self.storage.listed)
            noted = await asyncio.to_thread(recorded_places, self.store)
        except (OSError, MzplanError) as problem:  # no reason not to run
            log.warning("which storage is unclaimed is not known: %s", problem)
            return
        places = unclaimed(listed, self.catalog.claimed(), noted)
        if places:
            names = ", ".join(f"{id_} g{generation}" for id_, generation in places[:SHOWN])
            more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
            log.info("storage that nothing claims: %s%s (mzplan state gc)", names, more)

    def claim_storage(self, places: Iterable[Place]) -> None:
        self.catalog.kept = frozenset(places)
        self.wake()

    def validate(self, description: Description, values: Mapping[str, str] | None = None) -> CheckResult:
        secrets = self.secrets.proposed(values)
        secrets.permit(description)
        return self.executor.check(description, secrets)

    def renew_values(self, values: Mapping[str, str]) -> None:
        environment = self.secrets.environment
        changed = {f"${{env:{name}}}" for name in values if environment.get(name) != values[name]}
        environment.update(values)
        if changed and self.queries is not None:
            self.queries.forgive(changed)
            self.wake()

    def inspect(self, description: Description, whole: bool = True) -> tuple[Diagnostic, ...]:
        gone = self.executor.missing(description)
        if gone or not whole:
            return gone
        return self.executor.check(description, self.secrets).diagnostics

    def measure(self, description: Description) -> Measured:
        return self.executor.measure(description, self.secrets)

    def reach(self, connection: InlinedConnection) -> tuple[Diagnostic, ...]:
        return self.executor.reach(connection, self.secrets)

    def close_engine(self) -> None:
        """Stop the queries and the engine."""
        self.executor.close()

    def release(self) -> None:
        """Say that the instance has no runner any more; its queries are stopped before."""
        self.instances.release()

    # --- inside

    def _sever(self) -> None:
        """The lease is lost (called by the thread that kept it): no query may outlive it."""
        log.error("the lease is lost: %s; stopping every query", self.instances.lost)
        self.close_engine()
        self.wake()

    def _configure(self, queries: Queries) -> None:
        queries.claims.retain = self.parameters.retain_dropped
        queries.pace = self.parameters.pace
        queries.short.most = self.parameters.parallelism

    def _journal_tokens(self, instance: InstanceId, tokens: Iterable[CreateExportToken]) -> None:
        """Before the catalog has them, or has them no more: a journal that can't be written changes
        nothing."""
        self.store.write_prepared(
            instance, [Prepared(id=t.id, from_id=t.from_id, step=t.step) for t in tokens]
        )

    def _attached(self) -> InstanceId:
        return self.instances.require()

    def _was_known(self, kind: str, id_: GlobalId) -> bool:
        return was_known(self.store, self.queries.claims if self.queries is not None else None, kind, id_)

    def _running_sinks(self, wanted: Mapping[Address, Desired]) -> dict[Address, Description]:
        """As they are committed."""
        running = {address for address, one in self.decisions.items() if one.condition == "running"}
        return {a: w.description for a, w in wanted.items() if a in running and a.kind == "sink"}

    def _observe(self, wanted: Mapping[Address, Desired]) -> None:
        """Take uppers and conditions from what runs."""
        uppers: list[tuple[GlobalId, Step]] = []
        for address, decision in self.decisions.items():
            state = self.catalog.state_of(wanted[address].description) if address in wanted else None
            if state is None:
                continue
            id_, generation = state.place
            state.condition = decision.condition
            shown = decision.shown
            if shown is not None and shown.name.generation == generation and shown.step + 1 > state.upper:
                uppers.append((id_, shown.step + 1))
        self.update_write_frontiers(uppers)
