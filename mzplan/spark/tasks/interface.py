"""What a kind of tasks implements, and what it may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import Output, ResolvedQuery, SinkRun
from mzplan.connectors.catalogue import Connectors
from mzplan.model.tasks import Task
from mzplan.schema.description import Description
from mzplan.warehouse.checkpoints import Checkpoint, TaskRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskContext:
    """What the tasks of one query may use. The query doesn't run meanwhile.

    - `spark`: a session of its own, because settings and temporary views of others would interfere.
    - `collection`: the path or URI of the collection that the query writes, if it does.
    - `resolve`: resolves another description of the same query.
    - `sink_run`: makes what a sink needs to write these columns.
    - `leave_out`: counts malformed records that are skipped or kept aside.
    """

    spark: SparkSession
    connectors: Connectors
    query: ResolvedQuery
    checkpoint: Checkpoint
    warehouse: str
    collection: str
    resolve: Callable[[Description], ResolvedQuery]
    sink_run: Callable[[tuple[Output, ...]], SinkRun]
    leave_out: Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKind:
    """What a kind of tasks does. Each function raises MzplanError, OSError, and whatever Spark raises.

    - `do`: do a task, and record that it is done. Every step of the checkpoint is finished. Killed anywhere,
      it is called again, and must not write a row twice.
    - `settle`: complete a step that a killed runner has left, once its rows are in the collection.
    - `check`: refuse arguments that Spark doesn't accept, before anything is stopped. Reads nothing.
    """

    do: Callable[[TaskContext, Task], None]
    settle: Callable[[TaskContext, TaskRecord], None] = lambda context, record: None
    check: Callable[[SparkSession, ResolvedQuery, Task], None] = lambda spark, query, task: None
