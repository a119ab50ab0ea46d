"""How a runner detects that it has too few cores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mzplan.spark.cores import EVERY, REMEMBERED, CoreWatch

NOW = 1000.0


class Stages:
    """Spark's status tracker. By stage: the running and finished tasks, and the time of submission."""

    def __init__(self, **stages: tuple[int, int, float]):
        self.stages = {int(name[1:]): stage for name, stage in stages.items()}

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


def watch(stages: Stages, now: list[float]) -> CoreWatch:
    java = SimpleNamespace(sc=lambda: SimpleNamespace(statusTracker=lambda: stages))
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="local[2]", _jsc=java))
    return CoreWatch(spark, lambda: now[0])


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
