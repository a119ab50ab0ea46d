"""Encodes columns into Confluent's wire format: a zero, the schema's id in four bytes, and binary Avro.

A field that no column fills gets the schema's default, or null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from mzplan.connectors.formats.avro_schema import AvroNode, parse_avro
from mzplan.model.words import one_line

if TYPE_CHECKING:
    from pyarrow import DataType, RecordBatch

Convert = Callable[[Any], Any]
_FIX = "Fix: change the row by `select` or `where`, or register a schema that allows it and restart the sink."
_NAMES = {"NoneType": "NULL", "dict": "a record", "list": "an array"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """A function for mapInArrow: encodes the structs in the column `value`; NULL stays NULL.

    - `schemas`: the texts of the schemas that the records' schema refers to, then this schema's own text.
    - `id`: the id of the records' schema in the registry.
    - `mark`: the prefix of an error for people: `mzplan[MZ059]: …`.
    """

    schemas: Sequence[str]
    id: int
    mark: str

    def __call__(self, batches: Iterable[RecordBatch]) -> Iterator[RecordBatch]:
        """Yield the batches with encoded values. Raises RuntimeError for a row that the schema doesn't
        allow."""
        import pyarrow as pa

        root = parse_avro(self.schemas).root
        for batch in batches:
            place = batch.schema.names.index("value")
            records = pa.array(self._encoded(root, batch.column(place)), pa.binary())
            columns = [*batch.columns[:place], records, *batch.columns[place + 1 :]]
            yield pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    def _encoded(self, root: AvroNode, values: Any) -> Iterator[bytes | None]:
        from fastavro import schemaless_writer

        header = b"\0" + self.id.to_bytes(4, "big")
        values = values.cast(_numbered(values.type))
        convert = _converter(values.type, root) or _same
        for value in values.to_pylist():
            if value is None:
                yield None
                continue
            plain = value
            record = BytesIO()
            record.write(header)
            try:
                plain = convert(value)
                schemaless_writer(record, root.written, plain)
            except Exception as problem:  # fastavro can raise anything
                why = _reason(root.written, plain, problem)
                raise RuntimeError(
                    f"{self.mark}: a row can't be written with schema {self.id}: {one_line(why, 500)}. {_FIX}"
                ) from None
            yield record.getvalue()


def _numbered(type_: DataType) -> DataType:
    """Return the type with numbers instead of dates and times, because Python's end with the year 9999."""
    import pyarrow as pa

    if pa.types.is_timestamp(type_):
        return pa.int64()
    if pa.types.is_date32(type_):
        return pa.int32()
    if pa.types.is_map(type_):
        return pa.map_(type_.key_type, _numbered(type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_numbered(type_.value_type)))
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_numbered(field.type)) for field in type_])
    return type_


def _converter(type_: DataType, node: AvroNode, name: str = "") -> Convert | None:
    """Return a function that converts pyarrow's Python values to fastavro's: maps come as pairs, and times in
    microseconds.

    None if there is nothing to convert, so that most rows take no time. The function raises ValueError for a
    time that doesn't fit. `name`: the value's name for people."""
    from pyarrow import types

    if len(node.branches) != 1:
        return None
    (branch,) = node.branches
    if types.is_map(type_) and branch.type == "map":
        item = _converter(type_.item_type, branch.inner("values"), f"a value of {name}") or _same
        return lambda pairs: None if pairs is None else {key: item(value) for key, value in pairs}
    if types.is_list(type_) and branch.type == "array":
        inner = _converter(type_.value_type, branch.inner("items"), f"an element of {name}")
        return inner and (lambda values: None if values is None else [inner(value) for value in values])
    if types.is_struct(type_):
        converters = {
            part.name: convert
            for part in type_
            if (field := branch.fields.get(part.name)) is not None
            and (convert := _converter(part.type, field.node, part.name)) is not None
        }
        return (lambda value: _converted(value, converters)) if converters else None
    if branch.logical.endswith("timestamp-millis"):
        return lambda value: _milliseconds(value, name)
    return None


def _milliseconds(microseconds: int | None, name: str) -> int | None:
    if microseconds is None:
        return None
    milliseconds, rest = divmod(microseconds, 1000)
    if rest:
        raise ValueError(
            f"{name} has microseconds in the row, but milliseconds in the schema "
            f"(date_trunc('MILLISECOND', …) cuts them off)"
        )
    return milliseconds


def _converted(value: dict[str, Any] | None, converters: dict[str, Convert]) -> dict[str, Any] | None:
    return value and {**value, **{name: convert(value[name]) for name, convert in converters.items()}}


def _same(value: Any) -> Any:
    return value


def _reason(written: Any, value: Any, problem: Exception) -> str:
    """Return which field doesn't fit. Leaves out its value, because more people may read errors than rows."""
    from fastavro.validation import ValidationError, validate

    try:
        validate(value, written, strict=False)
    except ValidationError as invalid:
        first = invalid.errors[0]
        allowed = " or ".join(
            _type_text(mistake.schema) for mistake in invalid.errors if mistake.field == first.field
        )
        actual = type(first.datum).__name__
        return f"{first.field} is {allowed} in the schema, but {_NAMES.get(actual, actual)} in the row"
    except Exception:
        pass
    return type(problem).__name__ if not str(problem) else str(problem).splitlines()[0][:200]


def _type_text(schema: Any) -> str:
    if isinstance(schema, list):
        return " or ".join(_type_text(branch) for branch in schema)
    if isinstance(schema, dict) and "symbols" in schema:
        return f"one of {', '.join(schema['symbols'][:10])}"
    if isinstance(schema, dict):
        return " ".join(str(schema[key]) for key in ("type", "name", "logicalType") if key in schema)
    return str(schema)
