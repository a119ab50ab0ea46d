"""Answers to proposals: live validation where the queries will run.

The author of a proposal may not have the right to commit. The runner therefore creates and changes nothing
for a proposal, and its checks never delay committed queries.
"""

from __future__ import annotations

import logging
import math
import time
from concurrent.futures import Future
from typing import Any

from mzplan.controller.core import Controller
from mzplan.controller.executor import CheckResult
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError, error, sentence
from mzplan.runner.secret_values import ReceivedSecretValues, Values
from mzplan.schema.description import Description
from mzplan.secrets.resolved import shortened
from mzplan.store.proposals import Answer, Proposal

log = logging.getLogger("mzplan.runner")
MAX_NOTED = 20  # errors of one proposal that become events
TIME_LIMIT = 50.0  # seconds for all checks of a proposal: the command that made it waits for a minute


class ProposalAnswerer:
    """Finds proposals and answers each once. The checks of a proposal run in parallel.

    A check may hang, because Spark computes constant expressions while it parses them. Its thread is then
    busy until the runner exits.
    """

    def __init__(
        self,
        controller: Controller,
        instance: str,
        secret_values: ReceivedSecretValues,
    ):
        self.controller, self.store = controller, controller.store
        self.instance = instance
        self.secret_values = secret_values
        self._in_flight: dict[str, Future[None]] = {}
        self._looked_at = -math.inf  # monotonic seconds
        self._problem: MzplanError | None = None  # of the last look

    def poll(self) -> bool:
        """Start answering new proposals. Return True while any answer is in progress."""
        for id_ in [i for i, future in self._in_flight.items() if future.done()]:
            self._in_flight.pop(id_).result()
        for proposal in self._open():
            if proposal.id not in self._in_flight:
                self._in_flight[proposal.id] = self.controller.jobs.submit(
                    "proposal", proposal.id, self._answer, proposal, time.monotonic() + TIME_LIMIT
                )
        return bool(self._in_flight)

    def _open(self) -> list[Proposal]:
        """Return the proposals without an answer. While work is under way, look only now and then.

        There are then twenty rounds a second, perhaps for hours, and an object store charges for each list.
        """
        now = time.monotonic()
        if self.controller.busy and now - self._looked_at < self.store.backend.idle_interval:
            if self._problem is not None:  # nobody knows yet whether the store answers again
                raise self._problem
            return []
        self._looked_at, self._problem = now, None
        try:
            return self.store.proposals.open(self.instance)
        except MzplanError as problem:
            self._problem = problem
            raise

    def _answer(self, proposal: Proposal, until: float) -> None:
        try:
            self._check_all(proposal, self.secret_values.proposed(proposal.id), until)
        except Exception:  # a defect; without an answer, each round would check the proposal again
            log.exception("proposal %s: unexpected", proposal.id)
            unanswered = Diagnostic.of("MZ064.unanswered", id=proposal.id)
            self._write(Answer(id=proposal.id, diagnostics=(unanswered,)))
        finally:
            self.secret_values.forget(proposal.id)
            self.controller.wake()

    def _check_all(self, proposal: Proposal, values: Values, until: float) -> None:
        submit = self.controller.jobs.submit
        checks = [(d, submit("check", d.address, self._check, d, values)) for d in proposal.descriptions]
        diagnostics: list[Diagnostic] = []
        upstreams: dict[Address, Any] = {}
        for description, future in checks:
            result = self._result(description, future, until - time.monotonic())
            diagnostics.extend(result.diagnostics)
            if result.upstream is not None:
                upstreams[description.address] = result.upstream
        refusals = [diagnostic for diagnostic in diagnostics if diagnostic.severity == "error"]
        for refusal in refusals[:MAX_NOTED]:
            text = f"a change was refused before its commit: {sentence(refusal)}"
            self.controller.events.add("refused", refusal.address, code=refusal.code, detail=text)
        self._write(Answer(id=proposal.id, diagnostics=tuple(diagnostics), upstreams=upstreams))

    def _write(self, answer: Answer) -> None:
        try:
            self.store.proposals.answer(answer)
        except MzplanError as problem:
            log.warning("%s", problem)

    def _result(self, description: Description, check: Future[CheckResult], seconds: float) -> CheckResult:
        """Return the result of a check, or MZ290 if the check doesn't end in time."""
        try:
            return check.result(max(seconds, 0.0))
        except TimeoutError:
            check.cancel()
        late = error("MZ290.slow-check", address=description.address, seconds=TIME_LIMIT)
        return CheckResult(diagnostics=late.diagnostics)

    def _check(self, description: Description, values: Values) -> CheckResult:
        try:
            return self.controller.validate(description, values)
        except MzplanError as problem:
            return CheckResult(diagnostics=problem.diagnostics)
        except BaseException as problem:  # a defect must neither prevent the answer nor end the runner
            log.exception("%s: unexpected", description.address)
            text = shortened(f"{type(problem).__name__}: {problem}", 450)
            defect = Diagnostic.of("MZ064.check-defect", problem=text, address=description.address)
            return CheckResult(diagnostics=(defect,))
