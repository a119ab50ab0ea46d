"""An engine and jobs without threads, for traces. They record each action, and fail or hang on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from mzplan.controller.executor import CheckResult, QueryName
from mzplan.controller.jobs import Jobs
from mzplan.controller.memory import InMemoryExecutor
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, error
from mzplan.model.losses import FirstCopy
from mzplan.schema.description import Description
from mzplan.secrets.references import Secrets


class SteppedJobs(Jobs):
    """Keeps jobs until `run` is called. A kind that hangs keeps its threads, as it would with real ones."""

    def __init__(self, hanging: set[str]) -> None:
        super().__init__(lambda kind: _Pool(self))
        self._hanging = hanging
        self.waiting: list[Any] = []  # the jobs that have a thread

    def run(self) -> bool:
        """Run the jobs that have a thread. Return whether there were any."""
        waiting, self.waiting = self.waiting, []
        for job in waiting:
            if self._hanging.isdisjoint({job.kind, job.key, f"{job.kind} {job.key}"}):
                self._run(job)
            else:
                self.waiting.append(job)
        return len(self.waiting) < len(waiting)

    def add(self, job: Any) -> None:
        if job.kind == "check":  # the job of its proposal waits for it
            self._run(job)
        else:
            self.waiting.append(job)


class _Pool(Pool):
    def __init__(self, jobs: SteppedJobs) -> None:
        self._jobs = jobs

    def submit(self, fn: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
        self._jobs.add(*arguments)
        return Future()


@dataclass(slots=True)
class Faults:
    """What is wrong, for every engine. The first three name queries, and `down` names connections.

    `copying`: first copies that aren't complete.
    """

    refused: frozenset[str] = frozenset()
    broken: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()
    down: frozenset[str] = frozenset()
    copying: Mapping[str, FirstCopy] = field(default_factory=dict)


class RecordingExecutor(InMemoryExecutor):
    """Records each action. `ids` has the id of each query that it has started."""

    def __init__(self, record: Callable[[str], None], wrong: Faults) -> None:
        super().__init__("shop")
        self.record, self.wrong = record, wrong
        self.ids: dict[QueryName, str] = {}
        self.first_copies = lambda query: wrong.copying.get(str(query.address), FirstCopy())
        self.missing = lambda query: _problem("MZ161", query.address, wrong.gone)
        self.faults = lambda connection: _problem("MZ021", connection.address, wrong.down)

    def check(self, description: Description, secrets: Secrets) -> CheckResult:
        self.record(f"check {named(description)}")
        return CheckResult(diagnostics=_problem("MZ050", description.address, self.wrong.refused))

    def start(self, description: Description, secrets: Secrets, epoch: int) -> None:
        self.record(f"start {named(description)}")
        if str(description.address) in self.wrong.broken:
            raise error("MZ064", "It can't start")
        self.ids[QueryName.of("shop", description)] = description.id
        super().start(description, secrets, epoch)

    def stop(self, name: QueryName) -> None:
        self.record(f"stop {name.address}{generation_of(name.generation)}")
        super().stop(name)

    def release_upstream(self, id_: str, generation: int) -> None:
        self.record(f"release {id_}{generation_of(generation)}")

    def reclaim(self, id_: str, generation: int) -> None:
        self.record(f"remove {id_}{generation_of(generation)}")


def _problem(code: str, address: Address, names: frozenset[str]) -> tuple[Diagnostic, ...]:
    return (Diagnostic(code=code, summary="no"),) if str(address) in names else ()


def named(description: Description) -> str:
    return f"{description.address}{generation_of(description.generation)}"


def generation_of(number: int) -> str:
    return f" g{number}" if number > 1 else ""
