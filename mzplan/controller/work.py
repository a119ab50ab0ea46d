"""The pool that a controller's work is done on, and how much of it is under way."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor as Pool
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from mzplan.controller.claims import Claims
from mzplan.controller.executor import CheckResult, QueryName, QueryReport
from mzplan.controller.hosting import Hosting
from mzplan.controller.reconcile import Command, Decision, Desired, Memory, Stop, Switch, key_of
from mzplan.controller.secrets_used import SecretsInUse
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.address import Address
from mzplan.model.cause import CauseKind
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.observed import Counters
from mzplan.schema.description import Description
from mzplan.secrets.resolved import shortened

LONG = 2  # commands at once that may take hours


log = logging.getLogger("mzplan.runner")


class WorkPool(Pool):
    """Threads whose number can be changed. Python's own pools keep theirs, so each size that is asked for has
    a pool. What was given to another one goes on there: who must not do more counts what it has given out.
    `long`: threads of their own, for what may take hours."""

    def __init__(self, size: int) -> None:
        self._by_size: dict[int, ThreadPoolExecutor] = {}
        self.long = ThreadPoolExecutor(LONG, thread_name_prefix="long")
        self.resize(size)

    def resize(self, size: int) -> None:
        if size not in self._by_size:
            self._by_size[size] = ThreadPoolExecutor(size, thread_name_prefix="work")
        self._current = self._by_size[size]

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._current.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for pool in (self.long, *self._by_size.values()):
            pool.shutdown(wait, cancel_futures=cancel_futures)


class Lane:
    """Work of one sort on a pool, of which no more than `most` is to be under way at once. Who has to wait
    asks again when some of it has ended."""

    def __init__(self, pool: Pool, most: int) -> None:
        self.pool = pool
        self.most = most
        self._working: list[Future[Any]] = []  # those that had not ended at the last look

    def is_full(self) -> bool:
        self._working = [future for future in self._working if not future.done()]
        return len(self._working) >= self.most

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future[Any]:
        future = self.pool.submit(fn, *args)
        self._working.append(future)
        return future


class Attempts:
    """Of the queries of one instance, by address."""

    def __init__(self) -> None:
        self._starts: dict[Address, Counter[CauseKind]] = {}
        self._retries: dict[Address, int] = {}

    def carries_out(self, decision: Decision) -> None:
        """A decision is about to be carried out: one to start what has failed before is a retry. To go back
        to what ran before a change is none."""
        command, memory = decision.command, decision.memory
        if isinstance(command, Switch) and memory.failures and memory.target == key_of(command.description):
            self._retries[command.address] = self._retries.get(command.address, 0) + 1

    def started(self, address: Address, cause: CauseKind) -> None:
        """A query was started."""
        self._starts.setdefault(address, Counter())[cause] += 1

    def added_to(self, counted: Counters, address: Address) -> Counters:
        """With its starts, restarts and retries."""
        starts: Counter[CauseKind] = self._starts.get(address, Counter())
        restarts = max(0, starts.total() - 1)
        retries = self._retries.get(address, 0)
        return replace(counted, restarts=restarts, retries=retries, starts=dict(starts))


class RunningIds:
    """The ids that queries were started with, by query name. A name doesn't say from which checkpoint a query
    runs: it is that of an address, which may be given to another resource (renamed, forgotten and declared
    again) while a query runs. Queries never outlive this process, so what it has started is all there is."""

    def __init__(self) -> None:
        self._ids: dict[QueryName, str] = {}

    def starting(self, name: QueryName, id_: str) -> None:
        """A query is about to be started (from the pool: a single assignment)."""
        self._ids[name] = id_

    def strangers(
        self, address: Address, desired: Desired | None, reports: list[QueryReport], memory: Memory
    ) -> Decision | None:
        """Stop what runs at this address from the checkpoint of another resource; None when nothing does.
        What was accepted of that one stays remembered until it has stopped: its storage is still written."""
        if desired is None:
            return None
        wanted = desired.description.id
        names = tuple(r.name for r in reports if self._ids.get(r.name, wanted) != wanted)
        if not names:
            return None
        return Decision(
            command=Stop(address=address, names=names),
            memory=Memory(accepted=memory.accepted),
            condition="starting",
            shown=None,
        )

    def is_elsewhere(
        self,
        command: Switch,
        reports: Mapping[Address, list[QueryReport]],
        starting: Mapping[Address, str],
    ) -> bool:
        """Whether the checkpoint that this would start from is still in use at another address. `starting`:
        the ids of which a start is under way: it may take hours before there is a report of it."""
        id_ = command.description.id
        return any(
            query_id == id_ for address, query_id in starting.items() if address != command.address
        ) or any(
            self._ids.get(report.name) == id_
            for address, running in reports.items()
            if address != command.address
            for report in running
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a command ended: `problem` is None when it did what it should. `checked`: False for a failed check,
    which has stopped nothing."""

    command: Command
    problem: Diagnostic | None = None
    checked: bool = True
    upstream: Any = None


