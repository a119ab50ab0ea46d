"""The runner: a storage controller in a loop.

The runner follows the store, sends the committed queries to the controller, lets it work, and reports the
result.
"""

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
from mzplan.model.observed import CanaryVerdict
from mzplan.model.resources import RunnerSettings
from mzplan.model.state import State
from mzplan.model.words import count, one_line
from mzplan.runner.gates import Gates
from mzplan.runner.proposals import ProposalAnswerer
from mzplan.runner.secret_values import ReceivedSecretValues
from mzplan.runner.status_writer import ProblemLog, StatusWriter, Watches
from mzplan.runner.wanted import policy_of, wanted_queries
from mzplan.store.backends.backend import lost_error
from mzplan.store.backends.local import STATE_KEY
from mzplan.store.claims import places_of
from mzplan.store.event_log import EventLog
from mzplan.store.leases import next_epoch
from mzplan.store.limits import read_limit

log = logging.getLogger("mzplan.runner")

EVENTS_INTERVAL = 1.0  # seconds for which an event waits for more events while work is in progress
# Seconds for which every round may fail because of a defect. Queries continue meanwhile, but the runner
# doesn't repair them, and its Status may be outdated.
TIMEOUT = 300.0


class RoundsFailedError(Exception):
    """Every round has failed for TIMEOUT seconds; a new process may succeed. The message is a sentence."""


