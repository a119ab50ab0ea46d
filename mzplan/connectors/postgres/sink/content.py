"""Reads the rows of a sink's table, for `mzplan verify SINK --content`.

Spark tasks read the table, one range of pages at a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import psycopg

from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.connectors.api.targets import PLACE, Content, incomparable
from mzplan.connectors.frames.types import quoted as spark_quoted
from mzplan.connectors.postgres import identity
from mzplan.connectors.postgres.client import connect, open_conninfo
from mzplan.connectors.postgres.definition import key_of, shown_table
from mzplan.connectors.postgres.problems import Problem, connect_problem, is_lost, reason
from mzplan.connectors.postgres.sink.comparison import Form, form_of, sink_value, sql_text, table_value
from mzplan.connectors.postgres.sink.target_probe import usable_table
from mzplan.connectors.postgres.tables import Connection, fetch_row
from mzplan.connectors.postgres.types import TargetColumn, quoted
from mzplan.endpoints.arrow import build_array
from mzplan.host.postgres_session import session_statement
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.columns import POSITION
from mzplan.schema.target_writes import IS_CURRENT, keeps_history

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame, SparkSession

_ROWS, _BYTES = 10_000, 32 << 20  # per batch; the last row may exceed the bytes

QueryReader = Callable[[Iterable["RecordBatch"]], Iterator["RecordBatch"]]


def make_query_reader(
    conninfo: str, session: list[str], queries: list[str], count: int, counter: Any, secret: str | None
) -> QueryReader:
    """Return a function for mapInArrow that runs queries and returns their results.

    Its input is indexes of `queries`. Its output is `count` text columns named `c0`, `c1`, ….

    `session`: the statements before each query, which also begin its transaction.
    `counter`: Spark's accumulator for the number of rows.
    """

    def read(batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _results(queries[number])

    def _results(query: str) -> Iterator[RecordBatch]:
        import psycopg

        failure = ""
        try:
            with psycopg.connect(conninfo, autocommit=True) as connection:
                for statement in session:
                    connection.execute(statement.encode())
                with connection.cursor() as cursor, cursor.copy(f"COPY ({query}) TO STDOUT".encode()) as copy:
                    rows: list[Any] = []
                    size = 0
                    for row in copy.rows():
                        rows.append(row)
                        size += sum(map(len, filter(None, row)))
                        if len(rows) == _ROWS or size >= _BYTES:
                            yield _batch(rows)
                            rows, size = [], 0
                    yield _batch(rows)
        except psycopg.Error as problem:
            text = str(problem)
            failure = " ".join((text.replace(secret, "***") if secret else text).split())
        if failure:  # outside `except`, so that the traceback doesn't show the driver's message and its input
            raise RuntimeError(f"mzplan[COPY]: {failure}")

    def _batch(rows: list[Any]) -> RecordBatch:
        import pyarrow as pa

        counter.add(len(rows))
        columns = list(zip(*rows, strict=True)) if rows else [()] * count
        arrays = [build_array(column, pa.string()) for column in columns]
        return pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(count)])

    return read


_PAGES = 8192  # per task: 64 MiB
_TASKS = 1000
_RANGES_FROM = 140000  # earlier versions can't read a range of pages without the others
_BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_SIZE = """
SELECT (pg_relation_size(oid) / current_setting('block_size')::int)::bigint, relkind::text
FROM pg_class WHERE oid = %s
"""
_UNREADABLE = Problem(
    "MZ054",
    "The rows of {address} can't be read",
    "{why}.",
    "GRANT SELECT ON {table} TO {role};",
    at=", table {table}",
)


class PostgresContent(Content):
    """The table in one database snapshot, which also has the sink's last step."""

    def __init__(self, query: ResolvedQuery, outputs: Sequence[Output]):
        self._query = query
        self.keys = key_of(query)
        self._counter: Any = None
        with contextlib.ExitStack() as opened:
            try:
                self._info = opened.enter_context(open_conninfo(query, "mzplan verify"))
                connection = opened.enter_context(connect(self._info))
                self._open(connection, outputs)
            except psycopg.Error as problem:
                raise self._explain(problem) from None
            self._opened = opened.pop_all()

    def _open(self, connection: Connection, outputs: Sequence[Output]) -> None:
        query = self._query
        connection.execute("SET idle_in_transaction_session_timeout = 0")
        connection.execute(_BEGIN)
        (self._snapshot,) = fetch_row(connection, "SELECT pg_export_snapshot()")
        table = self._table = usable_table(connection, query, outputs)
        self.frontier = self._last_step(connection)
        self._columns: dict[str, tuple[TargetColumn, Form, str]] = {}
        unseen = []
        for output in outputs:
            target = table.column(output.name)
            form = form_of(target) if target is not None else None
            if target is not None and form is not None:
                self._columns[output.name] = target, form, output.type or "STRING"
            elif target is not None:
                unseen.append(f"{target.name} ({target.shown})")
        if missing_keys := [
            key for key in self.keys if key.lower() not in {n.lower() for n in self._columns}
        ]:
            raise incomparable(query, f"Its key {', '.join(missing_keys)} has a type that can't be compared.")
        self.not_compared = [f"columns of these types: {', '.join(unseen)}"] if unseen else []
        self._queries = self._ranges(connection)

    def _last_step(self, connection: Connection) -> int:
        steps = identity.written_steps(connection, self._query)
        if steps is None:
            raise incomparable(
                self._query,
                f"{quoted(self._query.body['staging_schema'])}.writers has no row for it, so its last "
                "step is unknown. It hasn't run yet, or its record was removed.",
            )
        return steps.step

    def _ranges(self, connection: Connection) -> list[str]:
        """Return the statements that together read the table, each of some pages."""
        table, columns = self._table, self._columns.values()
        values = ", ".join(sql_text(quoted(target.name), target, form) for target, form, _ in columns)
        pages, kind = fetch_row(connection, _SIZE, (table.oid,))
        place = "ctid::text" if kind in ("r", "p") else "NULL"
        # A version that has ended isn't in the collection any more.
        current = f"{quoted(IS_CURRENT)} IS TRUE" if keeps_history(self._query.body) else "true"
        whole = f"SELECT {values}, {place} FROM {table.sql} WHERE {current}"
        if kind != "r" or connection.info.server_version < _RANGES_FROM:
            return [whole]
        step = max(_PAGES, -(-pages // _TASKS))
        # The last range is open-ended, in case there are more pages now. Newer rows aren't in the snapshot.
        starts = list(range(0, max(pages, 1), step))
        return [
            f"{whole} AND ctid >= '({first},0)'"
            + (f" AND ctid < '({first + step},0)'" if first != starts[-1] else "")
            for first in starts
        ]

    def rows(self, spark: SparkSession) -> DataFrame:
        from pyspark.sql import functions as f

        count = len(self._columns) + 1
        self._counter = spark.sparkContext.accumulator(0)
        read = make_query_reader(
            self._info,
            [session_statement(), _BEGIN, f"SET TRANSACTION SNAPSHOT '{self._snapshot}'"],
            self._queries,
            count,
            self._counter,
            self._query.link.body.get("password"),
        )
        ranges = spark.range(0, len(self._queries), 1, len(self._queries))
        texts = ranges.mapInArrow(read, ", ".join(f"c{i} STRING" for i in range(count)))
        values = [
            table_value(f.col(f"c{i}"), form).alias(name)
            for i, (name, (_, form, _)) in enumerate(self._columns.items())
        ]
        return texts.select(*values, f.col(f"c{count - 1}").alias(PLACE))

    def stored_form(self, rows: DataFrame, query: ResolvedQuery) -> DataFrame:
        from pyspark.sql import functions as f

        names = {name.lower(): name for name in rows.columns}
        values = []
        for name, (target, form, type_) in self._columns.items():
            output_name = names.get(name.lower())
            value = (
                f.col(spark_quoted(output_name)) if output_name is not None else f.lit(None).cast("string")
            )
            values.append(sink_value(value, type_, target, form).alias(name))
        return rows.select(*values, POSITION)

    def rows_read(self) -> int:
        return int(self._counter.value) if self._counter is not None else 0

    def close(self) -> None:
        self._opened.close()

    def _explain(self, problem: psycopg.Error) -> MzplanError:
        if is_lost(problem):
            return MzplanError(connect_problem(self._query, problem))
        return _UNREADABLE.error(
            self._query, why=reason(self._query, problem), table=shown_table(self._query)
        )
