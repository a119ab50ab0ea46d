"""Spark's Parquet files, read without Spark: on this machine or in an object store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mzplan.warehouse.checkpoints import remote
from mzplan.warehouse.paths import local_path

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 65_536  # of a batch


def read_batches(place: str) -> Iterator[pa.RecordBatch]:
    """The rows of a file. Raises FileNotFoundError, OSError (also for one that is no Parquet)."""
    import pyarrow as pa
    from pyarrow import parquet

    system, path = _system(place)
    try:
        # Spark stores timestamps as INT96, which would be read in nanoseconds and overflow.
        with parquet.ParquetFile(path, filesystem=system, coerce_int96_timestamp_unit="us") as file:
            yield from file.iter_batches(_ROWS)
    except pa.ArrowInvalid as problem:
        raise OSError(f"{place} is damaged: {problem}") from None


def read_bytes(place: str) -> bytes:
    """A whole file. Raises OSError."""
    system, path = _system(place)
    with system.open_input_stream(path) as stream:
        return bytes(stream.read())


def is_there(place: str) -> bool:
    """Whether there is a file at this path or URI. Raises OSError."""
    from pyarrow import fs

    system, path = _system(place)
    return bool(system.get_file_info(path).type == fs.FileType.File)


def _system(place: str) -> tuple[Any, str]:
    from pyarrow import fs

    local = local_path(place)
    return (fs.LocalFileSystem(), str(local)) if local is not None else remote(place)
