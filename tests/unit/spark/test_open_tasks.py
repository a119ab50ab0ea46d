"""Tasks of any kind: open tasks are done before a query starts, each once, in order."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mzplan.model.tasks import Task, TaskOutcome
from mzplan.spark.tasks import open_tasks
from mzplan.spark.tasks.interface import TaskContext, TaskKind
from mzplan.spark.tasks.open_tasks import do_open_tasks
from mzplan.spark.tasks.progress import TasksUnderWay
from mzplan.warehouse.checkpoints import Checkpoint, TaskRecord
from tests.support import refusal
from tests.tasks import task

TWO, FIVE, NINE = (task("paint", serial, f"paint number {serial}") for serial in (2, 5, 9))


class Painter:
    """A kind of task that does every task except the ones that should fail."""

    def __init__(self, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch):
        self.checkpoint, self.log, self.fails = checkpoint, list[Any](), set[int]()
        self.under_way, self.shown = TasksUnderWay(lambda: 100.0), list[str]()
        monkeypatch.setattr(open_tasks, "_KINDS", {"paint": TaskKind(do=self._do)})

    def start(self, *tasks: Task) -> tuple[TaskOutcome, ...]:
        query = SimpleNamespace(address="sink.wall", description=SimpleNamespace(tasks=tasks))
        jobs = SimpleNamespace(setLocalProperty=lambda name, group: None)
        spark = SimpleNamespace(sparkContext=jobs)
        context: Any = SimpleNamespace(
            query=query,
            checkpoint=self.checkpoint,
            collection="",
            spark=spark,
            under_way=self.under_way,
            pass_over=self.checkpoint.log.skip,
        )
        return do_open_tasks(context, lambda: self.log.append("prepared"))

    def _do(self, context: TaskContext, task: Task) -> None:
        self.log.append(task.serial)
        self.shown += map(str, self.under_way.all().values())
        if task.serial in self.fails:
            raise RuntimeError("the paint is dry")
        outcome = TaskOutcome(serial=task.serial, text="done")
        context.checkpoint.tasks.record(TaskRecord(task=task, outcome=outcome, done=True))


@pytest.fixture
def painter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Painter:
    return Painter(Checkpoint(str(tmp_path)), monkeypatch)


def test_each_task_is_done_once_in_order_and_after_a_failure_only_the_rest(painter: Painter) -> None:
    assert painter.start() == () and painter.log == []
    painter.fails = {5}
    problem = refusal(lambda: painter.start(FIVE, TWO, NINE))
    assert problem.code == "MZ279" and problem.summary == "The paint of sink.wall could not be done"
    assert "mzplan paint sink.wall --cancel" in problem.hint
    painter.fails = set()
    assert [outcome.serial for outcome in painter.start(TWO, FIVE, NINE)] == [2, 5, 9]
    assert painter.log == ["prepared", 2, 5, "prepared", 5, 9]
    painter.start(NINE)
    assert painter.log[6:] == [], "nothing is prepared for what is done"
    began = "began at 1970-01-01T00:01:40Z"
    assert painter.shown == [f"its paint number {n} {began}" for n in (2, 5, 5, 9)]
    assert painter.under_way.all() == {}
