"""Whether a sink's columns can be written with an Avro schema without loss, before the first row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mzplan.connectors.api.protocols import Output

if TYPE_CHECKING:
    from pyarrow import DataType

    from mzplan.connectors.formats.avro.schema import Field, Node

# By Avro type and logical type: the Arrow types of columns that can be written as it.
_TAKES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("boolean", ""): ("bool",),
    ("int", ""): ("int8", "int16", "int32"),
    ("long", ""): ("int8", "int16", "int32", "int64"),
    ("float", ""): ("int8", "int16", "float"),
    ("double", ""): ("int8", "int16", "int32", "float", "double"),
    ("string", ""): ("string",),
    ("string", "uuid"): ("string",),
    ("enum", ""): ("string",),
    ("bytes", ""): ("binary",),
    ("fixed", ""): ("binary",),
    ("int", "date"): ("date32[day]",),
    ("long", "timestamp-millis"): ("timestamp[us, tz=UTC]",),
    ("long", "timestamp-micros"): ("timestamp[us, tz=UTC]",),
    ("long", "local-timestamp-millis"): ("timestamp[us]",),
    ("long", "local-timestamp-micros"): ("timestamp[us]",),
}


def avro_writable(schemas: Sequence[str], outputs: Sequence[Output]) -> list[str]:
    """The errors of writing these columns with a schema. `schemas`: the texts of those that it refers to, and
    last its own."""
    from mzplan.connectors.formats.avro.schema import SchemaError, parse_record
    from mzplan.connectors.formats.avro.values import type_of

    try:
        fields = parse_record(schemas).fields
    except SchemaError as problem:
        return [str(problem)]
    wrong = []
    for output in outputs:
        if output.name not in fields:
            wrong.append(f"it has no field {output.name}, which the sink writes")
        elif output.type is not None and not _takes(fields[output.name].node, _arrow(output.type)):
            there = type_of(fields[output.name].node)
            wrong.append(f"its field {output.name} is {there}, and the sink writes {output.type}")
    names = {output.name for output in outputs}
    wrong += [
        f"its field {name} has no default, and the sink does not write it"
        for name, field in fields.items()
        if name not in names and not _is_optional(field)
    ]
    return wrong


def _takes(node: Node, type_: DataType | None) -> bool:
    from pyarrow import types

    branches = node.branches
    if type_ is None or len(branches) != 1:
        return False  # with several types, the written one would depend on the value
    (one,) = branches
    if one.logical == "decimal":
        scale = one.definition.get("scale", 0)
        whole = one.definition["precision"] - scale
        return bool(
            types.is_decimal(type_) and type_.scale <= scale and type_.precision - type_.scale <= whole
        )
    match one.type:
        case "array":
            return types.is_list(type_) and _takes(one.inner("items"), type_.value_type)
        case "map":
            is_text = types.is_map(type_) and types.is_string(type_.key_type)
            return is_text and _takes(one.inner("values"), type_.item_type)
        case "record":
            return types.is_struct(type_) and _takes_all(one.fields, type_)
    return str(type_) in _TAKES.get((one.type, one.logical), ())


def _takes_all(fields: Mapping[str, Field], struct: DataType) -> bool:
    named = {part.name: part.type for part in struct}
    return all(name in fields and _takes(fields[name].node, type_) for name, type_ in named.items()) and all(
        name in named or _is_optional(field) for name, field in fields.items()
    )


def _is_optional(field: Field) -> bool:
    """Whether the field can be written without a column: with its default, or null."""
    definition = field.node.definition
    return "default" in field.written or (
        isinstance(definition, list) and len(field.node.branches) < len(definition)
    )


def _arrow(type_: str) -> DataType | None:
    """The Arrow type of a column; None for a type that only Spark knows, such as an interval."""
    from mzplan.endpoints.arrow import arrow_type

    try:
        return arrow_type(type_)
    except AssertionError:
        return None
