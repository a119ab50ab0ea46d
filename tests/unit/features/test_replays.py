"""Replays and backfills on a runner, without Spark: checks before a start, and the steps that they write."""

from __future__ import annotations

import json
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka.admin import OffsetSpec

from mzplan.connectors.api.queries import ResolvedQuery, resolve
from mzplan.connectors.api.tasks import check_tasks, tasks_to_do
from mzplan.connectors.kafka.client import Client
from mzplan.connectors.kafka.probe import KafkaProbe
from mzplan.connectors.kafka.source import KafkaSource
from mzplan.controller.decision import Decision, Memory, Switch, WantedQuery
from mzplan.controller.table import as_committed
from mzplan.features.steps.steps_text import render_steps
from mzplan.model.tasks import Task, TaskOutcome
from mzplan.schema.description import describe
from mzplan.secrets.references import Secrets
from mzplan.spark.tasks.interface import complete_steps, skip_cancelled_step
from mzplan.warehouse.checkpoints import Checkpoint, TaskRecord, TaskRecords
from mzplan.warehouse.step_record import StepTask
from tests.stored_steps import StoredSource, offsets
from tests.stored_steps import commit as seen_through
from tests.support import refusal
from tests.tasks import backfill, letters_replay, replay
from tests.unit.small_projects import at, commit, shop, source

ORDERS = at("source.orders")
RANGE = (1_795_410_000_000, 1_795_417_200_000)  # 2026-11-23T05:00:00Z to 07:00:00Z
BACKFILL = backfill(7, "2026-11-23T05:00:00Z", "2026-11-23T07:00:00Z")
LATER = replace(BACKFILL, serial=8)
REPLAY = replay(2, first=3, last=5, missing=True)
LETTERS = letters_replay(7)
KEPT: dict[str, Any] = {"on_error": "dead-letter", "dead_letter": {"path": "dead/orders"}}


def query_of(folder: Path, *tasks: Task, address: str = "source.orders", **body: Any) -> ResolvedQuery:
    resources = commit(shop(orders=source(**{**KEPT, **body}))).resources
    described = replace(describe(resources[at(address)], resources), tasks=tasks)
    return resolve(described, Secrets(".", {}), ".", str(folder))


def run_steps(query: ResolvedQuery, count: int, offset: Any) -> Checkpoint:
    """Commit steps of a query whose last offset is this one."""
    checkpoint = query.checkpoint
    assert checkpoint is not None
    for step in range(count):
        offsets(Path(checkpoint.spark), step, offset)
        seen_through(Path(checkpoint.spark), step)
    return checkpoint


def record(task: Task, step: int | None = None, **more: Any) -> TaskRecord:
    return TaskRecord(task=task, outcome=TaskOutcome(serial=task.serial), step=step, **more)


# --- checks before a start


def test_tasks_that_have_nothing_to_repeat_are_refused_before_a_start(tmp_path: Path) -> None:
    for task, address, code in (
        (BACKFILL, "source.orders", "MZ278"),
        (LETTERS, "source.orders", "MZ278"),
        (REPLAY, "sink.orders_pg", "MZ273"),
    ):
        query = query_of(tmp_path, task, address=address)
        (found,) = check_tasks(query, Checkpoint.of(str(tmp_path), *query.description.place), KafkaSource())
        assert found.code == code, "it has no step yet"
    (found,) = check_tasks(query, run_steps(query, 5, {"reservoirVersion": 5}))
    assert found.code == "MZ273" and "Step 5 doesn't exist yet. Its last step is 4." in found.detail
    assert check_tasks(query, run_steps(query, 6, {"reservoirVersion": 6})) == ()
    checkpoint = run_steps(query_of(tmp_path, LETTERS), 1, {"orders": {"0": 3}})
    assert check_tasks(query_of(tmp_path, LETTERS), checkpoint, KafkaSource()) == ()
    changed = query_of(tmp_path, LETTERS, dead_letter={"topic": "dead"})
    (found,) = check_tasks(changed, checkpoint, KafkaSource())
    assert found.code == "MZ273" and "and a topic keeps its records" in found.detail


def test_the_upstream_is_asked_only_for_a_backfill_that_has_not_begun(tmp_path: Path) -> None:
    query = query_of(tmp_path, BACKFILL, LATER)
    checkpoint = run_steps(query, 1, {"orders": {"0": 3}})
    kafka = Mock()
    checkpoint.tasks.record(record(BACKFILL, 1, done=True))
    assert tasks_to_do(query, checkpoint) == [LATER] and check_tasks(query, checkpoint, kafka) == ()
    kafka.between_times.assert_called_once_with(query, *RANGE, '{"orders": {"0": 3}}')
    checkpoint.tasks.record(record(LATER, 2))  # its offsets are recorded, and its rows may be written
    assert check_tasks(query, checkpoint, kafka) == () and kafka.between_times.call_count == 1


