"""The Arrow file of a step: its rows, and as metadata the id of its append, their number and their digest.

Whoever may write the warehouse may write such a file. Arrow believes what a file says of offsets and of what
is NULL, and would read, and send on, what lies beside the rows in memory: so nothing looks at rows that are
not validated, or unpacks more than an append writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mzplan.connectors.local.unpacked import unpacked_size
from mzplan.warehouse.content_hash import ContentHash, content_hash

if TYPE_CHECKING:
    from pyarrow import DataType, Message, RecordBatch, Schema, Table

_BATCH_ROWS = 20_000
_MAGIC = 8  # bytes before the messages
# What a file may be unpacked to: so many bytes, or so many times its own.
_UNPACKED = 256 << 20
_RATIO = 64


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
            schema, messages = self._messages()
            if sum(map(_unpacked, messages)) > _allowed(self._data.size):
                raise DamagedStepError(f"its {self._data.size:,} bytes would be unpacked to far more")
            for field in schema:
                _require_plain(field.type)
            batches = [pa.ipc.read_record_batch(message, schema) for message in messages]
            for batch in batches:
                batch.validate(full=True)
            plain = [batch.replace_schema_metadata(None) for batch in batches]
            differs = differing(rows, digest, content_hash(plain))
        if differs is not None:
            raise DamagedStepError(
                f"its rows have the digest {differs[1]}, and those that were appended {differs[0]}"
            )
        return plain

    def _messages(self) -> tuple[Schema, list[Message]]:
        """As they lie in the file, each once: its footer may list one as often as it likes."""
        import pyarrow as pa

        stream = pa.ipc.MessageReader.open_stream(self._data.slice(_MAGIC))
        first, *messages = stream
        if any(message.type != "record batch" for message in messages):
            raise DamagedStepError("it has more in it than rows")
        return pa.ipc.read_schema(first), messages


def encode_step(rows: Table, id_: str) -> memoryview:
    """The content of a step's file."""
    digest = str(content_hash([rows]))
    metadata = {"mzplan.id": id_, "mzplan.rows": str(rows.num_rows), "mzplan.digest": digest}
    described = rows.replace_schema_metadata(metadata)
    packed = _encoded(described, "lz4")
    # Of rows that are nearly all the same, so that who reads them could take them for a trap.
    return packed if rows.nbytes <= _allowed(len(packed)) // 2 else _encoded(described, None)


def _encoded(rows: Table, compression: str | None) -> memoryview:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, rows.schema, options=options) as writer:
        writer.write_table(rows, max_chunksize=_BATCH_ROWS)
    return memoryview(sink.getvalue())


def _allowed(size: int) -> int:
    """Bytes that a file of this size is unpacked to at most."""
    return max(_UNPACKED, _RATIO * size)


def _unpacked(message: Message) -> int:
    return unpacked_size(memoryview(message.metadata), memoryview(message.body))


@contextmanager
def _decoding() -> Iterator[None]:
    """Whatever Arrow, or the hash of the rows, raises for what is not as an append writes it."""
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


def _require_plain(type_: DataType) -> None:
    """Raise DamagedStepError for a type that no append writes: one whose values are put together, or handed
    to other code, before they can be validated, or take no space, so that there may be any number."""
    from pyarrow import types

    if types.is_nested(type_):
        for number in range(type_.num_fields):
            _require_plain(type_.field(number).type)
    is_row = types.is_struct(type_) and type_.num_fields > 0
    if not is_row and not any(is_of(type_) for is_of in _plain_types()):
        raise DamagedStepError(f"no step has values of type {type_}")


def _plain_types() -> tuple[Callable[[DataType], bool], ...]:
    from pyarrow import types

    return (
        types.is_boolean,
        types.is_integer,
        types.is_floating,
        types.is_decimal128,
        types.is_string,
        types.is_binary,
        types.is_date32,
        types.is_timestamp,
        types.is_list,
        types.is_map,
    )
