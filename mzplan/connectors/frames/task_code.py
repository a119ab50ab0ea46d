"""Code for tasks on executors, where mzplan isn't installed: Spark sends the task's modules along with it.

A task that writes a step by itself must know whether all its rows have arrived. A task's input in Python ends
in the same way after the last row, and after an unreadable file, a cancelled task or a killed executor. In
these three cases, the task would commit only a part of the step. So a row without a hash follows the last
row.

This whole module is sent to the executors.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mzplan.endpoints.arrays import build_array
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
    """Ship to Spark's executors the code of these modules, and of the modules that every output uses.

    mzplan isn't installed on executors, so a shipped module must not import other mzplan modules. It imports
    other packages only inside functions. An armed failpoint is shipped as well.
    """
    from pyspark import cloudpickle

    for name in (*_ALWAYS, *modules):
        cloudpickle.register_pickle_by_value(importlib.import_module(name))  # type: ignore[no-untyped-call]


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


class OneToken:
    """Returns a fixed sign-in token to a client that asks for one (see mzplan.connectors.network.aws)."""

    def __init__(self, token: tuple[str, float]):
        self._token = token

    def __call__(self, _: str) -> tuple[str, float]:
        return self._token
