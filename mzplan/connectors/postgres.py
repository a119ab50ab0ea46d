"""The postgres sink: rows by Arrow and binary COPY into staging, then rows and step in one transaction.

Exactly once, also across kill -9 of the driver or the server at any point:
- The tasks of a batch COPY in parallel into an unlogged staging table. Each attempt marks its rows, so
  that a task which Spark tried twice doubles nothing; an emptied staging table is noticed by its count.
- Then one transaction on the driver locks the writer's row, moves the staged rows into the table and
  notes the step down. It commits or it does not; a step that was written is not written again.
- A runner that was cut off is fenced: the row holds the epoch of the newest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from mzplan.columns import POSITION
from mzplan.connectors.interface import Output, Probe, ResolvedQuery, SinkRun, empties_target
from mzplan.connectors.postgres_client import connect, connect_problem, conninfo, hang_up, place, said
from mzplan.connectors.postgres_ingest import REPORT, ingest
from mzplan.connectors.postgres_probe import PostgresProbe, check_table
from mzplan.connectors.postgres_target import (
    Connection,
    Table,
    Writer,
    find_table,
    staging_shape,
)
from mzplan.connectors.postgres_types import TargetColumn, quoted, staged_as_json
from mzplan.connectors.spark_types import quoted as _column
from mzplan.model.diagnostics import MzplanError, error

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

# Up to so many staged rows are deleted one by one; emptying the table costs as much as some thousands.
_TRUNCATE_FROM = 5_000
# Sorting a batch by key, for upsert.
_WORK_MEM = "64MB"
_OURS = "_attempt = ANY(%(attempts)s)"


class PostgresSink:
    """Appends to a table, or keeps the latest row of each key."""

    def __init__(self) -> None:
        self._probe = PostgresProbe()

    def probe(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Probe:
        """Connect, and look at the table, its columns, privileges and (upsert) its unique index."""
        return self._probe.probe(query, outputs)

    def write(self, rows: DataFrame, run: SinkRun) -> DataStreamWriter:
        batches = _Batches(run)

        def write_batch(batch: DataFrame, step: int) -> None:
            try:
                batches.write(batch, step)
            except BaseException as problem:
                run.fail(batches.explained(problem))
                raise

        return rows.writeStream.foreachBatch(write_batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prepared:
    """What one run of a query needs to know of its target; looked up at its first batch."""

    writer: Writer
    table: Table
    targets: tuple[TargetColumn, ...]
    position: tuple[tuple[str, str], ...]
    """Fields of `_position`, with the staging column's type: in the order in which they order."""


