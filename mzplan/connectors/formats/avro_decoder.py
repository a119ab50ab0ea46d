"""Avro in Confluent's wire format: a zero, the schema's id in four bytes, and binary Avro.

Each record is read with the schema that wrote it, and its fields are found by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from mzplan.connectors.formats.arrow_readers import Read, UnfitSchemaError
from mzplan.connectors.formats.avro_schema import AvroNode, AvroSchema, parse_avro
from mzplan.connectors.formats.avro_values import field_readers, require_name
from mzplan.connectors.formats.decoder import HEADER, MalformedError, RecordReader, SchemaError, Schemas

if TYPE_CHECKING:
    from pyarrow import DataType

_LONG = 10  # bytes of the longest integer


@dataclass(frozen=True, slots=True, kw_only=True)
class AvroRecords:
    """The wire format of Avro records (see WireFormat).

    - `latest`: the texts of the schema with the defaults for fields that a record's own schema doesn't have.
    """

    wanted: DataType
    schemas: Schemas
    latest: Sequence[str] = ()

    def split(self, record: bytes) -> tuple[int, int]:
        if len(record) < HEADER or record[0]:
            raise MalformedError("the record doesn't begin with a schema id, as Avro from a registry does")
        return int.from_bytes(record[1:HEADER], "big"), HEADER

    def reader(self, selected: int) -> RecordReader:
        texts = self.schemas.texts(selected).values()
        try:
            schema = parse_avro(tuple(texts))
            columns = _column_readers(schema.root, self.wanted, self._latest_root())
        except (SchemaError, UnfitSchemaError) as problem:
            raise SchemaError(f"schema {selected}: {problem}") from None
        return RecordReader(f"its schema {selected}", _whole(schema), columns)

    def _latest_root(self) -> AvroNode | None:
        try:
            return parse_avro(self.latest).root if self.latest else None
        except SchemaError as problem:  # of no record: they must not count as malformed
            raise RuntimeError(f"the latest schema: {problem}") from None


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


def _column_readers(root: AvroNode, wanted: DataType, latest: AvroNode | None) -> list[Read]:
    """Raises UnfitSchemaError, which names all fields that the schema doesn't fit."""
    if root.type != "record":
        raise UnfitSchemaError(f"its schema is {root.type}, not a record")
    require_name(root, latest, "it")
    return field_readers(root, wanted, "", latest)
