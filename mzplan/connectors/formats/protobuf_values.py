"""Reads Protobuf messages into Arrow arrays of a wanted type, or says why a message doesn't fit.

A field without a value is NULL if its definition tells "no value" from its default (`optional`, `oneof`,
messages, proto2). Otherwise it is the default, as for each reader of Protobuf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.offers import struct
from mzplan.connectors.formats.arrow_readers import (
    Read,
    UnfitSchemaError,
    built,
    ddl_of,
    list_of,
    map_of,
    mapped,
    plain,
    struct_of,
)
from mzplan.schema.columns import Column

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
    from pyarrow import DataType

_MAX_FIELDS = 1000  # fields of a definition for which column types are made
_TIMESTAMP = "google.protobuf.Timestamp"
_WRAPPERS = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
# By Protobuf's type: its name, how it is read (see `plain`), and the column type that holds all its values.
_SCALARS: dict[int, tuple[str, str, str]] = {
    1: ("double", "double", "DOUBLE"),
    2: ("float", "float", "FLOAT"),
    3: ("int64", "long", "BIGINT"),
    4: ("uint64", "long", "DECIMAL(20,0)"),
    5: ("int32", "int", "INT"),
    6: ("fixed64", "long", "DECIMAL(20,0)"),
    7: ("fixed32", "int", "BIGINT"),
    8: ("bool", "boolean", "BOOLEAN"),
    9: ("string", "string", "STRING"),
    12: ("bytes", "bytes", "BINARY"),
    13: ("uint32", "int", "BIGINT"),
    14: ("enum", "int", "STRING"),
    15: ("sfixed32", "int", "INT"),
    16: ("sfixed64", "long", "BIGINT"),
    17: ("sint32", "int", "INT"),
    18: ("sint64", "long", "BIGINT"),
}


def field_readers(
    message: Descriptor, wanted: DataType, latest: Descriptor | None = None, name: str = ""
) -> list[Read]:
    """Return, for each wanted field, its reader, which takes messages.

    A field has the wanted name, or the number of the `latest` definition's field of this name. A field that
    the message doesn't have is NULL. Raises UnfitSchemaError, which names all fields that don't fit.
    """
    import pyarrow as pa

    def missing(type_: DataType) -> Read:
        return lambda messages: pa.nulls(len(messages), type_)

    readers, problems = [], []
    for part in wanted:
        newer = latest.fields_by_name.get(part.name) if latest is not None else None
        field = message.fields_by_name.get(part.name)
        if field is None and newer is not None:
            field = message.fields_by_number.get(newer.number)
        if field is None:
            readers.append(missing(part.type))
            continue
        try:
            place = f"{name}.{part.name}" if name else part.name
            readers.append(field_reader(field, part.type, place, newer))
        except UnfitSchemaError as problem:
            problems.append(str(problem))
    if problems:
        raise UnfitSchemaError("; ".join(problems))
    return readers


def field_reader(
    field: FieldDescriptor, wanted: DataType, name: str, newer: FieldDescriptor | None = None
) -> Read:
    """Return the reader of a field, which takes messages.

    `name` is the field's name for people, and `newer` its latest definition. Raises UnfitSchemaError."""
    from pyarrow import types

    key = field.name
    if not field.is_repeated:
        read = _value(field, wanted, name, newer)
        if field.has_presence:
            return lambda messages: read([getattr(m, key) if m.HasField(key) else None for m in messages])
        return lambda messages: read([getattr(m, key) for m in messages])
    entry = _entry(field)
    if entry is not None and types.is_map(wanted):
        keys, items = entry.fields_by_name["key"], entry.fields_by_name["value"]
        newer_entry = _entry(newer) if newer is not None else None
        newer_item = newer_entry.fields_by_name["value"] if newer_entry is not None else None
        read_items = _value(items, wanted.item_type, f"{name}{{}}", newer_item)
        whole = map_of(_value(keys, wanted.key_type, f"{name} key"), read_items, wanted)
    elif entry is None and types.is_list(wanted):
        whole = list_of(_value(field, wanted.value_type, f"{name}[]", newer), wanted)
    else:
        raise _unfit(field, wanted, name)
    return lambda messages: whole([getattr(m, key) for m in messages])


def column_types(message: Descriptor) -> dict[str, str | None]:
    """Return, by field, the type of a column that holds each of its values; None if there is none."""
    types = _ColumnTypes(_MAX_FIELDS)
    return {field.name: types.of(field, frozenset([message.full_name])) for field in message.fields}


