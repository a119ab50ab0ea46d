"""What tasks on executors need, which have no mzplan: the modules of a task travel with it.

A task that writes a step by itself must know whether all its rows have come. Spark ends the input of a
task's Python in the same way whether there are no more rows, a file could not be read, the task was
cancelled, or its executor was killed: what has come until then looks like all there is, and the task would
commit a part of the step. So behind the last row comes one without a hash.

This module is sent to the executors whole.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mzplan.endpoints.arrays import build
from mzplan.warehouse.content_hash import HASH

if TYPE_CHECKING:
    from pyarrow import DataType, RecordBatch
    from pyspark.sql import DataFrame

_ALWAYS = (
    "mzplan.warehouse.content_hash",
    "mzplan.endpoints.arrays",
    "mzplan.endpoints.interface",
    "mzplan.endpoints.replay",
    "mzplan.host.failpoints",
    __name__,
)


def ship(*modules: str) -> None:
    """From now on, Spark's tasks carry the code of these modules, and of the ones that every output uses. So
    a shipped module imports nothing else of mzplan's, and other packages only inside functions. An armed
    failpoint is sent, too."""
    from pyspark import cloudpickle

    for name in (*_ALWAYS, *modules):
        cloudpickle.register_pickle_by_value(importlib.import_module(name))  # type: ignore[no-untyped-call]


def one_row(values: Mapping[str, Any], types: Mapping[str, DataType]) -> RecordBatch:
    """A task's report as a batch of one row; a missing value is NULL."""
    import pyarrow as pa

    columns = [build([values.get(name)], type_) for name, type_ in types.items()]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(list(types.items())))


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


class OneToken:
    """A token to sign in with, for a client that asks for one (see mzplan.connectors.network.aws)."""

    def __init__(self, token: tuple[str, float]):
        self._token = token

    def __call__(self, _: str) -> tuple[str, float]:
        return self._token
