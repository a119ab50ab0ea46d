"""The values of partition columns, which are in the names of folders (`column=value/`).

The files below the folders may not have these columns. The values are text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

NULL = "__HIVE_DEFAULT_PARTITION__"
"""Stands for NULL in a folder's name."""
AS_NULL = ("", NULL)
"""Texts that Spark stores as NULL in a partition column."""
_DECIMAL = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?(E[+-]?[0-9]{1,2})?")  # pyarrow crashes on some others


def typed(values: Mapping[str, str | None], types: Mapping[str, pa.DataType]) -> dict[str, pa.Scalar[Any]]:
    """Convert values that Spark wrote as text to their types. Leaves out NULLs.

    Raises ValueError."""
    import pyarrow as pa

    scalars: dict[str, pa.Scalar[Any]] = {}
    for name, text in values.items():
        if text is None:
            continue
        if pa.types.is_timestamp(types[name]):  # in UTC, with or without a `Z`
            scalars[name] = pa.scalar(text.removesuffix("Z")).cast(pa.timestamp("us"))
        else:
            if pa.types.is_decimal(types[name]) and not _DECIMAL.fullmatch(text):
                raise ValueError(f"{text[:60]!r} isn't a {types[name]}")
            scalars[name] = pa.scalar(text).cast(types[name])
    return scalars


def with_values(batch: pa.RecordBatch, values: Mapping[str, pa.Scalar[Any]]) -> pa.RecordBatch:
    """Add the columns from the name of a file's folder, unless the file itself has them."""
    import pyarrow as pa

    columns = {name.lower() for name in batch.schema.names}
    for name, value in values.items():
        if name.lower() not in columns:
            batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
    return batch


def with_nulls(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return the rows as a target with these partition columns stores them."""
    import pyarrow as pa
    from pyarrow import compute

    partitions = {name.lower() for name in columns}
    for index, field in enumerate(batch.schema):
        if field.name.lower() in partitions and pa.types.is_string(field.type):
            values = batch.column(index)
            is_null = compute.is_in(values, pa.array(AS_NULL))
            batch = batch.set_column(index, field, compute.if_else(is_null, None, values))
    return batch