@dataclass(slots=True)
class _ColumnTypes:
    """Finds the types of columns. `left`: how many fields it may still look at, because a registry may hold
    any definition."""

    left: int

    def of(self, field: FieldDescriptor, above: frozenset[str]) -> str | None:
        """`above`: the messages around the field; a column can't hold them again."""
        self.left -= 1
        if self.left < 0:
            return None
        entry = _entry(field)
        if entry is not None:
            inner = [self._of_value(entry.fields_by_name[part], above) for part in ("key", "value")]
            return f"MAP<{inner[0]},{inner[1]}>" if all(inner) else None
        value = self._of_value(field, above)
        return f"ARRAY<{value}>" if value and field.is_repeated else value

    def _of_value(self, field: FieldDescriptor, above: frozenset[str]) -> str | None:
        message = field.message_type
        if message is None:
            return _SCALARS[field.type][2]
        if _is_timestamp(message):
            return "TIMESTAMP"
        if _is_wrapper(message):
            return _SCALARS[message.fields_by_name["value"].type][2]
        if message.full_name in above:
            return None
        types = [(inner.name, self.of(inner, above | {message.full_name})) for inner in message.fields]
        known = [Column(name, type_) for name, type_ in types if type_]
        is_clear = len({column.name.lower() for column in known}) == len(known)
        return struct(known) if known and is_clear else None


def _value(field: FieldDescriptor, wanted: DataType, name: str, newer: FieldDescriptor | None = None) -> Read:
    """Return the reader of a field's values, or of the values in a repeated field. Raises
    UnfitSchemaError."""
    from pyarrow import types

    ddl = ddl_of(wanted).partition("(")[0]
    message = field.message_type
    if message is None:
        enum = field.enum_type if ddl == "STRING" else None
        read = _enum(enum, wanted) if enum else plain(_SCALARS[field.type][1], wanted, ddl)
    elif _is_timestamp(message) and ddl == "TIMESTAMP":
        read = _moment(wanted)
    elif _is_wrapper(message) and not types.is_struct(wanted):
        inner = _value(message.fields_by_name["value"], wanted, name)
        return lambda values: inner([None if value is None else value.value for value in values])
    else:
        latest = newer.message_type if newer is not None else None
        read = _message(message, wanted, name, latest) if types.is_struct(wanted) else None
    if read is None:
        raise _unfit(field, wanted, name)
    return read


def _message(message: Descriptor, wanted: DataType, name: str, latest: Descriptor | None) -> Read:
    from google.protobuf.message_factory import GetMessageClass

    whole = struct_of(field_readers(message, wanted, latest, name), wanted, GetMessageClass(message)())
    is_whole = completeness(message)

    def read(values: Sequence[Any]) -> Any:
        if not all(value is None or is_whole(value) for value in values):
            raise ValueError
        return whole(values)

    return read


def completeness(message: Descriptor) -> Callable[[Any], bool]:
    """Return a function that says whether all that was written of a message could be read.

    Protobuf's library leaves out what doesn't have the type of its field, or is no value of its enum."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    numbers = set(message.fields_by_number)

    def is_whole(read: Any) -> bool:
        left_out: Any = UnknownFieldSet(read)
        return not any(field.field_number in numbers for field in left_out)

    return is_whole


def _is_timestamp(message: Descriptor) -> bool:
    return message.full_name == _TIMESTAMP and message.file.name == "google/protobuf/timestamp.proto"


def _is_wrapper(message: Descriptor) -> bool:
    return message.full_name in _WRAPPERS and message.file.name == "google/protobuf/wrappers.proto"


def _enum(enum: EnumDescriptor, wanted: DataType) -> Read:
    """Return the reader of an enum's names. A number that the definition doesn't name stays a number."""
    # Of several names of a number, the first one is the number's own.
    names = {value.number: value.name for value in reversed(enum.values)}
    return mapped(lambda number: names.get(number, str(number)), wanted)


def _moment(wanted: DataType) -> Read:
    """Return the reader of google.protobuf.Timestamp. Nanoseconds are cut to microseconds."""
    import pyarrow as pa

    as_number = built(pa.int64(), pa.timestamp("us"), wanted)

    def read(values: Sequence[Any]) -> Any:
        return as_number([None if v is None else v.seconds * 1_000_000 + v.nanos // 1000 for v in values])

    return read


def _entry(field: FieldDescriptor) -> Descriptor | None:
    """Return the message of a map's entries; None for another field."""
    message = field.message_type
    return message if message is not None and message.GetOptions().map_entry else None


def _unfit(field: FieldDescriptor, wanted: DataType, name: str) -> UnfitSchemaError:
    return UnfitSchemaError(f"its field {name} is {type_of(field)}, but the column is {ddl_of(wanted)}")


def type_of(field: FieldDescriptor) -> str:
    """Return a field's type for people: `int64`, `repeated shop.Item`, `map<string, int32>`."""
    entry = _entry(field)
    if entry is not None:
        return f"map<{', '.join(type_of(entry.fields_by_name[part]) for part in ('key', 'value'))}>"
    named = field.message_type or field.enum_type
    type_ = named.full_name if named is not None else _SCALARS[field.type][0]
    return f"repeated {type_}" if field.is_repeated else type_
