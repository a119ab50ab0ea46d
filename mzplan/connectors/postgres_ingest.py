"""What runs on an executor: one task's rows, as Arrow, into the staging table by binary COPY.

A closure that uses nothing of this module is sent to the executors whole: they need pyarrow and
adbc-driver-postgresql, but no mzplan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

REPORT = "attempt BIGINT, row_count BIGINT"
"""What a task returns: under which attempt it staged how many rows."""


def ingest(
    conninfo: str, secret: str | None, schema: str, table: str, columns: list[str]
) -> Callable[[Iterable[Any]], Iterable[Any]]:
    """A function for mapInArrow. `columns` are the staging table's, without `_attempt`.

    Each attempt of a task draws a number of its own, and every row it stages carries it: of a task that
    was tried twice, or runs twice, the rows of the attempt that Spark reported are told from the others.
    """

    def stage(arriving: Iterable[Any]) -> Iterator[Any]:
        import secrets

        import pyarrow as pa

        batches = iter(arriving)
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        attempt = secrets.randbits(63)
        staged = [0]
        names = ["_attempt", *columns]
        schema_ = pa.schema(
            [
                pa.field(name, type_)
                for name, type_ in zip(names, [pa.int64(), *first.schema.types], strict=True)
            ]
        )

        def rows() -> Iterator[Any]:
            batch: Any = first
            while batch is not None:
                staged[0] += batch.num_rows
                marks = pa.repeat(pa.scalar(attempt, pa.int64()), batch.num_rows)
                yield pa.RecordBatch.from_arrays([marks, *batch.columns], schema=schema_)
                batch = next(batches, None)

        # What goes wrong is told in one line of our own: a driver's message may repeat what it was given.
        failure = ""
        try:
            _copy(conninfo, schema, table, pa.RecordBatchReader.from_batches(schema_, rows()))
        except Exception as problem:
            text = str(problem)
            text = text.replace(secret, "***") if secret else text
            failure = f"mzplan[COPY]: {' '.join(text.split())}"
        if failure:
            raise RuntimeError(failure)
        yield pa.RecordBatch.from_pydict(
            {"attempt": pa.array([attempt], pa.int64()), "row_count": pa.array([staged[0]], pa.int64())}
        )

    def _copy(conninfo: str, schema: str, table: str, reader: Any) -> None:
        from adbc_driver_postgresql import dbapi

        with dbapi.connect(conninfo) as connection, connection.cursor() as cursor:
            cursor.adbc_ingest(table, reader, mode="append", db_schema_name=schema)
            connection.commit()

    return stage
