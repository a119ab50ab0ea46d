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


@dataclass(slots=True)
class _Waiting:
    kind: str
    key: str
    budget: int
    work: Callable[[], Any]
    future: Future[Any]


class SteppedJobs(Jobs):
    """Keeps jobs until `run` is called. A kind that hangs keeps its threads, as it would with real ones."""

    def __init__(self, hanging: set[str]) -> None:
        super().__init__(self._pool)
        self._hanging = hanging
        self._key = ""
        self.waiting: list[_Waiting] = []

    def submit(self, kind: Any, key: object, work: Any, /, *arguments: Any, **more: Any) -> Future[Any]:
        self._key = str(key)
        return super().submit(kind, key, work, *arguments, **more)

    def run(self) -> bool:
        """Run the jobs that have a thread. Return whether there were any."""
        waiting, self.waiting = self.waiting, []
        threads: dict[str, int] = {}
        for job in waiting:
            hangs = not self._hanging.isdisjoint({job.kind, job.key, f"{job.kind} {job.key}"})
            if hangs or threads.get(job.kind, 0) >= job.budget:
                threads[job.kind] = threads.get(job.kind, 0) + 1
                self.waiting.append(job)
            elif job.future.set_running_or_notify_cancel():
                job.future.set_result(job.work())
        return len(self.waiting) < len(waiting)

    def _pool(self, budget: int, kind: str) -> Pool:
        return _Pool(self, budget, kind)

    def add(self, kind: str, budget: int, work: Callable[[], Any]) -> Future[Any]:
        job = _Waiting(kind, self._key, budget, work, Future())
        if kind == "check":  # the job of its proposal waits for it
            job.future.set_result(work())
        else:
            self.waiting.append(job)
        return job.future


class _Pool(Pool):
    def __init__(self, jobs: SteppedJobs, budget: int, kind: str) -> None:
        self._jobs, self._budget, self._kind = jobs, budget, kind

    def submit(self, fn: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
        return self._jobs.add(self._kind, self._budget, lambda: fn(*arguments, **more))


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
