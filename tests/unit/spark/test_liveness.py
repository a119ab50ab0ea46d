"""How a runner detects that Spark can no longer run queries, or has too few cores or executors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mzplan.spark.process import liveness
from mzplan.spark.process.job_watch import EVERY, REMEMBERED, REMOVED, JobWatch
from mzplan.spark.process.liveness import Liveness


class Java:
    """Spark's Java process with its context."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.answer: Callable[[], bool] = lambda: False
        self.asked = threading.Semaphore(0)

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.code = -9

    def wait(self, timeout: float) -> None:
        assert timeout < 5

    def isStopped(self) -> bool:  # noqa: N802
        self.asked.release()
        return self.answer()


def liveness_of(
    java: Java, *, submitted: bool = False, on_answer: Callable[[], str | None] = lambda: None
) -> Liveness:
    gateway = SimpleNamespace(proc=None if submitted else java)
    context = SimpleNamespace(_gateway=gateway, _jsc=SimpleNamespace(sc=lambda: java))
    spark: Any = SimpleNamespace(sparkContext=context)
    return Liveness(spark, on_answer)


def looked(alive: Liveness, java: Java, times: int = 1) -> str | None:
    """Return the first reason in so many looks. Each question is answered."""
    for _ in range(times):
        if (why := alive.why_dead()) is not None:
            return why
        assert java.asked.acquire(timeout=10)
    return None


CODES = {3: "it ran out of memory", -9: "was killed (SIGKILL)", -6: "by signal 6", 1: "exit code is 1"}


@pytest.mark.parametrize(("code", "text"), CODES.items())
def test_an_ended_java_process_is_named_with_its_cause(code: int, text: str) -> None:
    java = Java()
    alive = liveness_of(java)
    assert looked(alive, java, 3) is None
    java.code = code
    why = alive.why_dead()
    assert why is not None and why.startswith("Spark's Java process has ended: ") and text in why


def test_a_stopped_context_is_dead_unless_the_session_was_closed() -> None:
    java, closed = Java(), Java()
    java.answer = closed.answer = lambda: True
    alive, ended = liveness_of(java), liveness_of(closed)
    ended.close()
    assert ended.why_dead() is None
    why = looked(alive, java, 50)
    assert why == "Spark's context was stopped, and this process can't have another one."
    alive.kill()
    assert alive.why_ended() == alive.why_dead() == why  # not the signal that the runner itself has sent


def test_a_gateway_is_dead_after_several_failed_calls() -> None:
    def refused() -> bool:
        raise ConnectionRefusedError

    java = Java()
    alive = liveness_of(java, submitted=True)  # there is no process to ask
    java.answer = refused
    assert looked(alive, java) is None
    java.answer = lambda: False
    assert looked(alive, java, 10) is None
    java.answer = refused
    assert looked(alive, java) is None
    assert "no longer accepts calls from Python" in (looked(alive, java, 50) or "")


def test_java_that_hangs_is_dead_after_a_minute_and_no_look_waits() -> None:
    java, over = Java(), threading.Event()
    alive = liveness_of(java)
    java.answer = lambda: over.wait(60)
    assert all(alive.why_dead() is None for _ in range(liveness.SILENT))
    assert alive.why_dead() == "Spark's Java process hasn't answered for 60 s."
    over.set()


def test_spark_without_its_local_executor_is_dead() -> None:
    java, answers = Java(), [None, None, REMOVED]
    alive = liveness_of(java, on_answer=lambda: answers.pop(0) if len(answers) > 1 else answers[0])
    assert looked(alive, java, 50) == REMOVED


# --- too few cores or executors

NOW = 1000.0


class Stages:
    """Spark's status tracker. By stage: the running and finished tasks, and the time of submission."""

    def __init__(self, **stages: tuple[int, int, float]):
        self.stages = {int(name[1:]): stage for name, stage in stages.items()}
        self.memory = {"driver": 1}  # by executor

    def getActiveStageIds(self) -> list[int]:  # noqa: N802
        return list(self.stages)

    def getStageInfo(self, stage: int) -> Any:  # noqa: N802
        running, finished, since = self.stages[stage]
        info = SimpleNamespace(
            numActiveTasks=lambda: running,
            numCompletedTasks=lambda: finished,
            numFailedTasks=lambda: 0,
            submissionTime=lambda: since * 1000,
        )
        return SimpleNamespace(isEmpty=lambda: False, get=lambda: info)


def watch(stages: Stages, now: list[float], *, is_local: bool = True) -> JobWatch:
    context = SimpleNamespace(
        statusTracker=lambda: stages,
        isLocal=lambda: is_local,
        getExecutorMemoryStatus=lambda: SimpleNamespace(size=lambda: len(stages.memory)),
    )
    java = SimpleNamespace(sc=lambda: context)
    master = "local[2]" if is_local else "spark://there:7077"
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master=master, _jsc=java, defaultParallelism=2))
    return JobWatch(spark, clock=lambda: now[0])


@pytest.mark.parametrize(
    ("stages", "cores"),
    [
        (Stages(), 0),
        (Stages(s1=(1, 0, NOW - 60), s2=(0, 0, NOW - 1)), 0),
        (Stages(s1=(1, 0, NOW - 60), s2=(0, 3, NOW - 60)), 0),  # it has had its turn
        (Stages(s100=(0, 0, NOW - 1), s99=(0, 0, NOW - 9)), 2),
    ],
)
def test_cores_are_scarce_while_a_stage_waits_for_its_first_task(stages: Stages, cores: int) -> None:
    """Also for a while afterwards."""
    now = [NOW]
    watching = watch(stages, now)
    for _ in range(EVERY):
        assert watching.scarce_cores() == 0
        watching.look()
    assert watching.scarce_cores() == cores
    stages.stages.clear()
    now[0] += REMEMBERED - 1
    for _ in range(EVERY):
        watching.look()
    assert watching.scarce_cores() == cores
    now[0] += 2
    assert watching.scarce_cores() == 0


def test_a_removed_local_executor_is_final() -> None:
    """It is, whether or not a job waits. One answer alone proves nothing."""
    stages = Stages()
    watching = watch(stages, [NOW])
    assert [watching.look() for _ in range(10)] == [None] * 10
    stages.memory.clear()
    assert [watching.look() for _ in range(3)] == [None, REMOVED, REMOVED]
    assert watching.stall() is None


def test_a_cluster_without_executors_stalls_only_jobs_and_recovers() -> None:
    stages, now = Stages(), [NOW]
    watching = watch(stages, now, is_local=False)

    def stall() -> str | None:
        for _ in range(2 * EVERY):
            assert watching.look() is None  # the runner waits for an executor
            now[0] += 1.0
        return watching.stall()

    assert stall() is None  # no job needs an executor
    stages.stages = {1: (0, 3, NOW)}
    stages.memory["1"] = 1
    assert stall() is None
    del stages.memory["1"]
    first = stall()
    assert first is not None and first.startswith("Spark has had no executor since 1970-01-01T00:17:04Z")
    assert stall() == first
    stages.memory["2"] = 1
    assert stall() is None
