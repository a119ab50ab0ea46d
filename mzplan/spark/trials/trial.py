"""Runs one view or sink over rows that are given step by step, with the runner's own functions.

Only the ends differ from a runner: the inputs are files (see inputs.py), and the rows are kept in memory.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mzplan.connectors.frames.merges import latest_rows
from mzplan.connectors.frames.micro_batches import micro_batch
from mzplan.controller.executor import QueryName
from mzplan.endpoints.arrow import arrow_schema
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.times import instant
from mzplan.model.trials import GivenRow, StepOutcome
from mzplan.schema.columns import CHANGE, DELETE, POSITION, Column
from mzplan.schema.description import Description
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.spark import failures
from mzplan.spark.progress import late_rows_of
from mzplan.spark.query import RunningQuery
from mzplan.spark.relational_streams import several_rows_for_one_key
from mzplan.spark.sql.projection import ensure_columns, outputs_of
from mzplan.spark.sql.stream_rules import require_stream
from mzplan.spark.streams import rows_from
from mzplan.spark.trials.bench import TrialBench
from mzplan.spark.trials.expectations import TrialExpectations
from mzplan.spark.trials.inputs import TrialInput, table_of
from mzplan.spark.views import compute_of, is_current_view, is_relational_view, rows_of_view

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

Given = Mapping[str, Sequence[GivenRow]]
"""The rows of one step, by input."""


class Trial(ABC):
    """One query in a temporary folder. Only one thread uses it.

    `number`: tells apart the queries of the trials that run at the same time.
    """

    def __init__(self, bench: TrialBench, description: Description, folder: str, number: int):
        self._bench, self._folder = bench, Path(folder)
        self._description = description
        self._query = bench.resolve(description)
        self._name = QueryName.of(f"trial{number}", description)
        self._inputs = {
            name: TrialInput(
                self._folder / name,
                columns_of(read.type, read.body),
                bench.connectors.position(read),
                keys_of(read.type, read.body),
            )
            for name, read in description.inputs.items()
        }
        self._columns: tuple[Column, ...] = self._query.columns
        self._rows: list[Mapping[str, Any]] = []
        self._rows_after: dict[int, list[Mapping[str, Any]]] = {}
        self._expectations = TrialExpectations(self._query)

    def run(self, steps: Sequence[Given]) -> list[StepOutcome]:
        """Run the query over the rows of each step. Return the outcomes. Raises MzplanError."""
        self._write(steps)
        address = self._description.address
        running = RunningQuery(self._name, "the test's rows")
        with self._bench.session() as session:
            with failures.raised_as("MZ063", f"{address} could not be started", address):
                started = self._start(session, running)
            running.java = started._jsq
            with suppress(Exception):  # the failure is read below, with its code
                started.awaitTermination()
            for name in self._inputs:
                session.catalog.dropTempView(name)
        if running.has_ended() and running.end_failure is not None and running.end_failure.text:
            raise _failed(self._description, running)
        return self._outcomes(running.java, len(steps))

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the rows; of a sink's rows, they are known after the run."""
        return self._columns

    @property
    @abstractmethod
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row; empty if rows are only added."""

    def rows_after(self, step: int) -> pa.Table:
        """Return all rows of the view's collection, or of a sink's target, after a step (from 0)."""
        return table_of(arrow_schema(self._columns), self._rows_after[step])

    @abstractmethod
    def _writer(self, session: SparkSession) -> DataStreamWriter:
        """Return the writer of the query's rows, without the place for them. Raises MzplanError."""

    @abstractmethod
    def _changes_of(self, batch: DataFrame, number: int) -> list[dict[str, Any]]:
        """Return the rows that a micro-batch adds or, with `keys`, its last change of each key."""

    @property
    def _batches_a_step(self) -> int:
        """How many micro-batches a step has. A second one, without rows, closes windows.

        In a runner, Spark adds it when no row arrives.
        """
        return 2 if self._query.body.get("watermarks") else 1

    def _step_of(self, number: int) -> int:
        return number // self._batches_a_step

    def _write(self, steps: Sequence[Given]) -> None:
        for step, given in enumerate(steps):
            number = step * self._batches_a_step
            for name, input_ in self._inputs.items():
                input_.write(number, given.get(name, ()))
                for flush in range(1, self._batches_a_step):
                    input_.write(number + flush, ())

    def _start(self, session: SparkSession, running: RunningQuery) -> StreamingQuery:
        def keep(batch: DataFrame, number: int) -> None:
            with micro_batch(running.fail):
                self._keep(self._changes_of(batch, number))
            self._rows_after[self._step_of(number)] = list(self._rows)

        checkpoint = str(self._folder / "checkpoint")
        writer = self._writer(session).foreachBatch(keep).queryName(str(self._name))
        return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()

    def _keep(self, changes: Sequence[dict[str, Any]]) -> None:
        names = {column.name.lower(): column.name for column in self._columns}  # Spark ignores their case
        by_key = {self._key(row): row for row in self._rows} if self.keys else {}
        for change in changes:
            word = change.pop(CHANGE, None)
            row = {names[name.lower()]: value for name, value in change.items()}
            if not self.keys:
                self._rows.append(row)
            elif word == DELETE:
                by_key.pop(self._key(row), None)
            else:
                by_key[self._key(row)] = row
        self._rows = list(by_key.values()) if self.keys else self._rows

    def _key(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        by_name = {name.lower(): value for name, value in row.items()}
        return tuple(repr(by_name[key.lower()]) for key in self.keys)

    def _outcomes(self, query: Any, steps: int) -> list[StepOutcome]:
        late = [0] * steps
        marks: list[int | None] = [None] * steps
        for progress in query.recentProgress():
            batch = json.loads(progress.json())
            step = self._step_of(int(batch["batchId"]))
            if step < steps:
                late[step] += late_rows_of(batch) or 0
                mark = instant(str((batch.get("eventTime") or {}).get("watermark", "")))
                marks[step] = mark or marks[step]
        return [
            StepOutcome(late_rows=n, watermark=mark, violations=self._expectations.violations_in(step))
            for step, (n, mark) in enumerate(zip(late, marks, strict=True))
        ]


class ViewTrial(Trial):
    """A trial of a view."""

    def __init__(self, bench: TrialBench, description: Description, folder: str, number: int):
        super().__init__(bench, description, folder, number)
        # One partition computes the same rows as several, and needs fewer tasks.
        self._query = replace(self._query, body={**self._query.body, "partitions": 1})
        self._position = bench.connectors.position(description)

    @property
    def keys(self) -> tuple[str, ...]:
        return self._query.keys

    def _writer(self, session: SparkSession) -> DataStreamWriter:
        query, reads = self._query, self._description.reads
        streams = {name: self._inputs[name].stream(session) for name in reads}
        if is_current_view(query):  # a micro-batch computes all rows from the tables
            triggers = [stream.selectExpr("1") for stream in streams.values()]
            return reduce(lambda one, other: one.unionAll(other), triggers).writeStream
        if is_relational_view(query):
            rows = self._computed(session, streams, 0)
            require_stream(rows, query)
        else:
            (stream,) = streams.values()
            rows = rows_from(stream, query)
        ensure_columns(outputs_of(rows), query)
        if self._description.snapshots:
            (stream,) = streams.values()
            return stream.writeStream
        is_update = is_relational_view(query) and bool(query.keys)
        return rows.writeStream.outputMode("update" if is_update else "append")

    def _computed(self, session: SparkSession, streams: Mapping[str, DataFrame], number: int) -> DataFrame:
        """Return the rows of a relational view, with its other inputs as of a micro-batch."""
        others = [name for name in self._description.inputs if name not in streams]
        tables = {name: self._inputs[name].table(session, number) for name in others}
        compute = compute_of(self._bench.connectors, self._query)
        return rows_of_view(session, streams, tables, self._query, self._position, compute)

    def _changes_of_all(self, session: SparkSession, number: int) -> list[dict[str, Any]]:
        """Return all rows of a current view as of a micro-batch, after deletes of the rows that are gone."""
        rows = _values(self._computed(session, {}, number))
        keys = {self._key(row) for row in rows}
        if len(keys) < len(rows):
            raise several_rows_for_one_key(self._query)
        if self._expectations.any:
            changed = [row for row in rows if row not in self._rows]
            frame = session.createDataFrame(table_of(arrow_schema(self._columns), changed))
            self._expectations.checked(frame, self._step_of(number), lambda: self._stored(session, keys))
        return [{**row, CHANGE: DELETE} for row in self._rows if self._key(row) not in keys] + rows

    def _stored(self, session: SparkSession, keys: Collection[tuple[str, ...]] | None = None) -> DataFrame:
        """Return the rows of the view's collection, before the micro-batch that runs.

        `keys`: only the rows with these keys; None for all rows.
        """
        rows = [row for row in self._rows if keys is None or self._key(row) in keys]
        return session.createDataFrame(table_of(arrow_schema(self._columns), rows))

    def _changes_of(self, batch: DataFrame, number: int) -> list[dict[str, Any]]:
        query = self._query
        if is_current_view(query):
            return self._changes_of_all(batch.sparkSession, number)
        if self._description.snapshots:
            (name,) = self._description.reads
            batch = self._computed(batch.sparkSession, {name: batch}, number)
        session = batch.sparkSession
        checked = self._expectations.rows_to_write(
            batch, self._step_of(number), lambda: self._stored(session)
        )
        with checked as rows:
            if not is_relational_view(query):
                return _values(latest_rows(rows, query.keys) if query.keys else rows)
            changes = _values(rows)
        if query.keys and len({self._key(row) for row in changes}) < len(changes):
            raise several_rows_for_one_key(query)
        return changes


class SinkTrial(Trial):
    """A trial of a sink's `select` and `where`. Nothing is written to its target.

    A sink that upserts, or reads a keyed collection, keeps the last row of each key.
    """

    @property
    def keys(self) -> tuple[str, ...]:
        body = self._query.body
        own = tuple(body.get("key") or ()) if body.get("mode", "append") != "append" else ()
        return own or self._query.keys

    def _writer(self, session: SparkSession) -> DataStreamWriter:
        (stream,) = (self._inputs[name].stream(session) for name in self._description.reads)
        rows = rows_from(stream, self._query)
        self._columns = tuple(Column(output.name, output.type or "") for output in outputs_of(rows))
        return rows.writeStream

    def _changes_of(self, batch: DataFrame, number: int) -> list[dict[str, Any]]:
        return _values(latest_rows(batch, self.keys) if self.keys else batch)


def _values(rows: DataFrame) -> list[dict[str, Any]]:
    """Return rows as Python values, without mzplan's `_position`. Runs the query once."""
    values: list[dict[str, Any]] = rows.drop(POSITION).toArrow().to_pylist()
    return values


def _failed(description: Description, running: RunningQuery) -> MzplanError:
    """Return the error of a query that has failed in a step."""
    failure, address = running.end_failure, description.address
    assert failure is not None
    if isinstance(running.error, MzplanError):
        return running.error
    text, _, fix = failure.text.partition(". Fix: ")
    return error(failure.code or failures.OTHER, f"{address} failed", text, fix, address=address)