class _Batches:
    """Writes the batches of one run, one after the other."""

    def __init__(self, run: SinkRun):
        self._run = run
        self._query = run.query
        self._conninfo = conninfo(run.query.link, run.query.directory)
        self._secret: str | None = run.query.link.body.get("password")
        self._upsert = run.query.body["mode"] == "upsert"
        self._prepared: _Prepared | None = None
        self._connection: Connection | None = None
        run.interrupt(self._hang_up)

    def write(self, batch: DataFrame, step: int) -> None:
        """One micro-batch: all of it and its step, or nothing."""
        with connect(self._conninfo) as connection:
            self._connection = connection
            prepared = self._prepared or self._prepare(connection, batch)
            self._prepared = prepared
            last = prepared.writer.lock(connection, for_update=False)
            if not prepared.writer.expect(last, step):
                return
            attempts = self._stage(batch, prepared)
            with connection.transaction():
                last = prepared.writer.lock(connection)
                if prepared.writer.expect(last, step):
                    if attempts:
                        self._move(connection, prepared, attempts)
                    prepared.writer.record(connection, step, sum(attempts.values()))

    def _hang_up(self) -> None:
        """End a wait for the server (a lock, a server that is frozen), from another thread."""
        if self._connection is not None:
            hang_up(self._connection)

    def explained(self, problem: BaseException) -> BaseException:
        """The problem, as a person should read it."""
        if isinstance(problem, MzplanError):
            return problem
        if isinstance(problem, psycopg.OperationalError) and problem.sqlstate is None:
            return MzplanError(connect_problem(self._query.link, problem, self._query.address))
        if isinstance(problem, psycopg.Error):
            return error(
                "MZ059",
                f"PostgreSQL refused a batch of {self._query.address}",
                f"{place(self._query.link)}, table {self._query.body['table']}: "
                f"{said(problem, self._secret)}.",
                "correct the table or the sink's select and where; the batch is tried again from its start.",
                address=self._query.address,
            )
        return problem

    def _prepare(self, connection: Connection, batch: DataFrame) -> _Prepared:
        run, body = self._run, self._query.body
        table = find_table(connection, body["table"])
        problems = check_table(self._query, table, run.outputs)
        errors = [problem for problem in problems if problem.severity == "error"]
        if errors or table is None:
            raise MzplanError(errors)
        targets = [table.column(output.name) for output in run.outputs]
        position = _position_of(batch) if self._upsert else ()
        query_id = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        writer = Writer(
            schema=body["staging_schema"],
            sink=self._query.description.id,
            address=str(self._query.address),
            generation=self._query.description.generation,
            epoch=run.epoch,
            query_id=query_id or "",
        )
        prepared = _Prepared(
            writer=writer,
            table=table,
            targets=tuple(target for target in targets if target is not None),
            position=position,
        )
        shape = staging_shape(run.outputs, prepared.targets, position)
        writer.register(connection, shape, table if empties_target(run) else None)
        return prepared

    def _stage(self, batch: DataFrame, prepared: _Prepared) -> Mapping[int, int]:
        """Copy the batch into staging. How many rows each attempt staged that counts."""
        staged = batch.select(*self._staged(prepared))
        writer = prepared.writer
        task = ingest(self._conninfo, self._secret, writer.schema, writer.stage, staged.columns)
        reports = staged.mapInArrow(task, REPORT).collect()
        return {report.attempt: report.row_count for report in reports}

    def _staged(self, prepared: _Prepared) -> list[Expression]:
        from pyspark.sql import functions as f

        staged: list[Expression] = []
        for i, (output, target) in enumerate(zip(self._run.outputs, prepared.targets, strict=True)):
            value = f.col(_column(output.name))
            if staged_as_json(output.type or "STRING", target):
                value = f.to_json(value, {"ignoreNullFields": "false"})
            staged.append(value.alias(f"c{i}"))
        for i, (name, _) in enumerate(prepared.position):
            staged.append(f.col(f"{POSITION}.{_column(name)}").alias(f"p{i}"))
        return staged

    def _move(self, connection: Connection, prepared: _Prepared, attempts: Mapping[int, int]) -> None:
        """From staging into the table, and staging emptied. Raises MzplanError if staged rows are missing."""
        stage = prepared.writer.stage_sql
        expected = sum(attempts.values())
        ours = {"attempts": list(attempts)}
        if self._upsert:
            connection.execute(f"SET LOCAL work_mem = '{_WORK_MEM}'")
            counted = connection.execute(
                f"SELECT count(*) FROM {stage} WHERE _attempt = ANY(%(attempts)s)", ours
            )
            found = counted.fetchone()
            moved = int(found[0]) if found else 0
            connection.execute(self._upsert_statement(prepared), ours)
        else:
            moved = connection.execute(self._append_statement(prepared), ours).rowcount
        if moved != expected:
            raise error(
                "MZ059",
                f"Staged rows of {self._query.address} are gone",
                f"{expected} rows were staged in {stage}, and {moved} are there: the server crashed "
                "meanwhile (the table is unlogged), or somebody emptied it. Nothing was written.",
                "nothing to do: the batch is tried again.",
                address=self._query.address,
            )
        _empty(connection, stage, expected)

    def _append_statement(self, prepared: _Prepared) -> str:
        return (
            f"INSERT INTO {prepared.table.sql} ({_listed(prepared.targets)}) "
            f"SELECT {_casts(prepared.targets)} FROM {prepared.writer.stage_sql} WHERE {_OURS}"
        )

    def _upsert_statement(self, prepared: _Prepared) -> str:
        """The latest row of each key, by position. Keys are compared as the table's type, hence the inner
        SELECT: two texts may be one uuid."""
        keys = [quoted(key.name) for key in self._keys(prepared)]
        columns = [quoted(target.name) for target in prepared.targets]
        others = [column for column in columns if column not in keys]
        # Text in byte order, as Spark compares it, whatever the database's collation.
        order = ", ".join(
            f'p{i} COLLATE "C" DESC NULLS LAST' if type_ == "text" else f"p{i} DESC NULLS LAST"
            for i, (_, type_) in enumerate(prepared.position)
        )
        positions = "".join(f", p{i}" for i in range(len(prepared.position)))
        named = ", ".join(
            f"{cast} AS {column}" for cast, column in zip(_cast_list(prepared.targets), columns, strict=True)
        )
        updates = ", ".join(f"{column} = EXCLUDED.{column}" for column in others)
        return (
            f"INSERT INTO {prepared.table.sql} ({', '.join(columns)}) "
            f"SELECT DISTINCT ON ({', '.join(keys)}) {', '.join(columns)} FROM "
            f"(SELECT {named}{positions} FROM {prepared.writer.stage_sql} WHERE {_OURS}) AS s "
            f"ORDER BY {', '.join(keys)}, {order} "
            f"ON CONFLICT ({', '.join(keys)}) DO {'UPDATE SET ' + updates if updates else 'NOTHING'}"
        )

    def _keys(self, prepared: _Prepared) -> list[TargetColumn]:
        found = [prepared.table.column(key) for key in self._query.body["key"]]
        return [key for key in found if key is not None]


def _position_of(batch: DataFrame) -> tuple[tuple[str, str], ...]:
    types = {
        "string": "text",
        "int": "integer",
        "bigint": "bigint",
        "timestamp": "timestamp with time zone",
    }
    struct: Any = batch.schema[POSITION].dataType
    return tuple((field.name, types[field.dataType.simpleString()]) for field in struct.fields)


def _empty(connection: Connection, stage: str, rows: int) -> None:
    """Empty the staging table, of what killed attempts left there, too."""
    if rows < _TRUNCATE_FROM:
        connection.execute(f"DELETE FROM {stage}")
        return
    try:
        with connection.transaction():  # a savepoint: the rows stay moved, whatever happens here
            connection.execute(f"LOCK TABLE {stage} IN ACCESS EXCLUSIVE MODE NOWAIT")
            connection.execute(f"TRUNCATE {stage}")
    except psycopg.errors.LockNotAvailable:  # an attempt that nobody waits for still copies into it
        connection.execute(f"DELETE FROM {stage}")


def _casts(targets: Sequence[TargetColumn]) -> str:
    return ", ".join(_cast_list(targets))


def _cast_list(targets: Sequence[TargetColumn]) -> list[str]:
    # To the type without its length: the length is left to the assignment, which fails for a text that is
    # too long, where a cast would cut it.
    return [f"c{i}::{quoted(target.type_schema)}.{quoted(target.type)}" for i, target in enumerate(targets)]


def _listed(targets: Sequence[TargetColumn]) -> str:
    return ", ".join(quoted(target.name) for target in targets)
