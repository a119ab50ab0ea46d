"""Sending code to executors that have no mzplan: the modules of a task travel with it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mzplan.endpoints.arrays import build

if TYPE_CHECKING:
    from pyarrow import DataType, RecordBatch

_ALWAYS = (
    "mzplan.warehouse.content_hash",
    "mzplan.endpoints.arrays",
    "mzplan.endpoints.interface",
    "mzplan.endpoints.replay",
    "mzplan.host.failpoints",
    __name__,
)


def ship(*modules: str) -> None:
    """From now on, Spark's tasks carry the code of these modules, and of those that every output uses. So a
    shipped module imports nothing else of mzplan's, and other packages only inside functions. An armed
    failpoint is sent, too."""
    from pyspark import cloudpickle

    for name in (*_ALWAYS, *modules):
        cloudpickle.register_pickle_by_value(importlib.import_module(name))  # type: ignore[no-untyped-call]


def one_row(values: Mapping[str, Any], types: Mapping[str, DataType]) -> RecordBatch:
    """A task's report as a batch of one row; a missing value is NULL."""
    import pyarrow as pa

    columns = [build([values.get(name)], type_) for name, type_ in types.items()]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(list(types.items())))