class Runner:
    """Drives the controller of the instance that it leads.

    `gates`: the controller's gates.
    `on_commit`: called with each new state and its runner settings, before the runner acts on them.
    `default_settings`: the settings for a state that has none.
    `secret_values`: the values that commands send.
    `observe_runs`: called with the overview after each round; must not raise.
    `warehouse_place`: where the queries' storage is (see Status).
    """

    def __init__(
        self,
        controller: Controller,
        gates: Gates,
        *,
        on_commit: Callable[[State, RunnerSettings], None] = lambda state, settings: None,
        default_settings: RunnerSettings | None = None,
        secret_values: ReceivedSecretValues | None = None,
        observe_runs: Callable[[InstanceOverview], None] = lambda overview: None,
        warehouse_place: str = "",
    ):
        lease = controller.instances.lease
        assert lease is not None
        self.controller, self.store, self.clock = controller, controller.store, controller.clock
        self.instance, self.epoch = lease.instance, lease.epoch
        self.on_commit = on_commit
        self.default_settings = default_settings or RunnerSettings()
        self.observe_runs = observe_runs
        self.gates = gates
        gates.handover.fence = controller.leadership.fence
        self.secret_values = secret_values or ReceivedSecretValues()
        self.secret_values_in_use = 0  # number of messages whose values are in use
        self.proposals = ProposalAnswerer(controller, self.instance, self.secret_values)
        self.watches = Watches(controller)
        self._problems = ProblemLog()
        self.status = StatusWriter(controller, lease, gates, self.watches, self._problems, warehouse_place)
        self.events = EventLog(self.store.backend, self.instance, self.epoch)
        self._parallelism = controller.parameters.parallelism
        self.serial = -1
        self.state: State | None = None  # the state with that serial
        self.round_seconds = 0.0  # duration of the last round
        self.round_ended_at = self.clock()  # when a round last ended, whether or not it succeeded
        self._state_version: str | None = None
        self.overview = InstanceOverview()

    # --- one round

    def tick(self) -> bool:
        """Do one round. Return whether work is in progress, so that the next round should follow soon."""
        began = time.perf_counter()
        if self.controller.instances.loss is not None:  # before reading the store, which may be the cause
            self.controller.process()
        due, retry_failed, self.secret_values_in_use = self.secret_values.take()
        self.controller.update_secret_values(due)
        if retry_failed:
            self.controller.retry_failed()
        self._follow()
        in_progress = self._ask_store("proposals", self.proposals.poll)
        self._ask_store("the runners of other instances", self.gates.handover.poll)
        self.gates.replacements.begin_round()
        self.gates.first_copies.begin_round()
        self.controller.process()
        self.overview = self.controller.overview()
        self.observe_runs(self.overview)
        queries, copies = self.overview.queries, self.gates.first_copies
        waiting = copies.waiting(queries)
        judged = not self._is_store_away and self.gates.canaries.judge(
            queries, self.clock(), self._report, {*waiting, *self.gates.replacements.held(queries)}
        )
        to_measure = copies.to_measure(waiting, queries)
        also = [query.address for query in to_measure.values()]
        poll_replacements = partial(self.gates.replacements.poll, queries, also)
        released = bool(self._ask_store("replaced sources", poll_replacements))
        self.watches.poll(self.overview, to_measure)
        released |= copies.poll(self.watches.copies.results, queries)
        if judged or released:
            self.controller.wake()
        self._report()
        if not self._is_store_away:
            self.status.record()
        self.write_events(at_once=not self.overview.busy)
        self.round_seconds = time.perf_counter() - began
        return self.overview.busy or judged or released or bool(in_progress)

    @property
    def _is_store_away(self) -> bool:
        """Whether rounds leave out the store, because each request could block for many seconds.

        What they leave out waits: commits, proposals, verdicts, the Status and the event log.
        """
        return self.controller.instances.is_store_away

    def _ask_store(self, subject: str, action: Callable[[], bool | None]) -> bool | None:
        """Return the result of `action`; None if the store doesn't answer."""
        return None if self._is_store_away else self._problems.attempt(subject, action, None)

    def write_events(self, *, at_once: bool) -> None:
        """Collect new events, and write them to the log at once or after EVENTS_INTERVAL, in one write."""
        self.events.add(map(self._with_cause, self.controller.events.take()), self.serial)
        is_due = at_once or self.events.queued_seconds() >= EVENTS_INTERVAL
        if is_due and not self._is_store_away:
            self._problems.attempt("the event log", self.events.flush, None)

    def _with_cause(self, event: Event) -> Event:
        """Add the cause to the event of a query that stopped because the state no longer runs it here."""
        if event.kind != "stopped" or event.cause is not None or event.address is None or self.state is None:
            return event
        resource = self.state.resources.get(event.address)
        if resource is None:
            why = Cause(cause="change", serial=self.serial, detail="it is no longer committed")
        elif resource.instance != self.instance:
            detail = f"moved to instance {resource.instance}"
            why = Cause(cause="hand-over", serial=self.serial, detail=detail)
        else:
            return event
        return replace(event, cause=why)

    def _report(self, decided: Mapping[Address, CanaryVerdict] | None = None) -> None:
        in_use, away = self.secret_values_in_use, self._is_store_away
        self.status.report(self.overview, self.serial, in_use, decided, is_store_away=away)

    def serve(self, stopping: threading.Event) -> None:
        """Do rounds until `stopping` is set, or all queries have caught up.

        Continue while the store fails, as long as the lease holds.

        Raises NotAttachedError, ExecutorGoneError, RoundsFailedError.
        """
        logged, ended_at = "", self.clock()  # when a round last succeeded, or failed because of the store
        while not stopping.is_set():
            try:
                self.tick()
                logged, ended_at = "", self.clock()
            except MzplanError as problem:
                if str(problem) != logged:  # log an outage of the store once, not in each round
                    log.warning("%s", problem)
                logged, ended_at = str(problem), self.clock()
            except (NotAttachedError, ExecutorGoneError):
                raise
            except Exception as defect:  # queries continue, and the next round tries again
                if self.clock() - ended_at > TIMEOUT:
                    why = one_line(f"{type(defect).__name__}: {defect}")
                    raise RoundsFailedError(f"Every round has failed for {TIMEOUT:.0f} s: {why}") from defect
                if str(defect) != logged:
                    log.exception("a round has failed unexpectedly: %s", type(defect).__name__)
                logged = str(defect)
            self.round_ended_at = self.clock()
            if self._has_caught_up():
                return
            self.controller.ready()

    def _has_caught_up(self) -> bool:
        caught_up = self.gates.caught_up
        if self.serial < 0 or not caught_up.poll(self.overview.queries, self.watches.connections.fault):
            if caught_up.releases:
                self.controller.wake()
            return False
        for address, problem in sorted(caught_up.problems.items()):
            log.error("%s has not caught up: %s", address, problem)
        number = len(self.overview.queries) - len(caught_up.problems)
        log.info("caught up: %s", count(number, "query", "queries"))
        self.status.write_caught_up()
        return True

    # --- the committed state

    def _follow(self) -> None:
        """Follow the committed state. If it can't be read, continue with the last state.

        The store may be down, or the state may have been edited by hand. Queries must be repaired anyway.
        """
        if self._is_store_away:
            return
        try:
            self._follow_state()
            problem = None
        except NotAttachedError:
            raise
        except StorageError as failed:
            problem = str(failed)
        except MzplanError as failed:
            if self.serial < 0:
                raise
            problem = str(failed)
        self._problems.note("the state", f"can't be read; continuing with serial {self.serial}", problem)

    def _follow_state(self) -> None:
        version = self.store.state_version()
        if version == self._state_version and self.serial >= 0:
            return
        state = self.store.read_state()
        if state.serial == self.serial:
            self._state_version = version
            return
        if state.serial < self.serial:  # an empty folder, for example, because a disk isn't mounted
            place = self.store.backend.describe()
            raise lost_error(f"{place}/{STATE_KEY}", f"has serial {state.serial}", 0, self.serial)
        settings = state.settings or self.default_settings
        self.on_commit(state, settings)
        now = self.controller.parameters
        parameters = replace(
            now,
            retain_dropped=settings.retain_dropped,
            survive_store_outage=settings.survive_store_outage,
            backoff=settings.retries,
        )
        if parameters != now:
            self.controller.update_configuration(parameters)
        # The secret values of this commit must be in use before any query of its state starts.
        digest = partial(self.store.serial_digest, state.serial)
        self.controller.update_secret_values(self.secret_values.take_committed(digest))
        wanted = wanted_queries(state, self.instance)
        own = [query.description for query in wanted if query.instance == self.instance]
        collections = [query for query in own if query.address.writes_collection]
        if state.lineage:
            self.controller.leadership.follow(state.lineage)
        first = self.serial < 0
        if first:
            if self.store.read_prepared(self.instance):  # by an earlier version, which was killed
                self.store.write_prepared(self.instance, [])
            self.controller.migrate([query.place for query in collections])
        elif self.gates.handover.brings_queries(state):
            # A query that comes from another runner continues under a higher epoch than the other runner's.
            self.controller.raise_epoch(next_epoch(self.store.backend))
        self.gates.handover.follow(state)
        self.gates.replacements.follow(state)
        self.gates.first_copies.follow(state)
        self._set_parallelism(state.serial)
        self.controller.follow(wanted, places_of(state), {c.id: policy_of(c) for c in collections})
        failpoint(Failpoint.RUNNER_FOLLOWED)
        self.gates.canaries.follow(state, {query.address for query in own})
        self.serial, self.state, self._state_version = state.serial, state, version
        if first:
            self.controller.initialization_complete()
            self.controller.stop_unclaimed()
        log.info("serial %d: %d queries", self.serial, len(own))

    def _set_parallelism(self, serial: int) -> None:
        """Set how many queries stop and start at once, as the commit of the serial asks for."""
        try:
            limit = read_limit(self.store, serial)
        except MzplanError as problem:
            log.warning("can't read the limit of this commit; using the default: %s", problem)
            limit = None
        now, wanted = self.controller.parameters, limit or self._parallelism
        if now.parallelism != wanted:
            self.controller.update_configuration(replace(now, parallelism=wanted))
