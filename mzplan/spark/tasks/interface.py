"""The interface of a kind of tasks, and the context of a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import Output, ResolvedQuery, SinkRun
from mzplan.connectors.catalogue import Connectors
from mzplan.model.tasks import Task
from mzplan.schema.description import Description
from mzplan.spark.tasks.progress import TasksUnderWay
from mzplan.warehouse.checkpoints import Checkpoint, TaskRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """The context of one query's tasks. The query doesn't run meanwhile.

    `spark`: a separate session, so that other settings and temporary views can't interfere.
    `collection`: the path or URI of the collection that the query writes, if it writes one.
    `resolve`: resolves another description of the same query.
    `sink_run`: returns the SinkRun for writing these columns.
    `count_malformed`: counts malformed records that are skipped or stored as dead letters.
    `under_way`: shows how far the tasks are.
    """

    spark: SparkSession
    connectors: Connectors
    query: ResolvedQuery
    checkpoint: Checkpoint
    warehouse: str
    collection: str
    resolve: Callable[[Description], ResolvedQuery]
    sink_run: Callable[[tuple[Output, ...]], SinkRun]
    count_malformed: Callable[[int], None]
    under_way: TasksUnderWay

    def note(self, text: str) -> None:
        """Set what the running task does now, for `status`."""
        self.under_way.note(self.query.address, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKind:
    """The functions of a kind of tasks. Each raises MzplanError, OSError, and Spark's errors.

    `do`: does a task and records that it is done. Every step of the checkpoint is finished before. If the
    runner is killed, the next start calls `do` again, which must not write a row twice.
    `settle`: completes the step of a killed runner, once the step's rows are in the collection.
    `check`: refuses arguments that Spark doesn't accept, before anything is stopped. Reads nothing.
    """

    do: Callable[[TaskContext, Task], None]
    settle: Callable[[TaskContext, TaskRecord], None] = lambda context, record: None
    check: Callable[[SparkSession, ResolvedQuery, Task], None] = lambda spark, query, task: None
