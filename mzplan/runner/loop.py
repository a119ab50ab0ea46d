"""The runner: a storage controller in a loop. It follows the store, commands what is committed, lets the
controller work, and reports what it sees."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor as Pool
from dataclasses import replace
from functools import partial
from typing import TypeVar, assert_never

from mzplan.controller.connection_watch import ConnectionWatch
from mzplan.controller.executor import Measured
from mzplan.controller.observations import differs, is_fresh, observe
from mzplan.controller.protocol import StorageController
from mzplan.controller.reconcile import Memory
from mzplan.controller.sampling import Sampler
from mzplan.controller.types import NotAttachedError, Overview, QueryState, StorageError
from mzplan.controller.upstream_watch import UpstreamWatch
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.address import Address
from mzplan.model.canary import Verdict
from mzplan.model.diagnostics import MzplanError
from mzplan.model.recent import EVERY, Recent, sampled
from mzplan.model.resources import RunnerSettings
from mzplan.model.state import Condition, Observation, State, Status
from mzplan.runner.answers import Answering
from mzplan.runner.commands import (
    Command,
    CreateCollections,
    CreateExports,
    DropSinks,
    DropSources,
    SetReadPolicy,
    commands,
    wanted_of,
)
from mzplan.runner.gates import Gates
from mzplan.runner.settings import parameters_of
from mzplan.runner.values import HandedValues
from mzplan.schema.description import Description
from mzplan.store.claims import places_of
from mzplan.store.limits import limited
from mzplan.store.store import Store

T = TypeVar("T")
log = logging.getLogger("mzplan.runner")

MEASURED_EVERY = 10.0  # seconds between two looks at what waits for a query, if its run does not say it
FRESH_EVERY = 60.0  # and if it does
STATUS_EVERY = 2.0  # seconds between reports of rates and lag alone


class Runner:
    """Drives the controller of one instance, which it leads. `gates` are those that the controller has;
    `committed` takes each state, and how the runner is to work, before anything is done of it; `own` is that
    of states that do not say it; `values` are what commands hand over; `observe_runs` takes what each round
    has found, and must not raise."""

    def __init__(
        self,
        store: Store,
        controller: StorageController,
        gates: Gates,
        pool: Pool,
        clock: Callable[[], float] = time.monotonic,
        committed: Callable[[State, RunnerSettings], None] = lambda state, settings: None,
        own: RunnerSettings | None = None,
        values: HandedValues | None = None,
        observe_runs: Callable[[Overview], None] = lambda overview: None,
    ):
        attached = controller.attached()
        assert attached is not None
        self.store = store
        self.controller = controller
        self.instance, self.epoch = attached.lease.instance, attached.lease.epoch
        self.clock = clock
        self.committed = committed
        self.own = own or RunnerSettings()
        self.observe_runs = observe_runs
        self.handover, self.canaries = gates
        self.values = values or HandedValues()
        self.handed = 0  # hand-overs whose values are in use
        self.answering = Answering(store, controller, self.instance, self.values)
        self.watch = UpstreamWatch(controller.inspect, pool, clock)
        self.connections = ConnectionWatch(controller.reach, pool, clock)
        self.measures: Sampler[Address, Description, Measured] = Sampler(controller.measure, pool, clock)
        self._retries: dict[Address, tuple[float, float]] = {}  # by the clock, and by the calendar
        self._parallelism = controller.parameters.parallelism
        self.serial = -1
        self.state: State | None = None  # of that serial
        self.round_seconds = 0.0  # that the last look at everything took
        self._seen_state: str | None = None
        self._failing: dict[str, str | None] = {}  # what can't be looked at, and why
        self.overview = Overview()
        self.observed: Status | None = None  # the newest, written or not
        self.observed_at = clock()
        self._began_at = time.time()  # by the calendar; the engine opens from then on
        self._opened_in: float | None = None
        self._written: Status | None = None
        self._counted: frozenset[str] = frozenset()  # runs of which it says how many rows they have read
        self._written_at = float("-inf")
        self._recorded_at = clock()
        self._recent: Recent | None = None

    # --- one round

    def tick(self) -> bool:
        """One look at everything. True while something is under way (look again soon)."""
        return asyncio.run(self.round())

    async def round(self) -> bool:
        """The same, in a loop that runs."""
        began = time.perf_counter()
        attached = self.controller.attached()
        if attached is not None and attached.lost is not None:  # before the store, which may be the cause
            await self.controller.process()
        due, self.handed = self.values.take()
        self.controller.renew_values(due)
        await self._follow()
        answering = self._attempt("proposals", self.answering.look, False)
        self._attempt("the runners of other instances", self.handover.look, None)
        await self.controller.process()
        self.overview = self.controller.overview()
        self.observe_runs(self.overview)
        judged = self._judge()
        self._look_upstream()
        self._look_aside()
        self._report()
        self._record()
        self.round_seconds = time.perf_counter() - began
        return self.overview.busy or judged or answering

    def serve(self, stopping: threading.Event) -> None:
        """`run`, from a thread that has no event loop."""
        asyncio.run(self.run(stopping))

    async def run(self, stopping: threading.Event) -> None:
        """Rounds until it is stopped. A store that can't be reached is ridden out: the lease decides."""
        logged = ""
        while not stopping.is_set():
            try:
                await self.round()
                logged = ""
            except MzplanError as problem:
                if str(problem) != logged:  # not each round, while a store is down
                    log.warning("%s", problem)
                logged = str(problem)
            await self.controller.ready()

    # --- what is wanted

    async def _follow(self) -> None:
        """Take in what is committed. Where it can't be read (a store that is not reached, a state that was
        edited by hand), go on with what was taken in last: queries are to be healed all the same."""
        try:
            await self._take_in()
            problem = None
        except NotAttachedError:
            raise
        except StorageError as found:
            problem = str(found)
        except MzplanError as found:
            if self.serial < 0:
                raise
            problem = str(found)
        self._log_once("the state", f"can't be read; going on with serial {self.serial}", problem)

    def _attempt(self, what: str, look: Callable[[], T], otherwise: T) -> T:
        """What a look at the store gives; where it fails, queries are to be healed all the same."""
        try:
            found, problem = look(), None
        except MzplanError as failed:
            found, problem = otherwise, str(failed)
        self._log_once(what, "can't be looked at for now", problem)
        return found

    def _log_once(self, what: str, how: str, problem: str | None) -> None:
        """Log what goes wrong when it begins, or becomes another problem; None: nothing does any more."""
        if problem not in (None, self._failing.get(what)):
            log.warning("%s %s: %s", what, how, problem)
        self._failing[what] = problem

    async def _take_in(self) -> None:
        version = self.store.state_version()
        if version == self._seen_state and self.serial >= 0:
            return
        state = self.store.read_state()
        if state.serial == self.serial:
            self._seen_state = version
            return
        settings = state.settings or self.own
        self.committed(state, settings)
        if (wanted_now := parameters_of(settings, now := self.controller.parameters)) != now:
            self.controller.update_configuration(wanted_now)
        # Before anything is started of it.
        digest = partial(self.store.serial_digest, state.serial)
        self.controller.renew_values(self.values.take_committed(digest))
        wanted = wanted_of(state, self.instance)
        first = self.serial < 0
        if first:
            await self.controller.migrate_collections(list(wanted.collections.items()))
        elif self.handover.comes(state):
            # A query that had another runner goes on under a higher epoch than that one's.
            self.controller.raise_epoch(self.store.leases.next_epoch())
        self.handover.take_in(state)
        self._limit(state.serial)
        hosted = dict(self.controller.collections()), dict(self.controller.exports())
        for command in commands(*hosted, wanted):
            await self._command(command)
        self.controller.keep_prepared(wanted.exports)
        self.controller.claim_storage(places_of(state))
        failpoint(Failpoint.COMMAND_CLAIM_STORAGE)
        queries = [(a, one) for a, one in state.resources.items() if a.kind != "connection"]
        here = {address for address, one in queries if one.instance == self.instance}
        self.canaries.take_in(state, here)
        self.serial, self.state, self._seen_state = state.serial, state, version
        if first:
            self.controller.initialization_complete()
            await self.controller.reconcile_state()
        log.info("serial %d: %d queries", self.serial, len(here))

    def _limit(self, serial: int) -> None:
        """Stop and start so much at once as whoever committed the serial has asked for."""
        try:
            asked = limited(self.store, serial)
        except MzplanError as problem:
            log.warning("going on as usual: %s", problem)
            asked = None
        now, wanted = self.controller.parameters, asked or self._parallelism
        if now.parallelism != wanted:
            self.controller.update_configuration(replace(now, parallelism=wanted))

    async def _command(self, command: Command) -> None:
        controller = self.controller
        match command:
            case DropSinks(ids=ids):
                controller.drop_sinks(ids)
                failpoint(Failpoint.COMMAND_DROP_SINKS)
            case DropSources(ids=ids):
                controller.drop_sources(ids)
                failpoint(Failpoint.COMMAND_DROP_SOURCES)
            case CreateCollections(collections=collections):
                await controller.create_collections([(one.query.id, one) for one in collections])
                failpoint(Failpoint.COMMAND_CREATE_COLLECTIONS)
            case CreateExports(exports=exports):
                tokens = controller.prepare_exports([(one.query.id, one.from_id) for one in exports])
                failpoint(Failpoint.COMMAND_PREPARE_EXPORTS)
                await controller.create_exports(list(zip(tokens, exports, strict=True)))
                failpoint(Failpoint.COMMAND_CREATE_EXPORTS)
            case SetReadPolicy(policies=policies):
                controller.set_read_policy(policies)
                failpoint(Failpoint.COMMAND_SET_READ_POLICY)
            case _:
                assert_never(command)

    def _look_upstream(self) -> None:
        queries = self.overview.queries.items()
        self.watch.look(
            {
                address: state.wanted.description
                for address, state in queries
                if state.wanted is not None and _condition(state) == "running"
            }
        )

    def _look_aside(self) -> None:
        """What waits for each query, and whether the servers of those that are to run answer."""
        if not self.controller.is_open():
            return  # Spark's start is slow enough
        queries = self.overview.queries
        wanted = {a: state.wanted for a, state in queries.items() if state.wanted is not None}
        now = time.time()
        fresh = {a for a in wanted if (d := queries[a].decision) is not None and is_fresh(d.shown, now)}
        self.connections.look({a: one.description for a, one in wanted.items() if not one.paused})
        self.measures.look(
            {a: one.description for a, one in wanted.items()},
            lambda address: FRESH_EVERY if address in fresh else MEASURED_EVERY,
        )

    def _judge(self) -> bool:
        """Decide of the queries that went first: written down now, acted on from the next round on."""
        found = self.canaries.judge(self.overview.queries, self.clock())
        if not found:
            return False
        for address, verdict in sorted(found.items()):
            log.info("%s went first: %s", address, "passed" if verdict.passed else verdict.reason)
        failpoint(Failpoint.CANARY_JUDGED)
        self._report({**self.canaries.verdicts, **found})
        self.canaries.decided(found)
        failpoint(Failpoint.CANARY_DECIDED)
        self.controller.wake()
        return True

    # --- status

    def _report(self, decided: Mapping[Address, Verdict] | None = None) -> None:
        """Write the Status where it has changed. `decided`: verdicts that are to be acted on next."""
        queries = self.overview.queries
        observations = {address: self._observe(address, state) for address, state in queries.items()}
        for written in self.overview.maintained:
            if written not in observations and self.handover.has_left(written):
                # Its query has ended here, but its collection or its target is still written: its next
                # runner waits for that.
                left = QueryState(wanted=None, decision=None, memory=Memory())
                observations[written] = self._observe(written, left)
        opens = any(state.decision is None for state in queries.values())
        status = Status(
            instance=self.instance,
            epoch=self.epoch,
            heartbeat=0.0,
            serial=min(self.serial, self._last_serial()) if opens else self.serial,
            observations=observations,
            secrets=self.overview.secrets,
            rotated=self.overview.rotated,
            canaries=self.canaries.verdicts if decided is None else decided,
            foreign=self.overview.foreign,
            handed=self.handed,
            opening_since=None if self.controller.is_open() else self._began_at,
            opened_in=self._opened(),
            versions=self.controller.versions(),
        )
        now = self.clock()
        self.observed, self.observed_at = status, now
        due = now - self._written_at >= STATUS_EVERY
        # Commands wait for the first count of a run that is past a trigger; later ones come with the rates.
        running = [o for o in observations.values() if o.condition == "running"]
        counted = frozenset(o.run_id for o in running if o.run_id and o.run_rows is not None)
        first = not counted <= self._counted
        if self._written is not None and not first and not differs(self._written, status, rates_too=due):
            return
        failpoint(Failpoint.RUNNER_BEFORE_STATUS)
        self.store.write_status(replace(status, heartbeat=time.time()), durable=decided is not None)
        self._written, self._written_at = status, now
        self._counted = counted | (self._counted & {o.run_id for o in observations.values() if o.run_id})

    def _record(self) -> None:
        """A sample of each query in each minute, beside the Status: for people, nothing depends on it."""
        now = self.clock()
        if self.observed is None or now - self._recorded_at < EVERY:
            return
        self._recorded_at = now
        if self._recent is None:
            none: Recent = {}
            self._recent = self._attempt(
                "earlier samples", lambda: self.store.read_recent(self.instance), none
            )
        self._recent = recent = sampled(self._recent, self.observed.observations, time.time())
        self._attempt(
            "the samples of the last hour", lambda: self.store.write_recent(self.instance, recent), None
        )

    def _opened(self) -> float | None:
        """How many seconds the engine took to open, if it was seen to."""
        before = self._written
        if self._opened_in is None and before is not None and before.opening_since is not None:
            seconds = max(0.1, round(time.time() - self._began_at, 1))  # 0 is not stored
            self._opened_in = seconds if self.controller.is_open() else None
        return self._opened_in

    def _last_serial(self) -> int:
        return self._written.serial if self._written is not None else 0

    def _observe(self, address: Address, state: QueryState) -> Observation:
        return observe(
            address,
            state.wanted,
            _condition(state),
            state.decision.shown if state.decision is not None else None,
            state.memory,
            state.upstream,
            self.watch.changed.get(address),
            self.handover.waiting.get(address) or self.canaries.reason(address),
            self.canaries.failed(address),
            state.keeps,
            state.unread,
            state.reached,
            self.measures.found.get(address),
            self.connections.fault(address),
            self._retry_at(address, state),
            state.counters,
        )

    def _retry_at(self, address: Address, state: QueryState) -> float | None:
        """When a failed query is tried again, by the calendar: the same as long as it waits for that."""
        due, decision = state.memory.retry_at, state.decision
        if state.memory.verdict is None or math.isinf(due) or (decision and decision.condition == "running"):
            self._retries.pop(address, None)
            return None
        if self._retries.get(address, (None,))[0] != due:
            self._retries[address] = (due, round(time.time() + due - self.clock(), 1))
        return self._retries[address][1]


def _condition(state: QueryState) -> Condition:
    return state.decision.condition if state.decision is not None else "starting"
