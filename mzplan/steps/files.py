"""Files below the warehouse, on this machine or in an object store: bytes, lines and Parquet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mzplan.connectors.checkpoints import remote
from mzplan.connectors.paths import local_path

if TYPE_CHECKING:
    import pyarrow as pa


def read_parquet(place: str) -> pa.Table:
    """The rows of one of Spark's Parquet files. Raises FileNotFoundError, OSError."""
    from pyarrow import parquet

    system, path = _system(place)
    # Spark stores timestamps as INT96, which would be read in nanoseconds and overflow.
    return parquet.ParquetFile(path, filesystem=system, coerce_int96_timestamp_unit="us").read()


def _system(place: str) -> tuple[Any, str]:
    from pyarrow import fs

    local = local_path(place)
    return (fs.LocalFileSystem(), str(local)) if local is not None else remote(place)
