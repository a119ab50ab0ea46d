"""Reads values of an Avro schema into Arrow arrays of a wanted type, or says why the schema doesn't fit.

Supports Avro's own promotions (an int is read as a BIGINT, a float as a DOUBLE) and Spark's logical types.
Days, milliseconds and microseconds can also be read as plain numbers. A value that doesn't fit is an error of
its record (see decoder).
"""

from __future__ import annotations

import decimal
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from pyarrow import Array, DataType

    from mzplan.connectors.formats.avro_schema import AvroNode, Field

_CLASSES = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": float,
    "double": float,
    "bytes": bytes,
    "fixed": bytes,
    "string": str,
    "enum": str,
    "array": list,
    "map": dict,
    "record": dict,
}
_WIDER = {"int": "long", "float": "double"}
# The column types that can read a moment, by its logical type without the unit.
_TIMES = {
    "timestamp": ("TIMESTAMP",),
    "local-timestamp": ("TIMESTAMP_NTZ",),
    "wall": ("TIMESTAMP", "TIMESTAMP_NTZ"),
}
_DECIMAL = 16  # bytes of 38 digits, and a sign
_DIGITS = decimal.Context(prec=100)  # Python's default would round after 28 digits


def reader(node: AvroNode, wanted: DataType, name: str, latest: AvroNode | None = None) -> Read:
    """Return the reader of a schema's values. Raises UnfitSchemaError.

    A missing field of a nested record gets its default in the `latest` schema, or NULL. `name` is the field's
    name for people.
    """
    import pyarrow as pa

    branches = node.branches
    if not branches:
        return lambda values: pa.nulls(len(values), wanted)
    if len(branches) == 1:
        return _single(branches[0], wanted, name, latest)
    return _union(node, branches, wanted, name, latest)


def _missing(field: Field | None, wanted: DataType, name: str) -> Read:
    """Return the reader of a field that the records don't have.

    It returns the default of the latest schema's `field` if there is one that fits, otherwise NULL."""
    import pyarrow as pa

    value = pa.nulls(1, wanted)
    with suppress(Exception):  # a default of another type isn't used
        if field is not None and (default := field.default) is not None:
            value = reader(field.node, wanted, name)([default])
    return lambda values: value.take(pa.array([0] * len(values), pa.int32()))


def type_of(node: AvroNode) -> str:
    """Return a schema's type for people: `long`, `decimal(10,2)`, `string or long`."""
    if node.type == "union":
        return " or ".join(type_of(branch) for branch in node.branches) or "null"
    if node.logical == "decimal":
        written = node.definition
        return f"decimal({written.get('precision')},{written.get('scale', 0)})"
    return f"{node.logical} ({node.type})" if node.logical else node.type


def _union(
    node: AvroNode, branches: list[AvroNode], wanted: DataType, name: str, latest: AvroNode | None
) -> Read:
    """Return the reader of a union. The class of a value selects its branch; each branch must fit by
    itself."""
    import pyarrow.compute as pc

    reads: dict[type, Read] = {}
    types: dict[type, str] = {}
    for branch in branches:
        class_ = _CLASSES[branch.type]
        if class_ in types and _WIDER.get(branch.type) == types[class_]:
            continue
        if class_ in types and _WIDER.get(types[class_]) != branch.type:
            raise _unfit(node, wanted, name)
        try:
            types[class_], reads[class_] = branch.type, _single(branch, wanted, name, latest)
        except UnfitSchemaError:
            raise _unfit(node, wanted, name) from None

    def read(values: Sequence[Any]) -> Array:
        parts = [
            read_branch([value if type(value) is class_ else None for value in values])
            for class_, read_branch in reads.items()
        ]
        return pc.coalesce(*parts)

    return read


def _single(node: AvroNode, wanted: DataType, name: str, latest: AvroNode | None) -> Read:
    from pyarrow import types

    match node.type:
        case "record" if types.is_struct(wanted):
            require_name(node, latest, f"its field {name}")
            return struct_of(field_readers(node, wanted, name, latest), wanted, {})
        case "array" if types.is_list(wanted):
            inner = _inner_of(latest, "array", "items")
            return list_of(reader(node.inner("items"), wanted.value_type, f"{name}[]", inner), wanted)
        case "map" if types.is_map(wanted) and types.is_string(wanted.key_type):
            inner = _inner_of(latest, "map", "values")
            items = reader(node.inner("values"), wanted.item_type, f"{name}{{}}", inner)
            return map_of(built(wanted.key_type), items, wanted)
    scalar = _scalar(node, wanted, ddl_of(wanted).partition("(")[0])
    if scalar is None:
        raise _unfit(node, wanted, name)
    return scalar


