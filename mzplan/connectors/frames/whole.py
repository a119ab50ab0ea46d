"""All rows of a step in one task, which knows whether all have come.

Spark ends the input of a task's Python in the same way whether there are no more rows, a file could not be
read, the task was cancelled, or its executor was killed: what has come until then looks like all there is. A
task that commits a step itself would commit a part of it. So behind the last row comes one without a hash.

This module is sent to the executors whole (see task_code).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from mzplan.warehouse.content_hash import HASH

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame


class CutShortError(Exception):
    """Not all rows of a step have come. Why, Spark knows: it reports that instead of this."""


def in_one_task(rows: DataFrame) -> DataFrame:
    """The rows, which have HASH, in one partition, and behind the last one the end: a row of NULLs."""
    from pyspark.sql import functions as f

    end = [f.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema.fields]
    return rows.union(rows.sparkSession.range(0, 1, 1, 1).select(*end)).coalesce(1)


def until_end(batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
    """The batches without the end. Raises CutShortError where it has not come."""
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
        raise CutShortError("not all rows of the step have come")
