"""The Spark task that reads a table of PostgreSQL, one range of pages at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from mzplan.endpoints.arrays import build_array

if TYPE_CHECKING:
    from pyarrow import RecordBatch

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
