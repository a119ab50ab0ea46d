"""The columns that a source can declare for the latest schema of a registry's subject."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mzplan.connectors.api.offers import struct
from mzplan.connectors.formats.avro_schema import AvroNode, parse_record
from mzplan.connectors.formats.decoder import SchemaError
from mzplan.connectors.formats.protobuf_schema import definitions, texts_of
from mzplan.connectors.formats.protobuf_values import column_types
from mzplan.connectors.formats.registry import Subject
from mzplan.connectors.formats.registry_fit import avro_readable
from mzplan.schema.columns import Column

_AVRO = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "enum": "STRING",
    "bytes": "BINARY",
    "fixed": "BINARY",
}
_LOGICAL = {
    "uuid": "STRING",
    "date": "DATE",
    "time-millis": "STRING",
    "time-micros": "STRING",
    "time-nanos": "STRING",
    "timestamp-millis": "TIMESTAMP",
    "timestamp-micros": "TIMESTAMP",
    "timestamp-nanos": "TIMESTAMP",
    "local-timestamp-millis": "TIMESTAMP_NTZ",
    "local-timestamp-micros": "TIMESTAMP_NTZ",
    "local-timestamp-nanos": "TIMESTAMP_NTZ",
    "wall-millis": "TIMESTAMP_NTZ",
    "wall-micros": "TIMESTAMP_NTZ",
    "wall-nanos": "TIMESTAMP_NTZ",
    "zoned": "TIMESTAMP",
}
_JSON = {"integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN"}
_TIMES = {"date": "DATE", "date-time": "TIMESTAMP"}
_DEPTH = 20  # levels of a schema that may contain itself


def columns_of_subject(subject: Subject) -> tuple[tuple[Column, ...], list[str]]:
    """Return the columns of a schema, and the names of the fields that no column can hold.

    Of a Protobuf schema, they are the columns of its first message. Raises ValueError if the schema is
    damaged or isn't an object's or record's.
    """
    fields = _FIELDS[subject.type](subject)
    columns = tuple(Column(name, type_) for name, type_ in fields.items() if type_ is not None)
    return columns, [name for name, type_ in fields.items() if type_ is None]


def _avro_fields(subject: Subject) -> dict[str, str | None]:
    try:
        fields = parse_record(subject.schemas).fields
    except SchemaError as problem:
        raise ValueError(str(problem)) from None
    types = {name: _avro_type(field.node, _DEPTH) for name, field in fields.items()}
    return {
        name: type_ if type_ and not avro_readable(subject.schemas, [Column(name, type_)])[0] else None
        for name, type_ in types.items()
    }


def _protobuf_fields(subject: Subject) -> dict[str, str | None]:
    types = column_types(definitions(texts_of(subject.texts)).message(""))
    first = {name.lower(): name for name in reversed(types)}
    # For Spark, columns whose names differ only in case are one.
    return {name: type_ if first[name.lower()] == name else None for name, type_ in types.items()}


def _avro_type(node: AvroNode, depth: int) -> str | None:
    branches = node.branches
    if len(branches) != 1 or not depth:
        return None
    node = branches[0]
    if node.logical == "decimal":
        written = node.definition
        return f"DECIMAL({written.get('precision')},{written.get('scale', 0)})"
    if node.type == "record":
        return _struct({name: _avro_type(field.node, depth - 1) for name, field in node.fields.items()})
    if node.type in ("array", "map"):
        inner = _avro_type(node.inner("items" if node.type == "array" else "values"), depth - 1)
        return inner and (f"ARRAY<{inner}>" if node.type == "array" else f"MAP<STRING,{inner}>")
    return _LOGICAL.get(node.logical) or _AVRO.get(node.type)


def _json_fields(subject: Subject) -> dict[str, str | None]:
    schema = json.loads(subject.schemas[-1])
    if not isinstance(schema, Mapping) or not isinstance(schema.get("properties"), Mapping):
        raise ValueError("its schema lists no properties")
    return {name: _json_type(field, _DEPTH) for name, field in schema["properties"].items()}


def _json_type(field: Any, depth: int) -> str | None:
    if not isinstance(field, Mapping) or not depth:
        return None
    declared = field.get("type")
    types = [type_ for type_ in (declared if isinstance(declared, list) else [declared]) if type_ != "null"]
    match types:
        case ["string"]:
            return _TIMES.get(str(field.get("format")), "STRING")
        case ["array"]:
            inner = _json_type(field.get("items"), depth - 1)
            return inner and f"ARRAY<{inner}>"
        case ["object"] if isinstance(field.get("properties"), Mapping):
            return _struct({name: _json_type(each, depth - 1) for name, each in field["properties"].items()})
        case ["object"]:
            inner = _json_type(field.get("additionalProperties"), depth - 1)
            return inner and f"MAP<STRING,{inner}>"
        case [str(one)]:
            return _JSON.get(one)
    return None


_FIELDS: Mapping[str, Callable[[Subject], dict[str, str | None]]] = {
    "AVRO": _avro_fields,
    "JSON": _json_fields,
    "PROTOBUF": _protobuf_fields,
}


def _struct(fields: Mapping[str, str | None]) -> str | None:
    """Return a STRUCT of the fields that a column can hold; None if there are none."""
    known: Sequence[Column] = [Column(name, type_) for name, type_ in fields.items() if type_]
    return struct(known) if known else None
