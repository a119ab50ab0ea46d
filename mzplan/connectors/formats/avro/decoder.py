"""Records in Confluent's wire format → columns: a zero, the schema's id in four bytes, and binary Avro.

Each record is read by the schema that it was written with, and its fields are found by name. A record that
can't be read does not fail the task: it is returned with the reason.

This module is sent to the executors whole (see task_code): they need pyarrow and fastavro, no mzplan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any, Protocol

from mzplan.connectors.formats.avro.schema import AvroNode, AvroSchema, SchemaError, parse_avro
from mzplan.connectors.formats.avro.values import (
    Read,
    UnfitSchemaError,
    ddl_of,
    missing,
    reader,
    require_name,
)
from mzplan.model.words import one_line

if TYPE_CHECKING:
    from pyarrow import Array, DataType, RecordBatch, Schema

RECORD, REASON = "r", "e"
"""The fields of a decoded record: its columns, and the reason why there are none."""

_HEADER = 5
_LONG = 10  # bytes of the longest integer
_LONGEST = 500  # characters of a reason: a registry may say anything, and each record has it


class UnknownError(Exception):
    """The registry has no Avro schema of an id. The message is for people."""


class Schemas(Protocol):
    """A lookup of schemas by their ids."""

    def texts(self, id_: int) -> Sequence[str]:
        """The texts of the schemas that it refers to, and last its own. Raises UnknownError for an unknown
        id, and anything else for a registry that doesn't answer."""


@dataclass(slots=True)
class _Written:
    """The reader of the records of one schema: of a whole record, and of each column, in order; and the rows
    of a batch that have this schema."""

    whole: Callable[[BytesIO], Any]
    columns: list[tuple[str, Read]]
    rows: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)


class AvroDecoder:
    """Decodes columns of records, each to a struct of `wanted` fields. `latest`: the schema whose defaults
    are used for fields that a record's own schema lacks."""

    def __init__(self, wanted: DataType, schemas: Schemas, latest: AvroSchema | None = None):
        self._wanted = wanted
        self._schemas = schemas
        self._latest = latest.root if latest is not None else None
        self._known: dict[int, _Written | str] = {}

    @property
    def type(self) -> DataType:
        """The type that `decode` returns."""
        import pyarrow as pa

        return pa.struct([pa.field(RECORD, self._wanted), pa.field(REASON, pa.string())])

    def decode(self, records: Array) -> Array:
        """BINARY values → for each `{r: the wanted struct, e: the reason why there is none}`; both NULL for a
        NULL."""
        import pyarrow as pa

        reasons: list[str | None] = [None] * len(records)
        for row, record in enumerate(records.to_pylist()):
            if record is not None:
                reasons[row] = self._read(row, record)
        parts: list[Any] = []
        place: list[int | None] = [None] * len(records)
        for written in self._known.values():
            if isinstance(written, _Written) and written.rows:
                rows, values, written.rows, written.values = written.rows, written.values, [], []
                self._build(written, rows, values, parts, place, reasons)
        joined = self._joined(parts, place)
        fields = list(self.type)
        return pa.StructArray.from_arrays([joined, pa.array(reasons, pa.string())], fields=fields)

    def _read(self, row: int, record: bytes) -> str | None:
        """Collect the values of a record; or return the reason why it can't be read."""
        if len(record) < _HEADER or record[0]:
            return "the record is not Avro with a schema's id before it"
        id_ = int.from_bytes(record[1:_HEADER], "big")
        written = self._known.get(id_)
        if written is None:
            written = self._known[id_] = self._look_up(id_)
        if isinstance(written, str):
            return written
        data = BytesIO(record)
        data.seek(_HEADER)
        try:
            values = written.whole(data)
        except RecursionError:
            return f"the record is nested too deep, by its schema {id_}"
        except Exception:  # broken bytes can raise anything
            return f"the record is not Avro of its schema {id_}"
        if data.tell() != len(record):
            return f"the record is longer than its schema {id_} says"
        written.rows.append(row)
        written.values.append(values)
        return None

    def _look_up(self, id_: int) -> _Written | str:
        try:
            schema = parse_avro(self._schemas.texts(id_))
            return _Written(_whole(schema), column_readers(schema.root, self._wanted, self._latest))
        except UnknownError as problem:
            return one_line(str(problem), _LONGEST)
        except (SchemaError, UnfitSchemaError) as problem:
            return one_line(f"schema {id_}: {problem}", _LONGEST)

    def _build(
        self,
        written: _Written,
        rows: list[int],
        values: list[Any],
        parts: list[Any],
        place: list[int | None],
        reasons: list[str | None],
    ) -> None:
        """Make an array of the values. Where some don't fit, halve them until those are found."""
        import pyarrow as pa

        try:
            columns = [read([value.get(name) for value in values]) for name, read in written.columns]
        except (pa.ArrowException, ArithmeticError, ValueError, TypeError):
            if len(rows) == 1:
                reasons[rows[0]] = self._unfit(written, values[0])
                return
            half = len(rows) // 2
            for part in (slice(None, half), slice(half, None)):
                self._build(written, rows[part], values[part], parts, place, reasons)
            return
        first = sum(len(part) for part in parts)
        for i, row in enumerate(rows):
            place[row] = first + i
        parts.append(pa.StructArray.from_arrays(columns, fields=list(self._wanted)))

    def _unfit(self, written: _Written, value: Any) -> str:
        """Which columns don't take the values of a record. Names no value: it may be confidential."""
        misfits = []
        for (name, read), wanted in zip(written.columns, self._wanted, strict=True):
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
    """A function that reads a record as a mapping of all its fields."""
    if schema.is_recursive:
        # The compiled reader crashes the process on a record of 10 KB that is nested 5,000 deep. This one is
        # slower, and raises RecursionError.
        return _python_reader(schema)
    from fastavro import schemaless_reader

    return lambda data: schemaless_reader(data, schema.raw, None)


