"""Compares a registry's schema with columns, before the first record.

JSON schemas are compared by the types that Spark's JSON reader accepts and its writer produces. Only the
object's own fields with a directly declared type are compared; `$ref`, `oneOf` and the like aren't checked
until a record arrives. Avro schemas are compared at any depth: by avro.values for reading, without loss for
writing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.queries import Output
from mzplan.connectors.formats.arrow_readers import UnfitSchemaError
from mzplan.connectors.formats.avro_schema import parse_record
from mzplan.connectors.formats.avro_values import reader, type_of
from mzplan.connectors.formats.decoder import SchemaError
from mzplan.endpoints.arrow import arrow_type
from mzplan.schema.columns import Column

if TYPE_CHECKING:
    from pyarrow import DataType

    from mzplan.connectors.formats.avro_schema import AvroNode, Field

_INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_FRACTIONS = ("DECIMAL", "FLOAT", "DOUBLE")
_TEXTS = ("STRING", "CHAR", "VARCHAR")
# The column types that can read a JSON value, by its type. With `values: converted`, Spark also reads any
# value as text, and a whole number as a time.
_READ: Mapping[str, tuple[str, ...]] = {
    "integer": (*_INTEGERS, *_FRACTIONS),
    "number": _FRACTIONS,
    "string": ("DECIMAL", "DATE", "TIMESTAMP", "BINARY", "FLOAT", "DOUBLE", *_TEXTS),
    "boolean": ("BOOLEAN",),
    "array": ("ARRAY",),
    "object": ("STRUCT", "MAP"),
}
# The JSON type that Spark's writer makes of a column.
_WRITTEN: Mapping[str, str] = {
    **dict.fromkeys(_INTEGERS, "integer"),
    **dict.fromkeys(_FRACTIONS, "number"),
    "BOOLEAN": "boolean",
    "ARRAY": "array",
    "STRUCT": "object",
    "MAP": "object",
}


def readable(
    schema: object, columns: Sequence[Column], within: str | None = None, *, converted: bool = False
) -> tuple[list[str], list[str]]:
    """Return errors and warnings about reading records of this schema as these columns.

    `within`: the records' field that holds the columns. `converted`: the format sets `values: converted`."""
    errors: list[str] = []
    warnings: list[str] = []
    fields, _ = _fields(schema)
    if within is not None:
        fields, _ = _fields((fields or {}).get(within))
    for column in columns:
        if fields is None:
            break
        if column.name not in fields:
            warnings.append(f"it has no field {column.name}: the column would be NULL in every row")
            continue
        types = _types(fields[column.name])
        if types and not any(_is_read(type_, column.type, converted) for type_ in types):
            errors.append(f"its field {column.name} is {' or '.join(types)}, but the column is {column.type}")
    return errors, warnings


def avro_readable(
    schemas: Sequence[str], columns: Sequence[Column], within: str | None = None
) -> tuple[list[str], list[str]]:
    """Return errors and warnings about reading records of an Avro schema as these columns (see `readable`).

    `schemas`: the texts of the schemas that the schema refers to, then the schema's own text."""
    errors: list[str] = []
    warnings: list[str] = []
    try:
        fields = parse_record(schemas).fields
    except SchemaError as problem:
        return [str(problem)], []
    if within is not None:
        if within not in fields or not fields[within].node.fields:
            return [f"it has no record in a field {within}: did Debezium register it?"], []
        fields = fields[within].node.fields
    for column in columns:
        if column.name not in fields:
            warnings.append(f"it has no field {column.name}: the column would be NULL in every row")
            continue
        try:
            reader(fields[column.name].node, arrow_type(column.type), column.name)
        except UnfitSchemaError as problem:
            errors.append(str(problem))
    return errors, warnings


def writable(schema: object, outputs: Sequence[Output]) -> tuple[list[str], list[str]]:
    """Return errors and warnings about writing these columns into records of this schema."""
    errors: list[str] = []
    warnings: list[str] = []
    fields, is_closed = _fields(schema)
    names = {output.name for output in outputs}
    for output in outputs:
        if fields is None:
            break
        if output.name not in fields:
            (errors if is_closed else warnings).append(
                f"it has no field {output.name}, which the sink writes"
            )
            continue
        types, written = _types(fields[output.name]), _json_type(output.type)
        if types and written and written not in types and not (written == "integer" and "number" in types):
            errors.append(
                f"its field {output.name} is {' or '.join(types)}, but the sink writes {written} "
                f"({output.type})"
            )
    required = schema.get("required", ()) if isinstance(schema, Mapping) else ()
    errors += [
        f"its field {name} is required, but the sink doesn't write it"
        for name in required
        if name not in names
    ]
    return errors, warnings


