"""The Arrow file of a step: its rows, and as metadata the id of its append, their number and their digest.

Arrow believes what a file says of offsets and of what is NULL: so nothing looks at rows before they are
validated.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mzplan.warehouse.content_hash import ContentHash, content_hash

if TYPE_CHECKING:
    from pyarrow import RecordBatch, Table

_BATCH_ROWS = 20_000


class DamagedStepError(Exception):
    """A file that no append has written so. The message says why."""


class StepFile:
    """A step's file, of which nothing but the schema was looked at. Raises DamagedStepError."""

    def __init__(self, data: bytes | memoryview):
        import pyarrow as pa

        self._data = pa.py_buffer(data)
        with _decoding():
            self._metadata = pa.ipc.open_file(self._data).schema.metadata

    def summary(self) -> tuple[int, str]:
        """The number of rows, and their digest, as the append has recorded them. Raises DamagedStepError."""
        try:
            return int(self._metadata[b"mzplan.rows"]), self._metadata[b"mzplan.digest"].decode()
        except (KeyError, TypeError, ValueError):
            raise DamagedStepError("it does not say how many rows it has, or of which digest") from None

    def rows(self) -> list[RecordBatch]:
        """All rows, once they are those that were appended. Raises DamagedStepError."""
        import pyarrow as pa

        rows, digest = self.summary()
        with _decoding():
            file = pa.ipc.open_file(self._data)
            batches = [file.get_batch(number) for number in range(file.num_record_batches)]
            for batch in batches:
                batch.validate(full=True)
            plain = [batch.replace_schema_metadata(None) for batch in batches]
            differs = differing(rows, digest, content_hash(plain))
        if differs is not None:
            raise DamagedStepError(
                f"its rows have the digest {differs[1]}, and those that were appended {differs[0]}"
            )
        return plain


def encode_step(rows: Table, id_: str) -> memoryview:
    """The content of a step's file."""
    import pyarrow as pa

    digest = str(content_hash([rows]))
    metadata = {"mzplan.id": id_, "mzplan.rows": str(rows.num_rows), "mzplan.digest": digest}
    described = rows.replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(sink, described.schema, options=options) as writer:
        writer.write_table(described, max_chunksize=_BATCH_ROWS)
    return memoryview(sink.getvalue())


@contextmanager
def _decoding() -> Iterator[None]:
    """Errors that Arrow or the hash of the rows raises for a file that no append wrote."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, TypeError, ValueError) as problem:
        raise DamagedStepError(str(problem)) from None


def differing(rows: int, digest: str, other: ContentHash) -> tuple[str, str] | None:
    """The digest that was recorded of so many rows, and that of others, unless these are the same rows. A
    digest of a kind that is not known here is that of none."""
    if ContentHash.parse(rows, digest) == other:
        return None
    return digest, str(other)
