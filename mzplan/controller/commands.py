"""How a controller does its work: the commands, and counts of attempts."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from mzplan.controller.claims import Claims
from mzplan.controller.decision import Decision, Stop, Switch, key_of
from mzplan.controller.executor import CheckResult, QueryName
from mzplan.controller.secrets_in_use import SecretsInUse
from mzplan.controller.table import Result
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.address import Address
from mzplan.model.cause import CauseKind
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.observed import Counters
from mzplan.schema.description import Description
from mzplan.secrets.resolved import shortened

if TYPE_CHECKING:
    from mzplan.controller.core import Controller

log = logging.getLogger("mzplan.runner")


class Attempts:
    """Counts starts and retries of one instance's queries, by address."""

    def __init__(self) -> None:
        self._starts: dict[Address, Counter[CauseKind]] = {}
        self._retries: dict[Address, int] = {}

    def count_retry(self, decision: Decision) -> None:
        """Count a decision as a retry if it starts a description that has failed before.

        A fallback to the accepted description isn't a retry.
        """
        command, memory = decision.command, decision.memory
        if isinstance(command, Switch) and memory.failures and memory.target == key_of(command.description):
            self._retries[command.address] = self._retries.get(command.address, 0) + 1

    def count_start(self, address: Address, cause: CauseKind) -> None:
        self._starts.setdefault(address, Counter())[cause] += 1

    def add_to(self, counted: Counters, address: Address) -> Counters:
        """Return the counters with the query's starts, restarts and retries."""
        starts: Counter[CauseKind] = self._starts.get(address, Counter())
        restarts = max(0, starts.total() - 1)
        retries = self._retries.get(address, 0)
        return replace(counted, restarts=restarts, retries=retries, starts=dict(starts))


class CommandRunner:
    """Carries out commands on threads of its jobs, and wakes the controller when one has ended."""

    def __init__(self, controller: Controller, claims: Claims, secrets_in_use: SecretsInUse, epoch: int):
        self.controller, self.executor = controller, controller.executor
        self.secrets = controller.secrets
        self.claims = claims
        self.secrets_in_use = secrets_in_use
        self.started_ids: dict[QueryName, str] = {}  # see World
        self.epoch = epoch

    def run(self, command: Stop | Switch) -> Result:
        try:
            match command:
                case Stop(names=names):
                    for name in names:
                        self.executor.stop(name)
                    return Result(command=command)
                case Switch():
                    return self._switch(command)
        except MzplanError as problem:
            return Result(command=command, problem=problem.diagnostics[0])
        except BaseException as problem:  # a panic in a Rust library isn't an Exception
            # The loop must survive a defect of one connector; the log has the whole trace.
            log.exception("%s: unexpected", command.address)
            text = shortened(f"{type(problem).__name__}: {problem}", 500)
            return Result(command=command, problem=Diagnostic.of("MZ064.defect", problem=text))
        finally:
            self.controller.wake()

    def _switch(self, command: Switch) -> Result:
        missing = self._missing_storage(command.description)
        if missing:
            return Result(command=command, problem=missing[0], checked=False)
        try:
            self.secrets.permit(command.description)
        except MzplanError as refused:
            return Result(command=command, problem=refused.diagnostics[0], checked=False)
        result = CheckResult()
        if command.check:
            result = self.executor.check(command.description, self.secrets)
            errors = [d for d in result.diagnostics if d.severity == "error"]
            if not errors and result.must_create:
                errors = list(
                    self.executor.prepare(command.description, self.secrets)
                    if command.create
                    else result.missing
                )
                if not errors:
                    self.controller.events.add(
                        "ddl", command.address, detail="created missing target objects"
                    )
            if errors:
                return Result(command=command, problem=errors[0], checked=False, upstream=result.upstream)
        failpoint(Failpoint.RUNNER_CHECKED)
        for name in command.stop:
            self.executor.stop(name)
        failpoint(Failpoint.RUNNER_STOPPED_OLD)
        name = QueryName.of(self.controller.store.project, command.description)
        self.started_ids[name] = command.description.id
        values = self.secrets_in_use.read(command.description)
        self.executor.start(command.description, self.secrets, self.epoch)
        self.secrets_in_use.record_start(command.address, values)
        failpoint(Failpoint.RUNNER_STARTED_NEW)
        for gate in self.controller.gates:
            gate.started(command.address)
        return Result(command=command, upstream=result.upstream)

    def _missing_storage(self, description: Description) -> tuple[Diagnostic, ...]:
        """Return the missing storage of a query that has run before, or nothing if it never ran.

        Without its storage, the query would start over and write rows twice.
        """
        place = description.place
        missing = self.executor.missing_storage(description)
        if not missing or self.claims.has_run_here(place):
            return missing
        if self.claims.was_dropped(place):
            why = "It ran and was dropped, and unclaimed storage is removed after a while"
        elif (before := self.claims.former_instance(place)) is not None:
            why = f"It ran on instance {before} before, and both instances must use the same warehouse"
        else:
            return ()
        return tuple(replace(diagnostic, detail=f"{diagnostic.detail} {why}.") for diagnostic in missing)
