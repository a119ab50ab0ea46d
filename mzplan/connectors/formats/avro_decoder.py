"""Decodes records in Confluent's wire format: a zero, the schema's id in four bytes, and binary Avro.

Each record is read with the schema that wrote it, and its fields are found by name. A record that can't be
read doesn't fail the task: it is returned with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any, Protocol

from mzplan.connectors.formats.avro_schema import AvroNode, AvroSchema, SchemaError, parse_avro
from mzplan.connectors.formats.avro_values import (
    Read,
    UnfitSchemaError,
    ddl_of,
    field_readers,
    require_name,
)
from mzplan.model.words import one_line

if TYPE_CHECKING:
    from pyarrow import Array, DataType, RecordBatch, Schema

RECORD, REASON = "r", "e"
"""The fields of a decoded record: its columns, and the reason if it has none."""

_HEADER = 5
_LONG = 10  # bytes of the longest integer
_LONGEST = 500  # characters of a reason: a registry may send any text, and each record carries it


class UnknownError(Exception):
    """Raised if the registry has no Avro schema with an id. The message is for people."""


class Schemas(Protocol):
    """Looks up schemas by their ids."""

    def texts(self, id_: int) -> Sequence[str]:
        """Return the texts of the schemas that a schema refers to, then the schema's own text.

        Raises UnknownError for an unknown id, and any other error if the registry doesn't answer."""


@dataclass(slots=True)
class _RecordReader:
    """Reads records of one schema.

    - `whole`: reads a record as a mapping of its fields.
    - `columns`: the field and the reader of each column, in order.
    - `rows`, `values`: the records of the current batch with this schema: their rows, and their values.
    """

    whole: Callable[[BytesIO], Any]
    columns: list[tuple[str, Read]]
    rows: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)


class AvroDecoder:
    """Decodes columns of records, each into a struct of `wanted` fields. `latest`: the schema with the
    defaults for fields that are missing in a record's own schema."""

    def __init__(self, wanted: DataType, schemas: Schemas, latest: AvroSchema | None = None):
        self._wanted = wanted
        self._schemas = schemas
        self._latest = latest.root if latest is not None else None
        self._readers: dict[int, _RecordReader | str] = {}

    @property
    def type(self) -> DataType:
        """Return the type that `decode` returns."""
        import pyarrow as pa

        return pa.struct([pa.field(RECORD, self._wanted), pa.field(REASON, pa.string())])

    def decode(self, records: Array) -> Array:
        """Return `{r: the wanted struct, e: the reason if there is none}` for each BINARY value. Both are
        NULL for NULL."""
        import pyarrow as pa

        reasons: list[str | None] = [None] * len(records)
        for row, record in enumerate(records.to_pylist()):
            if record is not None:
                reasons[row] = self._read(row, record)
        parts: list[Any] = []
        place: list[int | None] = [None] * len(records)
        for record_reader in self._readers.values():
            if isinstance(record_reader, _RecordReader) and record_reader.rows:
                rows, values, record_reader.rows, record_reader.values = (
                    record_reader.rows,
                    record_reader.values,
                    [],
                    [],
                )
                self._build(record_reader, rows, values, parts, place, reasons)
        joined = self._joined(parts, place)
        fields = list(self.type)
        return pa.StructArray.from_arrays([joined, pa.array(reasons, pa.string())], fields=fields)

    def _read(self, row: int, record: bytes) -> str | None:
        """Collect the values of a record, or return why it can't be read."""
        if len(record) < _HEADER or record[0]:
            return "the record doesn't begin with a schema id, as Avro from a registry does"
        id_ = int.from_bytes(record[1:_HEADER], "big")
        record_reader = self._readers.get(id_)
        if record_reader is None:
            record_reader = self._readers[id_] = self._look_up(id_)
        if isinstance(record_reader, str):
            return record_reader
        data = BytesIO(record)
        data.seek(_HEADER)
        try:
            values = record_reader.whole(data)
        except RecursionError:
            return f"the record is nested too deep, by its schema {id_}"
        except Exception:  # broken bytes can raise anything
            return f"the record doesn't match its schema {id_}"
        if data.tell() != len(record):
            return f"the record is longer than its schema {id_} says"
        record_reader.rows.append(row)
        record_reader.values.append(values)
        return None

    def _look_up(self, id_: int) -> _RecordReader | str:
        try:
            schema = parse_avro(self._schemas.texts(id_))
            return _RecordReader(_whole(schema), column_readers(schema.root, self._wanted, self._latest))
        except UnknownError as problem:
            return one_line(str(problem), _LONGEST)
        except (SchemaError, UnfitSchemaError) as problem:
            return one_line(f"schema {id_}: {problem}", _LONGEST)

    def _build(
        self,
        record_reader: _RecordReader,
        rows: list[int],
        values: list[Any],
        parts: list[Any],
        place: list[int | None],
        reasons: list[str | None],
    ) -> None:
        """Build an array of the values. If some don't fit, build each half, until these values are found."""
        import pyarrow as pa

        try:
            columns = [read([value.get(name) for value in values]) for name, read in record_reader.columns]
        except (pa.ArrowException, ArithmeticError, ValueError, TypeError):
            if len(rows) == 1:
                reasons[rows[0]] = self._unfit(record_reader, values[0])
                return
            half = len(rows) // 2
            for part in (slice(None, half), slice(half, None)):
                self._build(record_reader, rows[part], values[part], parts, place, reasons)
            return
        first = sum(len(part) for part in parts)
        for i, row in enumerate(rows):
            place[row] = first + i
        parts.append(pa.StructArray.from_arrays(columns, fields=list(self._wanted)))

    def _unfit(self, record_reader: _RecordReader, value: Any) -> str:
        """Return which columns don't fit a record's values. Names no value, because it may be
        confidential."""
        misfits = []
        for (name, read), wanted in zip(record_reader.columns, self._wanted, strict=True):
            try:
                read([value.get(name)])
            except Exception:
                misfits.append(f"{wanted.name} is not a {ddl_of(wanted.type)}")
        return ", ".join(misfits) or "the record does not fit the columns"

    def _joined(self, parts: list[Any], place: list[int | None]) -> Array:
        import pyarrow as pa

        if not parts:
            return pa.nulls(len(place), self._wanted)
        if len(parts) == 1 and len(parts[0]) == len(place):
            return parts[0]
        return pa.concat_arrays(parts).take(pa.array(place, pa.int64()))


