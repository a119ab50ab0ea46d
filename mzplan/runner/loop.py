"""The runner: a storage controller in a loop. It follows the store, commands what is committed, lets the
controller work, and reports what it sees."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from mzplan.controller.core import Controller
from mzplan.controller.executor import ExecutorGoneError
from mzplan.controller.observations import InstanceOverview
from mzplan.controller.terms import NotAttachedError, StorageError
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.address import Address
from mzplan.model.cause import Cause
from mzplan.model.diagnostics import MzplanError
from mzplan.model.event import Event
from mzplan.model.observed import Verdict
from mzplan.model.resources import RunnerSettings
from mzplan.model.state import State
from mzplan.model.words import one_line
from mzplan.runner.answers import Answering
from mzplan.runner.commands import carry_out, parameters_of, wanted_of
from mzplan.runner.gates import Gates
from mzplan.runner.secret_values import ReceivedSecretValues
from mzplan.runner.status_writer import ProblemLog, StatusWriter, Watches
from mzplan.store.claims import places_of
from mzplan.store.event_log import EventLog
from mzplan.store.limits import read_limit

log = logging.getLogger("mzplan.runner")

EVENTS_EVERY = 1.0  # seconds that an event waits for others, while something is under way
# Seconds for which every round may fail of a defect. The queries run on meanwhile, but nothing heals them,
# and what was last reported of them may not be true any more.
FAILING = 300.0


class RoundsFailedError(Exception):
    """Every round has failed for FAILING seconds: another process may do better. The message is a sentence
    for people."""


class Runner:
    """Drives the controller of one instance, which it leads. `gates` are those that the controller has;
    `committed` takes each state, and how the runner is to work, before anything is done of it; `own` is that
    of states that do not say it; `secret_values` are those that commands send; `observe_runs` takes what each
    round has found, and must not raise."""

    def __init__(
        self,
        controller: Controller,
        gates: Gates,
        *,
        committed: Callable[[State, RunnerSettings], None] = lambda state, settings: None,
        own: RunnerSettings | None = None,
        secret_values: ReceivedSecretValues | None = None,
        observe_runs: Callable[[InstanceOverview], None] = lambda overview: None,
    ):
        lease = controller.instances.lease
        assert lease is not None
        self.controller, self.store, self.clock = controller, controller.store, controller.clock
        self.instance, self.epoch = lease.instance, lease.epoch
        self.committed = committed
        self.own = own or RunnerSettings()
        self.observe_runs = observe_runs
        self.gates = gates
        self.secret_values = secret_values or ReceivedSecretValues()
        self.secret_values_in_use = 0  # hand-overs whose values are in use
        self.answering = Answering(controller, self.instance, self.secret_values)
        self.watches = Watches(controller)
        self._problems = ProblemLog()
        self.status = StatusWriter(controller, lease, gates, self.watches, self._problems)
        self.events = EventLog(self.store.backend, self.instance, self.epoch)
        self._parallelism = controller.parameters.parallelism
        self.serial = -1
        self.state: State | None = None  # of that serial
        self.round_seconds = 0.0  # that the last look at everything took
        self.round_ended_at = self.clock()  # when a round ended last, in success or in failure
        self._seen_state: str | None = None
        self.overview = InstanceOverview()

    # --- one round

    def tick(self) -> bool:
        """Look at everything once. Return whether something is under way: then look again soon."""
        began = time.perf_counter()
        if self.controller.instances.lost is not None:  # before the store, which may be the cause
            self.controller.process()
        due, again, self.secret_values_in_use = self.secret_values.take()
        self.controller.update_secret_values(due)
        if again:
            self.controller.try_again()
        self._follow()
        answering = self._problems.attempt("proposals", self.answering.look, False)
        self._problems.attempt("the runners of other instances", self.gates.handover.look, None)
        self.controller.process()
        self.overview = self.controller.overview()
        self.observe_runs(self.overview)
        judged = self.gates.canaries.judge(self.overview.queries, self.clock(), self._report)
        let_go = self._problems.attempt("replaced sources", self._look_at_replacements, False)
        if judged or let_go:
            self.controller.wake()
        self.watches.look(self.overview)
        self._report()
        self.status.record()
        self.write_events(at_once=not self.overview.busy)
        self.round_seconds = time.perf_counter() - began
        return self.overview.busy or judged or let_go or answering

    def _look_at_replacements(self) -> bool:
        return self.gates.replacements.look(self.overview.queries)

    def write_events(self, *, at_once: bool) -> None:
        """Write down what has happened, if it is time: what happens together goes with one write."""
        self.events.add(map(self._explained, self.controller.notes.take()), self.serial)
        if at_once or self.events.queued_seconds() >= EVENTS_EVERY:
            self._problems.attempt("the event log", self.events.flush, None)

    def _explained(self, event: Event) -> Event:
        """A stop of what the state does not want here any more, with that as its cause."""
        if event.kind != "stopped" or event.cause is not None or event.address is None or self.state is None:
            return event
        resource = self.state.resources.get(event.address)
        if resource is None:
            why = Cause(cause="change", serial=self.serial, detail="it is no longer committed")
        elif resource.instance != self.instance:
            goes = f"goes to instance {resource.instance}"
            why = Cause(cause="hand-over", serial=self.serial, detail=goes)
        else:
            return event
        return replace(event, cause=why)

    def _report(self, decided: Mapping[Address, Verdict] | None = None) -> None:
        self.status.report(self.overview, self.serial, self.secret_values_in_use, decided)

    def serve(self, stopping: threading.Event) -> None:
        """Rounds until it is stopped. A store that can't be reached is ridden out: the lease decides. Raises
        NotAttachedError, ExecutorGoneError, RoundsFailedError."""
        logged, ended_at = "", self.clock()  # when a round has ended last, well or of the store
        while not stopping.is_set():
            try:
                self.tick()
                logged, ended_at = "", self.clock()
            except MzplanError as problem:
                if str(problem) != logged:  # not each round, while a store is down
                    log.warning("%s", problem)
                logged, ended_at = str(problem), self.clock()
            except (NotAttachedError, ExecutorGoneError):
                raise
            except Exception as defect:  # its queries run on, and each round tries again
                if self.clock() - ended_at > FAILING:
                    why = one_line(f"{type(defect).__name__}: {defect}")
                    raise RoundsFailedError(f"Every round has failed for {FAILING:.0f} s: {why}") from defect
                if str(defect) != logged:
                    log.exception("a round has failed unexpectedly: %s", type(defect).__name__)
                logged = str(defect)
            self.round_ended_at = self.clock()
            self.controller.ready()

    # --- what is wanted

    def _follow(self) -> None:
        """Take in what is committed. Where it can't be read (a store that is not reached, a state that was
        edited by hand), go on with what was taken in last: queries are to be healed all the same."""
        try:
            self._take_in()
            problem = None
        except NotAttachedError:
            raise
        except StorageError as failed:
            problem = str(failed)
        except MzplanError as failed:
            if self.serial < 0:
                raise
            problem = str(failed)
        self._problems.note("the state", f"can't be read; going on with serial {self.serial}", problem)

    def _take_in(self) -> None:
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
        self.controller.update_secret_values(self.secret_values.take_committed(digest))
        wanted = wanted_of(state, self.instance)
        first = self.serial < 0
        if first:
            self.controller.migrate_collections(list(wanted.collections.items()))
        elif self.gates.handover.comes(state):
            # A query that had another runner goes on under a higher epoch than that one's.
            self.controller.raise_epoch(self.store.leases.next_epoch())
        self.gates.handover.take_in(state)
        self._limit(state.serial)
        carry_out(wanted, self.controller)
        self.controller.keep_prepared(wanted.exports)
        self.controller.claim_storage(places_of(state))
        failpoint(Failpoint.COMMAND_CLAIM_STORAGE)
        queries = [(a, resource) for a, resource in state.resources.items() if a.kind != "connection"]
        own = {address for address, resource in queries if resource.instance == self.instance}
        self.gates.canaries.take_in(state, own)
        self.serial, self.state, self._seen_state = state.serial, state, version
        if first:
            self.controller.initialization_complete()
            self.controller.reconcile_state()
        log.info("serial %d: %d queries", self.serial, len(own))

    def _limit(self, serial: int) -> None:
        """Stop and start so much at once as whoever committed the serial has asked for."""
        try:
            asked = read_limit(self.store, serial)
        except MzplanError as problem:
            log.warning("going on as usual: %s", problem)
            asked = None
        now, wanted = self.controller.parameters, asked or self._parallelism
        if now.parallelism != wanted:
            self.controller.update_configuration(replace(now, parallelism=wanted))