class Switcher:
    """Carries out commands, on threads of the pool, and wakes the controller when one has ended."""

    def __init__(self, hosting: Hosting, claims: Claims, secrets_in_use: SecretsInUse, epoch: int):
        self.hosting, self.executor, self.secrets = hosting, hosting.executor, hosting.secrets
        self.claims = claims
        self.secrets_in_use = secrets_in_use
        self.running_ids = RunningIds()
        self.epoch = epoch

    def do(self, command: Stop | Switch) -> Done:
        try:
            match command:
                case Stop(names=names):
                    for name in names:
                        self.executor.stop(name)
                    return Done(command=command)
                case Switch():
                    return self._switch(command)
        except MzplanError as problem:
            return Done(command=command, problem=problem.diagnostics[0])
        except BaseException as problem:  # a panic of a library in Rust is no Exception
            # The loop must outlive a defect in one connector; the log has the whole of it.
            log.exception("%s: unexpected", command.address)
            text = f"{type(problem).__name__}: {problem}"
            return Done(command=command, problem=Diagnostic(code="MZ064", summary=shortened(text, 500)))
        finally:
            self.hosting.wake()

    def _switch(self, command: Switch) -> Done:
        gone = self._gone(command.description)
        if gone:
            return Done(command=command, problem=gone[0], checked=False)
        try:
            self.secrets.permit(command.description)
        except MzplanError as refused:
            return Done(command=command, problem=refused.diagnostics[0], checked=False)
        result = CheckResult()
        if command.check:
            result = self.executor.check(command.description, self.secrets)
            errors = [d for d in result.diagnostics if d.severity == "error"]
            if not errors and result.must_create:
                errors = list(
                    self.executor.prepare(command.description, self.secrets)
                    if command.makes
                    else result.missing
                )
                if not errors:
                    self.hosting.notes.note("ddl", command.address, detail="what its target lacked was made")
            if errors:
                return Done(command=command, problem=errors[0], checked=False, upstream=result.upstream)
        failpoint(Failpoint.RUNNER_CHECKED)
        for name in command.stop:
            self.executor.stop(name)
        failpoint(Failpoint.RUNNER_STOPPED_OLD)
        self.running_ids.starting(
            QueryName.of(self.hosting.store.project, command.description), command.description.id
        )
        values = self.secrets_in_use.read(command.description)
        self.executor.start(command.description, self.secrets, self.epoch)
        self.secrets_in_use.started(command.address, values)
        failpoint(Failpoint.RUNNER_STARTED_NEW)
        for gate in self.hosting.gates:
            gate.started(command.address)
        return Done(command=command, upstream=result.upstream)

    def _gone(self, description: Description) -> tuple[Diagnostic, ...]:
        """What is missing of a query that has run before: it would begin again, and rows come twice."""
        place = description.place
        missing = self.executor.missing(description)
        if not missing or self.claims.ran_here(place):
            return missing
        if self.claims.was_dropped(place):
            why = "It was dropped after it had run, and what nothing claims is removed"
        elif (before := self.claims.ran_elsewhere(place)) is not None:
            why = f"It ran on instance {before} before, and this one must see the same warehouse"
        else:
            return ()
        return tuple(replace(diagnostic, detail=f"{diagnostic.detail} {why}.") for diagnostic in missing)
