"""Code for the tasks that write a step on executors, where mzplan is installed (docs/deploy.md).

A task that writes a step by itself must know whether all its rows have arrived. A task's input in Python ends
in the same way after the last row, and after an unreadable file, a cancelled task or a killed executor. In
these three cases, the task would commit only a part of the step. So a row without a hash follows the last
row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mzplan.endpoints.arrow import build_array
from mzplan.warehouse.rows.content_hash import HASH

if TYPE_CHECKING:
    from pyarrow import DataType, RecordBatch
    from pyspark.sql import DataFrame


def one_row(values: Mapping[str, Any], types: Mapping[str, DataType]) -> RecordBatch:
    """Return a task's report as a batch of one row; a missing value is NULL."""
    import pyarrow as pa

    columns = [build_array([values.get(name)], type_) for name, type_ in types.items()]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(list(types.items())))


class CutShortError(Exception):
    """Raised if not all rows of a step have arrived. Spark knows the cause, and reports it instead."""


def in_one_task(rows: DataFrame) -> DataFrame:
    """Return the rows in one partition, followed by a row of NULLs that marks the end.

    `rows` must have the column HASH: `until_end` recognizes the end by its NULL.
    """
    from pyspark.sql import functions as f

    end_row = [f.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema.fields]
    return rows.union(rows.sparkSession.range(0, 1, 1, 1).select(*end_row)).coalesce(1)


def until_end(batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
    """Yield the batches without the end row. Raises CutShortError if that row is missing."""
    has_ended = False
    for batch in batches:
        if not batch.num_rows:
            continue
        if has_ended:
            raise CutShortError("rows came after the end of the step")
        has_ended = not batch.column(batch.schema.names.index(HASH))[-1].is_valid
        rows = batch.slice(0, batch.num_rows - has_ended)
        if rows.num_rows:
            yield rows
    if not has_ended:
        raise CutShortError("not all rows of the step have arrived")
