"""Writes the batches of a postgres sink. PostgresSink explains the two ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.queries import SinkRun, empties_target
from mzplan.connectors.api.targets import different_rows_error, unknown_step, warn_repeated
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.merges import EXISTS
from mzplan.connectors.frames.row_hash import row_hash
from mzplan.connectors.frames.task_code import in_one_task
from mzplan.connectors.postgres.client import connect, hang_up, open_conninfo, remote_options_of
from mzplan.connectors.postgres.definition import key_of
from mzplan.connectors.postgres.identity import check_database, record_target
from mzplan.connectors.postgres.problems import Problem
from mzplan.connectors.postgres.remote_options import RemoteOptions
from mzplan.connectors.postgres.sink.history import HistoryMove
from mzplan.connectors.postgres.sink.output import FencedError, PostgresOutput, Target, shape_of
from mzplan.connectors.postgres.sink.refusals import REFUSED, explain_batch_error, unstorable_text_error
from mzplan.connectors.postgres.sink.staged_output import EmptiedError, StagedOutput
from mzplan.connectors.postgres.sink.staging import (
    Move,
    can_copy_straight,
    position_of,
    staged_columns,
    staging_shape,
)
from mzplan.connectors.postgres.sink.target_probe import usable_table
from mzplan.connectors.postgres.sink.tasks import REPORT, run_on_driver, staging_task, straight_task
from mzplan.connectors.postgres.sink.writer import Writer, writer_of
from mzplan.connectors.postgres.tables import Connection, Table, fetch_row
from mzplan.endpoints.interface import Written
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.columns import CHANGE, POSITION
from mzplan.schema.target_writes import keeps_history, writes_difference
from mzplan.warehouse.rows.content_hash import HASH

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_EMPTIED = Problem(
    "MZ059",
    "Staged rows of {address} are gone",
    "{stage} has fewer rows than were staged: the server crashed, or another user emptied it.",
    "nothing to do: mzplan retries the batch.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setup:
    """How a run writes to its target, determined at its first batch.

    `straight`: copy into the table itself, without staging.
    `shape`: the table's columns (see `shape_of`), to detect an ALTER TABLE.
    `encoding`: the database's.
    """

    writer: Writer
    move: Move
    straight: bool
    shape: str
    encoding: str


class Batches:
    """Writes the batches of one run, one after the other."""

    def __init__(self, run: SinkRun):
        self._run = run
        self._query = run.query
        self._writer = writer_of(run.query, run.epoch)
        self._setup: _Setup | None = None
        self._conninfo = ""
        self._connection: Connection | None = None
        run.interrupt(self._hang_up)

    def write(self, batch: DataFrame, step: int) -> None:
        """Write all of a micro-batch and its step, or nothing."""
        with open_conninfo(self._query, self._writer.application) as info, connect(info) as connection:
            self._connection, self._conninfo = connection, info
            setup = self._setup or self._set_up(connection, batch, step)
            self._setup = setup
            writer = setup.writer
            writer.check_target(connection, setup.move.table)
            has_changes = setup.move.exists_field is not None
            is_altered = _shape(connection, setup.move.table) != setup.shape
            if is_altered or has_changes != (CHANGE in batch.columns):  # since the last batch
                setup = self._setup = self._set_up(connection, batch, step)
                writer = setup.writer
            last = writer.lock(connection, for_update=False)
            if not writer.is_due(last, step) and writer.written(connection, step, last) is None:
                self._run.warn(unknown_step(self._run, step, last))
                return
            rows = batch.withColumn(HASH, row_hash(batch.drop(POSITION)))
            failpoint(Failpoint.SINK_BEFORE_STEP)
            try:
                if setup.straight:
                    self._write_straight(connection, setup, rows, step, last)
                else:
                    self._write_staged(connection, setup, rows, step)
            except Exception as problem:
                raise self._text_error(setup, batch, problem) or problem from None
            failpoint(Failpoint.SINK_WRITTEN)
            if (written := writer.written(connection, step, last=step)) is not None:
                self._run.wrote(step, written.rows)
            writer.expire(connection, step)

    def write_again(self, rows: DataFrame) -> None:
        """Write rows of steps that are already written."""
        with open_conninfo(self._query, self._writer.application) as info, connect(info) as connection:
            self._connection, self._conninfo = connection, info
            next_ = self._run.checkpoint.log.committed() + 1
            setup = self._set_up(connection, rows, next_, straight=False)
            writer, move = setup.writer, setup.move
            writer.check_target(connection, move.table)
            columns = staged_columns(self._run.outputs, move)
            staged = rows.select(*columns, f.lit(0).cast("bigint").alias(HASH))  # unused: no step is recorded
            target = self._target(rows, (writer.ledger.schema, writer.stage), staged.columns[:-1])
            task = staging_task(target, 0, None, None, "warn")
            try:
                reports = [row.asDict() for row in staged.mapInArrow(task, REPORT).collect()]
                attempts = {report["attempt"]: report["staged"] for report in reports if report["staged"]}
                with connection.transaction():
                    writer.lock(connection)
                    if not move.move(connection, attempts):
                        raise _EMPTIED.error(self._query, stage=writer.stage_sql)
            except Exception as problem:
                raise self._text_error(setup, rows, problem) or problem from None

    def explain(self, problem: BaseException) -> BaseException:
        """Return the problem as an error for people, if it comes from the server or a task."""
        move = self._setup.move if self._setup is not None else None
        return explain_batch_error(self._query, self._run.outputs, move, problem)

    def _text_error(self, setup: _Setup, batch: DataFrame, problem: Exception) -> MzplanError | None:
        """Return an error with the row and column of the text that the database refused; None if none."""
        query, outputs = self._query, self._run.outputs
        return unstorable_text_error(query, outputs, setup.move, batch, problem, setup.encoding)

    def _hang_up(self) -> None:
        """Interrupt a wait for the server, from another thread."""
        if self._connection is not None:
            hang_up(self._connection)

    def _set_up(
        self, connection: Connection, batch: DataFrame, step: int, *, straight: bool = True
    ) -> _Setup:
        """Check the target and register the writer. `straight`: copy without staging, if possible."""
        run = self._run
        table = usable_table(connection, self._query, run.outputs)
        shape_before = _shape(connection, table)
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        writer = writer_of(self._query, run.epoch, query_id or "")
        move = self._plan_move(writer, table, batch)
        straight = straight and can_copy_straight(table, run.outputs, move.targets, move.keys)
        shape = None if straight else staging_shape(run.outputs, move.targets, move.position)
        resume_step = step if check_database(connection, self._query) else None
        writer.register(connection, shape, table if empties_target(self._query) else None, resume_step)
        record_target(connection, run.checkpoint)
        encoding = connection.info.parameter_status("server_encoding") or ""
        return _Setup(writer=writer, move=move, straight=straight, shape=shape_before, encoding=encoding)

    def _plan_move(self, writer: Writer, table: Table, batch: DataFrame) -> Move:
        keys = key_of(self._query)
        targets = (table.column(output.name) for output in self._run.outputs)
        key_columns = (table.column(key) for key in keys)
        kind: Callable[..., Move] = Move
        if keeps_history(self._query.body):
            kind = partial(HistoryMove, since=table.column(self._query.body.get("valid_from", "")))
        return kind(
            stage=writer.stage_sql,
            table=table,
            targets=tuple(target for target in targets if target is not None),
            keys=tuple(key for key in key_columns if key is not None),
            position=position_of(batch) if keys else (),
            exists_field=EXISTS if CHANGE in batch.columns else None,
        )

    # ── straight into the table

    def _write_straight(
        self, connection: Connection, setup: _Setup, rows: DataFrame, step: int, last: int
    ) -> None:
        table = setup.move.table
        output = PostgresOutput(
            replace(
                self._target(
                    rows, (table.schema, table.name), [target.name for target in setup.move.targets]
                ),
                shape=(shape_of(table.oid), setup.shape),
            ),
            setup.writer.ledger,
            compare=self._query.body["compare"],
            sources=self._run.covers(step),
        )
        task = straight_task(output, step)
        try:
            (report,) = (row.asDict() for row in in_one_task(rows).mapInArrow(task, REPORT).collect())
        except Exception:
            # The task may have committed, and failed only when it reported that.
            if step == last or setup.writer.lock(connection, for_update=False) != step:
                raise
            return
        if report["outcome"] == "fenced":
            setup.writer.lock(connection, for_update=False)
            raise REFUSED.error(self._query, why=report["detail"], table=self._query.body["table"])
        self._report([report])

    def _report(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Pass on the tasks' warnings. Raises MzplanError MZ088 if rows differ from the written rows."""
        for report in reports:
            if report["outcome"] == "differs":
                raise different_rows_error(self._query.address, report["detail"])
            warn_repeated(self._run, report["warnings"])

    def _target(self, rows: DataFrame, table: tuple[str, str], columns: Sequence[str]) -> Target:
        return Target(
            conninfo=self._conninfo,
            table=table,
            columns=tuple(columns),
            secret=self._query.link.body.get("password"),
            remote_options=self._remote_options(rows),
        )

    # ── through staging

    def _write_staged(self, connection: Connection, setup: _Setup, rows: DataFrame, step: int) -> None:
        replaces = step == 0 and writes_difference(self._query.description)
        writer, move = setup.writer, replace(setup.move, replaces=replaces)
        staged = rows.select(*staged_columns(self._run.outputs, move), HASH)
        output = StagedOutput(
            connection,
            writer,
            move,
            self._target(rows, (writer.ledger.schema, writer.stage), staged.columns[:-1]),
            compare=self._query.body["compare"],
            sources=self._run.covers(step),
        )
        output.start_step(step)
        task = output.task()
        rows_of = staged.coalesce(1) if output.repeats else staged
        reports = [row.asDict() for row in rows_of.mapInArrow(task, REPORT).collect()]
        if output.repeats and not reports:
            reports = [run_on_driver(task)]
        self._report(reports)
        output.record_parts(
            (
                report["attempt"],
                report["staged"],
                Written(rows=report["row_count"], digest=report["content_hash"]),
            )
            for report in reports
        )
        try:
            output.finish_step()
        except EmptiedError:
            raise _EMPTIED.error(self._query, stage=writer.stage_sql) from None
        except FencedError as problem:
            raise REFUSED.error(self._query, why=str(problem), table=self._query.body["table"]) from None

    def _remote_options(self, rows: DataFrame) -> RemoteOptions | None:
        """Return the options for tasks on other machines. Local tasks use this process's tunnel and files."""
        if str(rows.sparkSession.sparkContext.master).startswith("local"):
            return None
        return remote_options_of(self._query.link, self._query.directory)


def _shape(connection: Connection, table: Table) -> str:
    return str(fetch_row(connection, shape_of(table.oid))[0])
