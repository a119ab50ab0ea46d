"""Decodes binary records in Python tasks, in any wire format.

A record that can't be read doesn't fail the task: it is returned with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any, Protocol

from mzplan.connectors.formats.arrow_readers import Read, UnfitSchemaError, ddl_of
from mzplan.model.words import one_line

if TYPE_CHECKING:
    from pyarrow import Array, DataType, RecordBatch

RECORD, REASON = "r", "e"
"""The fields of a decoded record: its columns, and the reason if it has none."""

HEADER = 5
"""Bytes of a zero and a schema's id, with which Confluent's wire format begins."""
_LONGEST = 500  # characters of a reason: a registry may send any text, and each record carries it


class SchemaError(ValueError):
    """Raised for a text that is not a schema. The message is for people."""


class UnknownError(Exception):
    """Raised if the registry has no schema of the wanted type with an id. The message is for people."""


class MalformedError(Exception):
    """Raised for a record without the form that its wire format prescribes. The message is for people."""


class Schemas(Protocol):
    """Looks up schemas by their ids."""

    def texts(self, id_: int) -> Mapping[str, str]:
        """Return the texts of the schemas that a schema refers to, by the names of the references, then the
        schema's own text by "".

        Raises UnknownError for an unknown id, and any other error if the registry doesn't answer."""


@dataclass(slots=True)
class RecordReader:
    """Reads records of one schema.

    - `schema`: what the records must match, for people: `its schema 7`.
    - `whole`: reads a record, and leaves the rest of the bytes.
    - `columns`: for each column, in order, a function from records to an array.
    - `rows`, `records`: the rows of the current batch with this schema, and what `whole` returned for them.
    """

    schema: str
    whole: Callable[[BytesIO], Any]
    columns: Sequence[Read]
    rows: list[int] = field(default_factory=list)
    records: list[Any] = field(default_factory=list)


class WireFormat(Protocol):
    """How records are written. `wanted`: the struct of columns to read."""

    @property
    def wanted(self) -> DataType: ...

    def split(self, record: bytes) -> tuple[Hashable, int]:
        """Return what selects a record's reader, and where its data begins. Raises MalformedError."""

    def reader(self, selected: Any) -> RecordReader:
        """Return the reader of records.

        Raises UnknownError, SchemaError, UnfitSchemaError or MalformedError."""


class RecordDecoder:
    """Decodes columns of records, each into a struct of the wanted fields."""

    def __init__(self, wire: WireFormat):
        self._wire = wire
        self._wanted = wire.wanted
        self._readers: dict[Hashable, RecordReader | str] = {}

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
        for reader in self._readers.values():
            if isinstance(reader, RecordReader) and reader.rows:
                rows, found, reader.rows, reader.records = reader.rows, reader.records, [], []
                self._build(reader, rows, found, parts, place, reasons)
        joined = self._joined(parts, place)
        fields = list(self.type)
        return pa.StructArray.from_arrays([joined, pa.array(reasons, pa.string())], fields=fields)

    def _read(self, row: int, record: bytes) -> str | None:
        """Collect a record, or return why it can't be read."""
        try:
            selected, start = self._wire.split(record)
        except MalformedError as problem:
            return str(problem)
        reader = self._readers.get(selected)
        if reader is None:
            reader = self._readers[selected] = self._look_up(selected)
        if isinstance(reader, str):
            return reader
        data = BytesIO(record)
        data.seek(start)
        try:
            found = reader.whole(data)
        except RecursionError:
            return f"the record is nested too deep, by {reader.schema}"
        except Exception:  # broken bytes can raise anything
            return f"the record doesn't match {reader.schema}"
        if data.tell() != len(record):
            return f"the record is longer than {reader.schema} says"
        reader.rows.append(row)
        reader.records.append(found)
        return None

    def _look_up(self, selected: Hashable) -> RecordReader | str:
        try:
            return self._wire.reader(selected)
        except (UnknownError, SchemaError, UnfitSchemaError, MalformedError) as problem:
            return one_line(str(problem), _LONGEST)

    def _build(
        self,
        reader: RecordReader,
        rows: list[int],
        records: list[Any],
        parts: list[Any],
        place: list[int | None],
        reasons: list[str | None],
    ) -> None:
        """Build an array of the records. If some don't fit, build each half, until these are found."""
        import pyarrow as pa

        try:
            columns = [read(records) for read in reader.columns]
        except (pa.ArrowException, ArithmeticError, ValueError, TypeError):
            if len(rows) == 1:
                reasons[rows[0]] = self._unfit(reader, records[0])
                return
            half = len(rows) // 2
            for part in (slice(None, half), slice(half, None)):
                self._build(reader, rows[part], records[part], parts, place, reasons)
            return
        first = sum(len(part) for part in parts)
        for i, row in enumerate(rows):
            place[row] = first + i
        parts.append(pa.StructArray.from_arrays(columns, fields=list(self._wanted)))

    def _unfit(self, reader: RecordReader, record: Any) -> str:
        """Return which columns don't fit a record. Names no value, because it may be confidential."""
        misfits = []
        for read, wanted in zip(reader.columns, self._wanted, strict=True):
            try:
                read([record])
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A task's function for mapInArrow: adds `column` with the decoded records of the column `value`.

    - `values`: how the values are written.
    - `keeps_values`: whether to keep the values; otherwise they are emptied, to avoid sending them back.
    - `keys`, `key_column`: how keys are written, and the name of an additional column for the decoded key of
      a record; None for no such column. It is NULL except in deletes. With `tombstones`, a delete is a record
      without a value. Otherwise it is a delete without a row `before` (see debezium).
    """

    values: WireFormat
    column: str
    keeps_values: bool = False
    keys: WireFormat | None = None
    key_column: str = ""
    tombstones: bool = False

    def __call__(self, batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        import pyarrow as pa

        decoder = RecordDecoder(self.values)
        keys = RecordDecoder(self.keys) if self.keys is not None else None
        for batch in batches:
            index = batch.schema.get_field_index("value")
            records = batch.column(index)
            decoded = decoder.decode(records)
            arrays, names = [*batch.columns, decoded], [*batch.schema.names, self.column]
            if not self.keeps_values:
                arrays[index] = _emptied(records)
            if keys is not None:
                deletes = records.is_null() if self.tombstones else _deletes(decoded.field(RECORD))
                arrays.append(keys.decode(_where(deletes, batch.column("key"))))
                names.append(self.key_column)
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