def _fields(schema: object) -> tuple[Mapping[str, Any] | None, bool]:
    """Return the fields of a schema's object (None if it lists none), and whether it forbids others."""
    if not isinstance(schema, Mapping) or not isinstance(schema.get("properties"), Mapping):
        return None, False
    return schema["properties"], schema.get("additionalProperties") is False


def _types(field: object) -> list[str]:
    """Return the types of a field except null; [] if they aren't declared."""
    if not isinstance(field, Mapping) or any(word in field for word in ("$ref", "oneOf", "anyOf", "allOf")):
        return []
    declared = field.get("type")
    types = [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else []
    return [type_ for type_ in types if type_ in _READ]


def _is_read(type_: str, column: str, converted: bool) -> bool:
    base = _base(column)
    return base in _READ[type_] or (
        converted and (base in _TEXTS or (type_, base) == ("integer", "TIMESTAMP"))
    )


def _json_type(column: str | None) -> str | None:
    """Return the JSON type of a written column, or None if only Spark knows its type."""
    return _WRITTEN.get(_base(column), "string") if column is not None else None


def _base(type_: str) -> str:
    base = type_.partition("(")[0].partition("<")[0].strip()
    return "TIMESTAMP" if base == "TIMESTAMP_NTZ" else base


# The Arrow types that can be written, by Avro type and logical type.
_ACCEPTED: Mapping[tuple[str, str], tuple[str, ...]] = {
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
    """Return the errors of writing these columns into records of an Avro schema.

    `schemas`: the texts of the schemas that the schema refers to, then the schema's own text."""
    try:
        fields = parse_record(schemas).fields
    except SchemaError as problem:
        return [str(problem)]
    errors = []
    for output in outputs:
        if output.name not in fields:
            errors.append(f"it has no field {output.name}, which the sink writes")
        elif output.type is not None and not _accepts(fields[output.name].node, _arrow(output.type)):
            declared = type_of(fields[output.name].node)
            errors.append(f"its field {output.name} is {declared}, but the sink writes {output.type}")
    names = {output.name for output in outputs}
    errors += [
        f"its field {name} has no default, but the sink doesn't write it"
        for name, field in fields.items()
        if name not in names and not _is_optional(field)
    ]
    return errors


def _accepts(node: AvroNode, type_: DataType | None) -> bool:
    from pyarrow import types

    branches = node.branches
    if type_ is None or len(branches) != 1:
        return False  # the written type would depend on the value
    (branch,) = branches
    if branch.logical == "decimal":
        scale = branch.definition.get("scale", 0)
        whole = branch.definition["precision"] - scale
        return bool(
            types.is_decimal(type_) and type_.scale <= scale and type_.precision - type_.scale <= whole
        )
    match branch.type:
        case "array":
            return types.is_list(type_) and _accepts(branch.inner("items"), type_.value_type)
        case "map":
            is_text = types.is_map(type_) and types.is_string(type_.key_type)
            return is_text and _accepts(branch.inner("values"), type_.item_type)
        case "record":
            return types.is_struct(type_) and _accepts_all(branch.fields, type_)
    return str(type_) in _ACCEPTED.get((branch.type, branch.logical), ())


def _accepts_all(fields: Mapping[str, Field], struct: DataType) -> bool:
    types = {part.name: part.type for part in struct}
    return all(
        name in fields and _accepts(fields[name].node, type_) for name, type_ in types.items()
    ) and all(name in types or _is_optional(field) for name, field in fields.items())


def _is_optional(field: Field) -> bool:
    """Whether the field can be written without a column: it has a default, or allows null."""
    definition = field.node.definition
    return "default" in field.written or (
        isinstance(definition, list) and len(field.node.branches) < len(definition)
    )


def _arrow(type_: str) -> DataType | None:
    """Return the Arrow type of a column, or None for a type that only Spark knows, such as an interval."""
    try:
        return arrow_type(type_)
    except AssertionError:
        return None
