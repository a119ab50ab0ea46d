"""Protobuf records: bare, or in Confluent's wire format.

That is a zero, the schema's id in four bytes, the message's place in the schema, and the message. Each record
is read with the definition that wrote it. Its fields are found by name, or by the number that the latest
definition has for the name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import TYPE_CHECKING, Any

from mzplan.connectors.formats.arrow_readers import UnfitSchemaError
from mzplan.connectors.formats.decoder import (
    HEADER,
    MalformedError,
    RecordReader,
    SchemaError,
    Schemas,
    UnknownError,
)
from mzplan.connectors.formats.protobuf_schema import Definitions, ProtocError, Texts, definitions, texts_of
from mzplan.connectors.formats.protobuf_values import completeness, field_reader, field_readers
from mzplan.endpoints.arrow import arrow_type
from mzplan.schema.columns import Column

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from pyarrow import DataType

_MAX_LEVELS = 20  # of messages in messages
_BARE = (0, ())
_Written = tuple[int, tuple[int, ...]]
"""A schema's id, and a message's place in the schema."""


@dataclass(slots=True, kw_only=True)
class ProtobufRecords:
    """The wire format of Protobuf records (see WireFormat).

    - `texts`: the latest definition, or the project's.
    - `message`: the full name of the message; "" for the first one.
    - `schemas`, `latest_id`: the registry's schemas, and the latest one's id. None if records don't name a
      schema.
    """

    wanted: DataType
    texts: Texts
    message: str = ""
    schemas: Schemas | None = None
    latest_id: int = 0
    _unknown: dict[int, Exception] = field(default_factory=dict)  # by id

    def split(self, record: bytes) -> tuple[_Written, int]:
        if self.schemas is None:
            return _BARE, 0
        try:
            if record[0]:
                raise IndexError
            path, start = _path(record)
        except IndexError:
            text = "the record doesn't begin with a schema id and a message, as Protobuf from a registry does"
            raise MalformedError(text) from None
        return (int.from_bytes(record[1:HEADER], "big"), path), start

    def reader(self, selected: _Written) -> RecordReader:
        latest = self._latest()
        written = latest
        if self.schemas is not None:
            id_, path = selected
            found = self._of(id_)
            names = found.names_at(path)
            if names != {latest.full_name}:
                place = ".".join(map(str, path))
                said = f"the record is a {' or a '.join(sorted(names))}, not a {latest.full_name}"
                raise MalformedError(said if names else f"its schema {id_} has no message at {place}")
            written = found.message(latest.full_name)
        try:
            columns = field_readers(written, self.wanted, latest)
        except UnfitSchemaError as problem:
            if written is latest:  # no record is to blame
                raise RuntimeError(f"the latest definition: {problem}") from None
            raise SchemaError(f"schema {selected[0]}: {problem}") from None
        return RecordReader(f"the message {latest.full_name}", _whole(written), columns)

    def _latest(self) -> Descriptor:
        try:
            return definitions(self.texts).message(self.message)
        except SchemaError as problem:  # no record is to blame
            raise RuntimeError(f"the latest definition: {problem}") from None

    def _of(self, id_: int) -> Definitions:
        """Return the definitions of an id. Raises UnknownError and SchemaError, once it is known."""
        if id_ == self.latest_id:
            return definitions(self.texts)
        assert self.schemas is not None
        if id_ in self._unknown:
            raise self._unknown[id_]
        try:
            return definitions(texts_of(self.schemas.texts(id_)))
        except UnknownError as problem:
            self._unknown[id_] = problem
        except SchemaError as problem:
            self._unknown[id_] = SchemaError(f"schema {id_}: {problem}")
        raise self._unknown[id_]


def protobuf_readable(texts: Texts, message: str, columns: Sequence[Column]) -> tuple[list[str], list[str]]:
    """Return errors and warnings about reading messages as these columns (see registry_fit.readable)."""
    errors: list[str] = []
    warnings: list[str] = []
    try:
        fields = definitions(texts).message(message).fields_by_name
    except (SchemaError, ProtocError) as problem:
        return [str(problem)], []
    for column in columns:
        if column.name not in fields:
            warnings.append(f"it has no field {column.name}: the column would be NULL in every row")
            continue
        try:
            field_reader(fields[column.name], arrow_type(column.type), column.name)
        except UnfitSchemaError as problem:
            errors.append(str(problem))
    return errors, warnings


def _whole(message: Descriptor) -> Callable[[BytesIO], Any]:
    from google.protobuf.message_factory import GetMessageClass

    from_bytes, is_whole = GetMessageClass(message).FromString, completeness(message)

    def read(data: BytesIO) -> Any:
        found = from_bytes(data.read())
        if not found.IsInitialized() or not is_whole(found):
            raise ValueError
        return found

    return read


def _path(record: bytes) -> tuple[tuple[int, ...], int]:
    """Return the message's place in a record's schema, and the offset of the message. Raises IndexError."""
    count, at = _number(record, HEADER)
    if not count:
        return (0,), at  # short for the first message
    if not 0 < count <= _MAX_LEVELS:
        raise IndexError
    path = []
    for _ in range(count):
        index, at = _number(record, at)
        path.append(index)
    return tuple(path), at


def _number(record: bytes, at: int) -> tuple[int, int]:
    """Return a zigzag varint, and the offset after it. Raises IndexError."""
    number = 0
    for shift in range(0, 35, 7):
        byte = record[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
    raise IndexError