class Broker:
    """The admin client of a topic with two partitions that end at offset 20.

    `first`: the partitions' first offsets. `begins`, `ends`: by partition, the offset and time of the first
    record from the start and from the end of the range on.
    """

    def __init__(self, first: list[int], begins: dict[int, Any], ends: dict[int, Any]):
        self.first, self.records = first, {RANGE[0]: begins, RANGE[1]: ends}

    def describe_topics(self, *_: Any, **more: Any) -> Any:
        return {"orders": answered(partitions=[0, 1], authorized_operations=None, topic_id="t")}

    def describe_cluster(self, **more: Any) -> Any:
        return answered(cluster_id="c")

    def list_offsets(self, wanted: dict[Any, Any], **more: Any) -> Any:
        return {place: answered(**self.offset(place.partition, spec)) for place, spec in wanted.items()}

    def offset(self, partition: int, spec: Any) -> dict[str, int]:
        if hasattr(spec, "timestamp"):
            offset, time = self.records[spec.timestamp].get(partition, (-1, -1))
            return {"offset": offset, "timestamp": time}
        return {"offset": 20 if isinstance(spec, type(OffsetSpec.latest())) else self.first[partition]}


def answered(**fields: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(SimpleNamespace(**fields))
    return future


@pytest.mark.parametrize(
    ("first", "begins", "ends", "expected"),
    [
        ([0, 0], {0: (3, 0), 1: (1, 0)}, {0: (7, 0)}, ({"0": 3, "1": 1}, {"0": 7, "1": 15})),
        ([2, 0], {0: (3, 0)}, {}, ({"0": 3}, {"0": 12})),
        # Records after the checkpoint's position (12 and 15) are read without a backfill.
        ([0, 0], {0: (12, 0), 1: (14, 0)}, {}, ({"1": 14}, {"1": 15})),
        ([0, 0], {0: (12, 0)}, {}, "MZ278 has not read the records"),
        ([0, 0], {0: (3, 0)}, {0: (3, 0)}, "MZ277 has no records from"),
        # The oldest record that partition 0 has left is later than the range.
        ([9, 0], {0: (9, RANGE[0] + 5), 1: (1, 0)}, {0: (9, 0)}, "MZ277 may be gone"),
    ],
)
def test_a_backfill_reads_the_offsets_of_its_range_or_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, first: list[int], begins: Any, ends: Any, expected: Any
) -> None:
    client: Any = Client(Broker(first, begins, ends), [])  # type: ignore[arg-type]
    monkeypatch.setattr(KafkaProbe, "client_of", lambda *_: client)
    query, position = query_of(tmp_path), json.dumps({"orders": {"0": 12, "1": 15}})
    if isinstance(expected, tuple):
        found = KafkaSource().between_times(query, *RANGE, position)
        assert found == tuple({"orders": offsets} for offsets in expected)
        return
    problem = refusal(lambda: KafkaSource().between_times(query, *RANGE, position))
    code, _, why = expected.partition(" ")
    assert problem.code == code and why in problem.summary
    assert why != "may be gone" or "--from 2026-11-23T05:00:00.006Z or later" in problem.hint


def test_only_tasks_of_the_committed_description_run(tmp_path: Path) -> None:
    """A query that falls back to an accepted description gets no tasks from it."""
    wanted = query_of(tmp_path, REPLAY, address="sink.orders_pg").description
    other = replace(wanted, digest="1:old", tasks=(replace(REPLAY, serial=9), BACKFILL))
    for description, tasks in ((wanted, (REPLAY,)), (other, ())):
        switch = Switch(address=wanted.address, description=description, stop=(), check=True)
        decision = Decision(command=switch, memory=Memory(), condition="starting", run=None)
        command = as_committed(decision, WantedQuery(description=wanted, paused=False)).command
        assert isinstance(command, Switch) and command.description.tasks == tasks


# --- records and steps


def test_tasks_that_are_done_are_recorded(tmp_path: Path) -> None:
    records = TaskRecords(str(tmp_path))
    records.record(record(BACKFILL, 11, done=True))
    records.record(record(REPLAY, done=True))  # a sink's task is no step of its own
    assert [one.step for one in records.all()] == [None, 11]
    assert [one.serial for one in records.done()] == [2, 7]
    (tmp_path / "tasks" / f"{11:020}.json").write_text("{")
    with pytest.raises(OSError, match="is damaged"):
        records.all()


