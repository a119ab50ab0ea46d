"""The postgres sink: rows by Arrow and binary COPY, with rows and step in one transaction.

There are two ways. Both write exactly once, even if the driver or the server is killed at any point:

- Straight: for an append whose columns accept the values as they are. One task copies the batch into the
  table and claims the step in the same transaction.
- Staged: if values must be cast, or if the latest row of each key must be found. The batch's tasks copy in
  parallel into an unlogged staging table. Each attempt marks its rows, so that a task that Spark retries
  duplicates nothing. A row count detects a staging table that a crash has emptied. Then one transaction on
  the driver moves the staged rows into the table and records the step.

Every step goes through the sink's row in `writers`. A written step isn't written again. The row has the
newest runner's epoch, so that an earlier runner is fenced.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import psycopg

from mzplan.connectors.api.connector import SinkConnector
from mzplan.connectors.api.queries import Output, Probe, ResolvedQuery, SinkRun, empties_target
from mzplan.connectors.api.targets import Content, Recorded, different_rows_error, unknown_step, warn_repeated
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.changes import EXISTS
from mzplan.connectors.frames.merges import writing_as
from mzplan.connectors.frames.row_hash import row_hash
from mzplan.connectors.frames.task_code import in_one_task
from mzplan.connectors.postgres.client import connect, hang_up, open_conninfo, remote_options_of
from mzplan.connectors.postgres.identity import check_database, record_target
from mzplan.connectors.postgres.probe import ServerProbe
from mzplan.connectors.postgres.problems import Problem, connect_problem, is_lost, reason, route, state_of
from mzplan.connectors.postgres.remote_options import RemoteOptions
from mzplan.connectors.postgres.sink.content import PostgresContent
from mzplan.connectors.postgres.sink.definition import key_of
from mzplan.connectors.postgres.sink.ledger import shape_of
from mzplan.connectors.postgres.sink.nul import is_nul_error, nul_columns
from mzplan.connectors.postgres.sink.output import FencedError, PostgresOutput, Target
from mzplan.connectors.postgres.sink.privileges import PrivilegeCheck
from mzplan.connectors.postgres.sink.recorded_steps import PostgresRecorded
from mzplan.connectors.postgres.sink.removal import forget
from mzplan.connectors.postgres.sink.staged_output import EmptiedError, StagedOutput
from mzplan.connectors.postgres.sink.staging import (
    Move,
    can_copy_straight,
    position_of,
    staged_columns,
    staging_shape,
)
from mzplan.connectors.postgres.sink.target_probe import check_table, explain, probe_target
from mzplan.connectors.postgres.sink.target_table import create_missing, describe_fix, find_target
from mzplan.connectors.postgres.sink.tasks import REPORT, run_on_driver, staging_task, straight_task
from mzplan.connectors.postgres.sink.writer import Writer, writer_of
from mzplan.connectors.postgres.tables import Connection, Table
from mzplan.connectors.postgres.types import quoted
from mzplan.endpoints.interface import Written
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.columns import CHANGE, POSITION
from mzplan.warehouse.content_hash import HASH

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logging.getLogger("mzplan.connectors")

_DATA_EXCEPTION = "22"  # prefix of its SQLSTATEs
_REFUSED = Problem(
    "MZ059",
    "PostgreSQL refused a batch of {address}",
    "{why}.",
    "correct the table or the sink's select and where; mzplan retries the whole batch.",
    at=", table {table}",
)
_DENIED = Problem(
    "MZ054",
    "{address} is missing a privilege in PostgreSQL",
    "{why}.",
    "grant it to {user} (docs/how-to/grant-privileges.md); mzplan retries the whole batch.",
    at=", table {table}",
)
_NUL = Problem(
    "MZ059",
    "{address} can't write text with U+0000",
    "{row} has that character in column {columns}. PostgreSQL can't store it in text.",
    "remove it in the sink's select: {select}; mzplan retries the whole batch.",
    at=", table {table}",
)
_TOO_NARROW = replace(_REFUSED, fix="{fix}")
_NOT_CREATED = Problem(
    "MZ059",
    "{address} could not create the missing parts of its table",
    "{why}. Nothing was changed.",
    "fix the cause, and the runner retries; or create them by hand: mzplan ddl {address}.",
    at=", table {table}",
)
_NOT_FORGOTTEN = Problem(
    "MZ059",
    "The records of {address} could not be removed from PostgreSQL",
    "{why}. They stay in mzplan's own tables and do no harm.",
    "DELETE FROM {schema}.steps WHERE sink = '{id}'; DELETE FROM {schema}.writers WHERE sink = '{id}';",
)
_EMPTIED = Problem(
    "MZ059",
    "Staged rows of {address} are gone",
    "{stage} has fewer rows than were staged: the server crashed, or another user emptied it.",
    "nothing to do: mzplan retries the batch.",
)


class PostgresSink(SinkConnector):
    """Appends to a table, or keeps the latest row of each key."""

    needs_cleanup = True

    def __init__(self) -> None:
        self._servers = ServerProbe(explain)

    def probe(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Probe:
        """Connect, and check the table, its columns, privileges and (for upsert) its unique index."""
        return self._servers.probe(query, lambda connection: probe_target(connection, query, outputs))

    def prepare(self, query: ResolvedQuery, outputs: Sequence[Output]) -> None:
        """Create the table or its missing columns, if the sink sets `create`. Raises MzplanError MZ059."""
        try:
            with open_conninfo(query) as info, connect(info, statement_timeout_s=30) as connection:
                statements = create_missing(connection, query, outputs)
        except psycopg.Error as problem:
            raise _NOT_CREATED.error(query, why=reason(query, problem), table=query.body["table"]) from None
        if statements:
            log.info("%s: %s", query.address, " ".join(" ".join(statements).split()))

    def route(self, query: ResolvedQuery) -> str:
        return route(query.link)

    def recorded(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Recorded:
        """Return the rows and hashes of the newest 100,000 steps."""
        return PostgresRecorded(query)

    def content(self, query: ResolvedQuery, outputs: Sequence[Output], spark: SparkSession) -> Content:
        """Return the table in one snapshot."""
        return PostgresContent(query, outputs)

    def forget(self, query: ResolvedQuery) -> None:
        """Remove the sink's rows from mzplan's own tables; drop the tables and their schema if empty.

        Raises MzplanError.
        """
        try:
            with open_conninfo(query) as info, connect(info, statement_timeout_s=30) as connection:
                forget(connection, query)
        except psycopg.Error as problem:
            schema, id_ = quoted(query.body["staging_schema"]), query.description.id
            raise _NOT_FORGOTTEN.error(query, why=reason(query, problem), schema=schema, id=id_) from None

    def put_again(self, rows: DataFrame, run: SinkRun, name: str) -> None:
        """Write rows again in one transaction, without recording a step. Existing records of steps stay.

        The transaction locks the sink's row in `writers` and checks its epoch, so that a frozen runner is
        refused.
        """
        batches = _Batches(run)
        try:
            with writing_as(rows.sparkSession, run.checkpoint.log.query_id() or ""):
                batches.write_again(rows)
        except Exception as problem:
            raise batches.explain(problem) from None

    def write(self, rows: DataFrame, run: SinkRun) -> DataStreamWriter:
        batches = _Batches(run)

        def write_batch(batch: DataFrame, step: int) -> None:
            try:
                batches.write(batch, step)
            except BaseException as problem:
                run.fail(batches.explain(problem))
                raise

        if run.query.body["mode"] != "upsert":
            # Drop it before foreachBatch, so that Spark doesn't read it.
            rows = rows.drop(POSITION)
        return rows.writeStream.foreachBatch(write_batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """The properties of the target that one run of a query needs, looked up at its first batch."""

    writer: Writer
    move: Move
    straight: bool
    shape: str


class _Batches:
    """Writes the batches of one run, one after the other."""

    def __init__(self, run: SinkRun):
        self._run = run
        self._query = run.query
        self._writer = writer_of(run.query, run.epoch)
        self._prepared: _Prepared | None = None
        self._conninfo = ""
        self._connection: Connection | None = None
        run.interrupt(self._hang_up)

    def write(self, batch: DataFrame, step: int) -> None:
        """Write all of a micro-batch and its step, or nothing."""
        with open_conninfo(self._query, self._writer.application) as info, connect(info) as connection:
            self._connection, self._conninfo = connection, info
            prepared = self._prepared or self._prepare(connection, batch, step)
            self._prepared = prepared
            writer = prepared.writer
            writer.check_target(connection, prepared.move.table)
            if _shape(connection, prepared.move.table) != prepared.shape:  # altered since the last batch
                prepared = self._prepared = self._prepare(connection, batch, step)
                writer = prepared.writer
            last = writer.lock(connection, for_update=False)
            if not writer.is_due(last, step) and writer.written(connection, step, last) is None:
                self._run.warn(unknown_step(self._run, step, last))
                return
            rows = batch.withColumn(HASH, row_hash(batch.drop(POSITION)))
            failpoint(Failpoint.SINK_BEFORE_STEP)
            try:
                if prepared.straight:
                    self._write_straight(connection, prepared, rows, step, last)
                else:
                    self._write_staged(connection, prepared, rows, step)
            except Exception as problem:
                if is_nul_error(problem):
                    self._refuse_nul(batch, prepared)
                raise
            failpoint(Failpoint.SINK_WRITTEN)
            if (written := writer.written(connection, step, last=step)) is not None:
                self._run.wrote(step, written.rows)
            writer.expire(connection, step)

    def write_again(self, rows: DataFrame) -> None:
        """Write rows of steps that are already written."""
        with open_conninfo(self._query, self._writer.application) as info, connect(info) as connection:
            self._connection, self._conninfo = connection, info
            next_ = self._run.checkpoint.log.committed() + 1
            prepared = self._prepare(connection, rows, next_, straight=False)
            writer, move = prepared.writer, prepared.move
            writer.check_target(connection, move.table)
            columns = staged_columns(self._run.outputs, move)
            staged = rows.select(*columns, f.lit(0).cast("bigint").alias(HASH))  # unused: no step is recorded
            target = self._target(rows, (writer.schema, writer.stage), staged.columns[:-1])
            task = staging_task(target, 0, None, None, "warn")
            reports = [row.asDict() for row in staged.mapInArrow(task, REPORT).collect()]
            attempts = {report["attempt"]: report["staged"] for report in reports if report["staged"]}
            with connection.transaction():
                writer.lock(connection)
                if not move.move(connection, attempts):
                    raise _EMPTIED.error(self._query, stage=writer.stage_sql)

    def explain(self, problem: BaseException) -> BaseException:
        """Return the problem as an error for people, if it comes from the server or a task."""
        if isinstance(problem, MzplanError):
            return problem
        if is_lost(problem):
            return MzplanError(connect_problem(self._query, problem))
        if isinstance(problem, psycopg.errors.InsufficientPrivilege):
            return self._denied_error(problem)
        if isinstance(problem, psycopg.Error):
            is_value = (state_of(problem) or "").startswith(_DATA_EXCEPTION)
            return self._refused_error(reason(self._query, problem), is_value=is_value)
        _, marked, text = str(problem).partition("mzplan[COPY]: ")
        if not marked:
            return problem
        why = RuntimeError(text.splitlines()[0])
        if any(sign in str(why) for sign in ("connect", "terminat", "closed the connection")):
            return MzplanError(connect_problem(self._query, why))
        if "permission denied" in str(why):
            return self._denied_error(why)
        return self._refused_error(reason(self._query, why), is_value=" (column " in text)

    def _refuse_nul(self, batch: DataFrame, prepared: _Prepared) -> None:
        """Raise MzplanError MZ059 that names the first row of a batch with U+0000, if there is one."""
        written = list(zip(self._run.outputs, prepared.move.targets, strict=True))
        names, place = nul_columns(batch, written)
        if names:
            select = ", ".join(f"replace({name}, chr(0), '') AS {name}" for name in names)
            row = f"the row of {place}" if place else "a row"
            table = self._query.body["table"]
            raise _NUL.error(self._query, row=row, columns=", ".join(names), select=select, table=table)

    def _denied_error(self, problem: Exception) -> MzplanError:
        """Return an error with all missing privileges and the statements that grant them.

        The check is repeated, because others may have created objects since the probe. If no privilege is
        missing that mzplan checks, the error has the server's message.
        """
        query = self._query
        with (
            suppress(psycopg.Error, MzplanError, OSError),
            open_conninfo(query) as info,
            connect(info, statement_timeout_s=30) as connection,
        ):
            table = find_target(connection, query)
            check = PrivilegeCheck(connection, query)
            if (missing := check.problem(table, self._run.outputs, key_of(query))) is not None:
                return MzplanError(missing)
        return _DENIED.error(query, why=reason(query, problem), table=query.body["table"])

    def _refused_error(self, why: str, *, is_value: bool = False) -> MzplanError:
        """Return MZ059. With `is_value`, a value doesn't fit; PostgreSQL doesn't always name its column."""
        problem, fix = _REFUSED, ""
        if is_value and self._prepared is not None:
            table, targets = self._prepared.move.table, self._prepared.move.targets
            written = list(zip(self._run.outputs, targets, strict=True))
            suspects = [pair for pair in written if pair[1].shown in why or f"(column {pair[1].name})" in why]
            if suspects:
                mismatches = (
                    f"its column {target.name} is {target.shown}, and the sink writes {output.type}"
                    for output, target in suspects
                )
                why = f"{why}; {'; '.join(mismatches)}"
                problem, fix = _TOO_NARROW, describe_fix(table, [output for output, _ in suspects], {})
        return problem.error(self._query, why=why, fix=fix, table=self._query.body["table"])

    def _hang_up(self) -> None:
        """End a wait for the server (for a lock, or a frozen server), from another thread."""
        if self._connection is not None:
            hang_up(self._connection)

    def _prepare(
        self, connection: Connection, batch: DataFrame, step: int, *, straight: bool = True
    ) -> _Prepared:
        """Check the target and register the writer. `straight`: copy without staging if possible."""
        run = self._run
        table = find_target(connection, self._query)
        shape_before = _shape(connection, table) if table is not None else ""
        errors = [d for d in check_table(self._query, table, run.outputs) if d.severity == "error"]
        if errors or table is None:
            raise MzplanError(errors)
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        writer = replace(self._writer, query_id=query_id or "")
        move = self._plan_move(writer, table, batch)
        straight = straight and can_copy_straight(table, run.outputs, move.targets, move.keys)
        shape = None if straight else staging_shape(run.outputs, move.targets, move.position)
        resume_step = step if check_database(connection, self._query) else None
        writer.register(connection, shape, table if empties_target(self._query) else None, resume_step)
        record_target(connection, run.checkpoint)
        return _Prepared(writer=writer, move=move, straight=straight, shape=shape_before)

    def _plan_move(self, writer: Writer, table: Table, batch: DataFrame) -> Move:
        keys = key_of(self._query)
        targets = (table.column(output.name) for output in self._run.outputs)
        key_columns = (table.column(key) for key in keys)
        return Move(
            stage=writer.stage_sql,
            table=table,
            targets=tuple(target for target in targets if target is not None),
            keys=tuple(key for key in key_columns if key is not None),
            position=position_of(batch) if keys else (),
            exists_field=EXISTS if CHANGE in batch.columns else None,
        )

    # ── straight into the table

    def _write_straight(
        self, connection: Connection, prepared: _Prepared, rows: DataFrame, step: int, last: int
    ) -> None:
        table = prepared.move.table
        output = PostgresOutput(
            replace(
                self._target(
                    rows, (table.schema, table.name), [target.name for target in prepared.move.targets]
                ),
                shape=(shape_of(table.oid), prepared.shape),
            ),
            prepared.writer.ledger,
            compare=self._query.body["compare"],
            sources=self._run.covers(step),
        )
        task = straight_task(output, step)
        try:
            (report,) = (row.asDict() for row in in_one_task(rows).mapInArrow(task, REPORT).collect())
        except Exception:
            # The task may have committed, and then failed to report it.
            if step == last or prepared.writer.lock(connection, for_update=False) != step:
                raise
            return
        if report["outcome"] == "fenced":
            prepared.writer.lock(connection, for_update=False)
            raise self._refused_error(report["detail"])
        self._report([report])

    def _report(self, reports: Sequence[Mapping[str, Any]]) -> None:
        """Pass on the tasks' reports. Raises MzplanError MZ088 if rows differ from the written rows."""
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

    def _write_staged(self, connection: Connection, prepared: _Prepared, rows: DataFrame, step: int) -> None:
        writer, move = prepared.writer, prepared.move
        staged = rows.select(*staged_columns(self._run.outputs, move), HASH)
        output = StagedOutput(
            connection,
            writer,
            move,
            self._target(rows, (writer.schema, writer.stage), staged.columns[:-1]),
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
            raise self._refused_error(str(problem)) from None

    def _remote_options(self, rows: DataFrame) -> RemoteOptions | None:
        """Return the options for tasks on other machines. Local tasks use this process's tunnel and files."""
        if str(rows.sparkSession.sparkContext.master).startswith("local"):
            return None
        return remote_options_of(self._query.link, self._query.directory)


def _shape(connection: Connection, table: Table) -> str:
    row = connection.execute(shape_of(table.oid).encode()).fetchone()
    return str(row[0]) if row else ""
