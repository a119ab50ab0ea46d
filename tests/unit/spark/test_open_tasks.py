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
from mzplan.warehouse.checkpoints import Checkpoint, TaskRecord
from tests.support import refusal
from tests.tasks import task

TWO, FIVE, NINE = (task("paint", serial, f"paint number {serial}") for serial in (2, 5, 9))


class Painter:
    """A kind of task that does every task except the ones that should fail."""

    def __init__(self, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch):
        self.checkpoint, self.log, self.fails = checkpoint, list[Any](), set[int]()
        monkeypatch.setattr(open_tasks, "_KINDS", {"paint": TaskKind(do=self._do)})

    def start(self, *tasks: Task) -> tuple[TaskOutcome, ...]:
        query = SimpleNamespace(address="sink.wall", description=SimpleNamespace(tasks=tasks))
        context: Any = SimpleNamespace(query=query, checkpoint=self.checkpoint, collection="")
        return do_open_tasks(context, lambda: self.log.append("prepared"))

    def _do(self, context: TaskContext, task: Task) -> None:
        self.log.append(task.serial)
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