class Stored(StoredSource):
    """A source's storage in which tasks write steps, too."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.task_checkpoint = Checkpoint.of(str(folder), *self.place)
        (Path(self.task_checkpoint.spark) / "metadata").write_text('{"id":"q"}')

    def write_rows(self, step: int, rows: int) -> None:
        """Add the rows of a task's step to the table."""
        transaction = {"txn": {"appId": "q", "version": step}}
        self._operate("WRITE", transaction, operationMetrics={"numOutputRows": str(rows)})
        self.step = step + 1

    def settle(self, settle: Any) -> None:
        checkpoint = self.task_checkpoint
        complete_steps(checkpoint, str(self.collection), settle, checkpoint.log.skip)

    def found(self) -> list[tuple[int, int | None, StepTask | None]]:
        return [(one.step, one.rows, one.task) for one in self.history.read().records]


@pytest.mark.parametrize(
    ("task", "start", "end", "shown"),
    [
        (BACKFILL, {"orders": {"0": 1}}, {"orders": {"0": 3}}, "0:1..3 once more (backfill)"),
        (LETTERS, None, None, "once more (dead-letters)"),
    ],
    ids=["backfill", "dead-letters"],
)
def test_a_task_is_a_step_of_the_collection(
    tmp_path: Path, task: Task, start: Any, end: Any, shown: str
) -> None:
    """Also if the source was changed since. The letters are deleted before the step is done."""
    stored = Stored(tmp_path)
    stored.run([{"id": 1}, {"id": 2}, {"id": 3}])
    checkpoint, step = stored.task_checkpoint, record(task, 1, start=start, end=end)
    checkpoint.tasks.record(step)
    settle = Mock(side_effect=lambda record: record)
    stored.settle(settle)
    assert checkpoint.log.committed() == 0 and not settle.called, "it has no rows yet"
    stored.write_rows(1, 2)
    settle.side_effect = RuntimeError("killed")
    with pytest.raises(RuntimeError):
        stored.settle(settle)
    assert checkpoint.tasks.all() == [step] and checkpoint.log.committed() == 0
    settle = Mock(side_effect=lambda record: record)
    stored.settle(settle)
    settle.assert_called_once_with(step)
    assert checkpoint.tasks.all() == [replace(step, done=True)] and checkpoint.log.committed() == 1
    stored.run([{"id": 4}])
    assert stored.found() == [(0, 3, None), (1, 2, StepTask(task.kind, 7)), (2, 1, None)]
    found = stored.history.read()
    if start is not None:
        offsets_read = [(r.start["orders"]["0"], r.end["orders"]["0"]) for r in found.records]
        assert offsets_read == [(0, 3), (1, 3), (3, 4)]
    stored.history.index.append(found.records[:2])
    assert stored.history.read() == found, "the index has it, too"
    steps: Any = SimpleNamespace(resource=commit(shop()).resources[ORDERS], steps=found, never="")
    assert shown in render_steps(steps)


def test_the_step_of_a_cancelled_task_stays_reserved_for_it(tmp_path: Path) -> None:
    """A frozen runner may still write it. The query then uses another step."""
    stored = Stored(tmp_path)
    checkpoint = stored.task_checkpoint
    stored.run([{"id": 1}, {"id": 2}])
    begun = record(BACKFILL, 1, start={"orders": {"0": 0}}, end={"orders": {"0": 1}})
    checkpoint.tasks.record(begun)
    before = checkpoint.position()
    skip_cancelled_step(query_of(tmp_path, BACKFILL), checkpoint, checkpoint.log.skip)
    assert checkpoint.log.committed() == 0, "it isn't cancelled: it begins again with the same offsets"
    for _ in range(2):
        skip_cancelled_step(query_of(tmp_path), checkpoint, checkpoint.log.skip)
        assert (checkpoint.log.committed(), checkpoint.position()) == (1, before)
    stored.settle(lambda record: record)
    assert checkpoint.tasks.all() == [begun], "it has written nothing"
    stored.write_rows(1, 1)
    stored.run([{"id": 3}])
    stored.settle(lambda record: record)
    assert checkpoint.tasks.all() == [replace(begun, done=True)] and checkpoint.log.committed() == 2
    checkpoint.log.skip(1)
    assert (checkpoint.log.committed(), checkpoint.log.entry(2)) == (2, '{"orders": {"0": 3}}')
    assert stored.found() == [(0, 2, None), (1, 1, StepTask("backfill", 7)), (2, 1, None)]
    with pytest.raises(OSError, match="no longer says where step 6 has ended"):
        checkpoint.log.skip(7)