def _python_reader(schema: AvroSchema) -> Callable[[BytesIO], Any]:
    """fastavro's reader in Python, but for integers: it would build one of a megabyte, for minutes."""
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
    """The reader of each wanted field. Raises UnfitSchemaError that names all fields without one."""
    if root.type != "record":
        raise UnfitSchemaError(f"its schema is {root.type}, and no record")
    require_name(root, latest, "it")
    fields, known = root.fields, latest.fields if latest is not None else {}
    readers: list[tuple[str, Read]] = []
    wrong: list[str] = []
    for column in wanted:
        newer = known.get(column.name)
        older = newer.written_in(fields) if newer is not None else fields.get(column.name)
        if older is None:
            readers.append((column.name, missing(newer, column.type, column.name)))
            continue
        try:
            inner = newer.node if newer is not None else None
            readers.append((older.name, reader(older.node, column.type, column.name, inner)))
        except UnfitSchemaError as problem:
            wrong.append(str(problem))
    if wrong:
        raise UnfitSchemaError("; ".join(wrong))
    return readers


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """The function of a task for mapInArrow: it adds a column `into` with the decoded records of the column
    `value` (`wanted`: its fields; `newest`: the texts of the latest schema). The values themselves are
    emptied unless `kept`, to save sending their bytes back.

    `keys`: one more column, with the fields `key_wanted` of the record's key, for deletes: records without a
    value (`tombstones`), or changes that are deletes and have no row `before` (see debezium)."""

    schemas: Schemas
    wanted: Schema
    newest: Sequence[str]
    into: str
    kept: bool = False
    keys: str = ""
    key_wanted: Schema | None = None
    tombstones: bool = False

    def __call__(self, batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        import pyarrow as pa

        decoder = AvroDecoder(pa.struct(list(self.wanted)), self.schemas, parse_avro(self.newest))
        keys = AvroDecoder(pa.struct(list(self.key_wanted or ())), self.schemas)
        for batch in batches:
            index = batch.schema.get_field_index("value")
            records = batch.column(index)
            decoded = decoder.decode(records)
            arrays, names = [*batch.columns, decoded], [*batch.schema.names, self.into]
            if not self.kept:
                arrays[index] = _emptied(records)
            if self.keys:
                deletes = records.is_null() if self.tombstones else _deletes(decoded.field(RECORD))
                arrays.append(keys.decode(_only(deletes, batch.column("key"))))
                names.append(self.keys)
            yield pa.RecordBatch.from_arrays(arrays, names=names)


def _deletes(changes: Array) -> Array:
    """A mask of the changes that are deletes without a row before them."""
    import pyarrow.compute as pc

    return pc.and_(pc.equal(changes.field("op"), "d"), pc.is_null(changes.field("before")))


def _only(wanted: Array, values: Array) -> Array:
    """The wanted values; NULL elsewhere."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.if_else(wanted, values, pa.scalar(None, values.type))


def _emptied(records: Array) -> Array:
    """Each value replaced by an empty one; NULL stays NULL."""
    import pyarrow as pa

    bits = records.is_valid().buffers()[1]
    nothing = pa.py_buffer(bytes(4 * (len(records) + 1)))
    return pa.Array.from_buffers(pa.binary(), len(records), [bits, nothing, pa.py_buffer(b"")])