def require_name(node: AvroNode, latest: AvroNode | None, subject: str) -> None:
    """Raise UnfitSchemaError for a record that the `latest` schema can't read, because it has another
    name."""
    records = [branch for branch in latest.branches if branch.type == "record"] if latest is not None else []
    if records and not any(branch.reads(node) for branch in records):
        names = " or ".join(branch.name for branch in records)
        raise UnfitSchemaError(f"{subject} is the record {node.name}, and the latest schema's is {names}")


def _unfit(node: AvroNode, wanted: DataType, name: str) -> UnfitSchemaError:
    return UnfitSchemaError(f"its field {name} is {type_of(node)}, but the column is {ddl_of(wanted)}")


def _inner_of(node: AvroNode | None, type_: str, key: str) -> AvroNode | None:
    branches = node.branches if node is not None else []
    return branches[0].inner(key) if len(branches) == 1 and branches[0].type == type_ else None


def _scalar(node: AvroNode, wanted: DataType, ddl: str) -> Read | None:
    """Return the reader of a schema that is not a record, array or map, or None if it doesn't fit."""
    import pyarrow as pa

    match (node.type, node.logical, ddl):
        case ("bytes" | "fixed", "decimal", "DECIMAL"):
            scale = int(node.definition.get("scale") or 0)
            return _decimal(scale, wanted) if scale <= wanted.scale else None
        case ("bytes" | "fixed", "decimal", _):
            return None
        case ("fixed", "uuid", "STRING"):
            return mapped(lambda value: str(uuid.UUID(bytes=value)), wanted)
        case ("int", "date", "DATE"):
            return built(pa.int32(), wanted)
        case ("long", logical, _) if ddl in _TIMES.get(logical.rpartition("-")[0], ()):
            return _time(logical, wanted)
        case ("string", "zoned", "TIMESTAMP"):
            return built(pa.string(), wanted)
        case ("int", "time-millis", "STRING"):
            return built(pa.int32(), pa.time32("ms"), wanted)
        case ("long", "time-micros", "STRING"):
            return built(pa.int64(), pa.time64("us"), wanted)
    return plain(node.type, wanted, ddl)


def _decimal(scale: int, wanted: DataType) -> Read:
    def convert(value: bytes) -> decimal.Decimal:
        number = int.from_bytes(value[-_DECIMAL:], "big", signed=True)
        # Python would take minutes for a megabyte.
        if value[:-_DECIMAL].strip(b"\xff" if number < 0 else b"\0"):
            raise ValueError("more digits than a DECIMAL has")
        return decimal.Decimal(number).scaleb(-scale, _DIGITS)

    return mapped(convert, wanted)


def _time(logical: str, wanted: DataType) -> Read:
    """Return the reader of milli-, micro- or nanoseconds since 1970. Nanoseconds are cut to microseconds."""
    import pyarrow as pa
    import pyarrow.compute as pc

    unit = logical.rpartition("-")[2]

    def read(values: Sequence[Any]) -> Array:
        numbers = pa.array(values, pa.int64())
        if unit == "nanos":
            # Round towards the past, as clocks do. A division of integers alone rounds towards zero.
            rest = pc.subtract(numbers, pc.multiply(pc.divide(numbers, 1000), 1000))
            numbers = pc.subtract(pc.divide(numbers, 1000), pc.less(rest, 0).cast(pa.int64()))
        if unit == "millis":
            numbers = pc.multiply_checked(numbers, 1000)
        return numbers.cast(pa.timestamp("us")).cast(wanted)

    return read


def field_readers(node: AvroNode, wanted: DataType, name: str, latest: AvroNode | None) -> list[Read]:
    """Return, for each wanted field, its reader, which takes records: mappings of all their fields.

    Raises UnfitSchemaError, which names all fields that the records' schema doesn't fit.
    """
    fields, latest_fields = node.fields, latest.fields if latest is not None else {}
    readers: list[Read] = []
    problems: list[str] = []
    for field in wanted:
        place = f"{name}.{field.name}" if name else field.name
        newer = latest_fields.get(field.name)
        older = newer.written_in(fields) if newer is not None else fields.get(field.name)
        if older is None:
            readers.append(_missing(newer, field.type, place))
            continue
        try:
            inner = newer.node if newer is not None else None
            readers.append(_member(older.name, reader(older.node, field.type, place, inner)))
        except UnfitSchemaError as problem:
            problems.append(str(problem))
    if problems:
        raise UnfitSchemaError("; ".join(problems))
    return readers


def _member(name: str, read: Read) -> Read:
    return lambda records: read([record.get(name) for record in records])