def _whole(schema: AvroSchema) -> Callable[[BytesIO], Any]:
    """Return a function that reads a record as a mapping of all its fields."""
    if schema.is_recursive:
        # The compiled reader crashes the process on a 10 KB record that is nested 5,000 deep. The Python
        # reader is slower, but raises RecursionError.
        return _python_reader(schema)
    from fastavro import schemaless_reader

    return lambda data: schemaless_reader(data, schema.raw, None)


def _python_reader(schema: AvroSchema) -> Callable[[BytesIO], Any]:
    """Return fastavro's Python reader with a limit for integers. Without it, an integer of a megabyte takes
    minutes."""
    import fastavro
    from fastavro import _read_py
    from fastavro.io.binary_decoder import BinaryDecoder

    class Decoder(BinaryDecoder):
        def read_long(self) -> Any:
            start, number = self.fo.tell(), 0
            for i, byte in enumerate(self.fo.read(_LONG)):
                number |= (byte & 0x7F) << 7 * i
                if byte < 0x80:
                    self.fo.seek(start + i + 1)
                    return (number >> 1) ^ -(number & 1)
            raise ValueError("no end of an integer")

        read_int = read_long

    decoder: Any = Decoder
    read_data: Any = _read_py.read_data

    names: dict[str, Any] = {}
    raw = fastavro.parse_schema(schema.raw, names)

    def read(data: BytesIO) -> Any:
        return read_data(decoder(data), raw, {"writer": names, "reader": {}})

    return read


def column_readers(root: AvroNode, wanted: DataType, latest: AvroNode | None) -> list[tuple[str, Read]]:
    """Return, for each wanted field, the field's name in the records, and its reader (see field_readers).

    Raises UnfitSchemaError, which names all fields that the schema doesn't fit.
    """
    if root.type != "record":
        raise UnfitSchemaError(f"its schema is {root.type}, not a record")
    require_name(root, latest, "it")
    return field_readers(root, wanted, "", latest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task's function for mapInArrow: adds `column` with the decoded records of the column `value`.

    - `record_schema`: the record's fields.
    - `newest`: the texts of the latest schema.
    - `keeps_values`: whether to keep the values; otherwise they are emptied, to avoid sending them back.
    - `keys`: the name of an additional column for the decoded key of a record, with the fields `key_schema`;
      "" for no such column. The column is NULL except in deletes. With `tombstones`, a delete is a record
      without a value. Otherwise it is a delete without a row `before` (see debezium).
    """

    schemas: Schemas
    record_schema: Schema
    newest: Sequence[str]
    column: str
    keeps_values: bool = False
    keys: str = ""
    key_schema: Schema | None = None
    tombstones: bool = False

    def __call__(self, batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        import pyarrow as pa

        decoder = AvroDecoder(pa.struct(list(self.record_schema)), self.schemas, parse_avro(self.newest))
        keys = AvroDecoder(pa.struct(list(self.key_schema or ())), self.schemas)
        for batch in batches:
            index = batch.schema.get_field_index("value")
            records = batch.column(index)
            decoded = decoder.decode(records)
            arrays, names = [*batch.columns, decoded], [*batch.schema.names, self.column]
            if not self.keeps_values:
                arrays[index] = _emptied(records)
            if self.keys:
                deletes = records.is_null() if self.tombstones else _deletes(decoded.field(RECORD))
                arrays.append(keys.decode(_where(deletes, batch.column("key"))))
                names.append(self.keys)
            yield pa.RecordBatch.from_arrays(arrays, names=names)


def _deletes(changes: Array) -> Array:
    """Return a mask of the deletes without a row `before`."""
    import pyarrow.compute as pc

    return pc.and_(pc.equal(changes.field("op"), "d"), pc.is_null(changes.field("before")))


def _where(wanted: Array, values: Array) -> Array:
    """Return the wanted values, and NULL elsewhere."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(wanted, values, pa.scalar(None, values.type))


def _emptied(records: Array) -> Array:
    """Replace every record with an empty one. NULL stays NULL."""
    import pyarrow as pa

    bits = records.is_valid().buffers()[1]
    nothing = pa.py_buffer(bytes(4 * (len(records) + 1)))
    return pa.Array.from_buffers(pa.binary(), len(records), [bits, nothing, pa.py_buffer(b"")])
