"""Writes rows as JSON lines, CSV, Parquet or Arrow files, and as a table for people.

Text values have the format that mzplan.connectors.local.row_files reads.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

from mzplan.render.text import Paint, cut, safe

if TYPE_CHECKING:
    import pyarrow as pa

OutFormat = Literal["json", "csv", "parquet", "arrow"]
_SUFFIXES: dict[str, OutFormat] = {
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "csv": "csv",
    "parquet": "parquet",
    "arrow": "arrow",
    "arrows": "arrow",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CYCLE = 400 * 365 + 97  # days in 400 years, after which the calendar repeats
_DAY = 86_400_000_000  # microseconds
_GROUP = 65_536  # rows in a row group
_CELL = 60  # characters in a table cell
_ROWS_MEASURED = 200  # rows that decide the width of a table's columns
# Created once, because creating it for each row would double the time.
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode

Convert = Callable[[Any], Any]


def out_format_of(name: str) -> OutFormat | None:
    """Return the format of an output file by its extension; None for an unknown one."""
    return _SUFFIXES.get(name.rpartition(".")[2].lower()) if "." in name else None


def write_rows(
    format_: OutFormat, schema: pa.Schema, batches: Iterable[pa.RecordBatch], sink: BinaryIO
) -> None:
    """Write all rows, batch by batch.

    `json` is one object per line; `arrow` is the streaming format. Raises the errors of `sink` and
    `batches`."""
    match format_:
        case "json":
            _write_lines(sink, batches, json_lines)
        case "csv":
            sink.write(f"{csv_line(schema.names)}\n".encode())
            _write_lines(sink, batches, _csv_lines)
        case "parquet":
            _write_parquet(schema, batches, sink)
        case "arrow":
            _write_arrow(schema, batches, sink)


def json_lines(batch: pa.RecordBatch) -> Iterator[str]:
    """Yield each row as a JSON object, without a line end.

    Decimals are text, to keep all digits; binary is base64; times are ISO 8601 in UTC."""
    names = batch.schema.names
    columns = [json_values(column) for column in batch.columns]
    for row in zip(*columns, strict=True):
        yield _encode(dict(zip(names, row, strict=True)))


def json_values(column: pa.Array) -> list[Any]:
    values = column.cast(_plain(column.type)).to_pylist()
    convert = _converter(column.type)
    return values if convert is None else [None if v is None else convert(v) for v in values]


def texts(column: pa.Array) -> list[str | None]:
    """Return the values of a column as text; nested values as JSON."""
    return [_text(value) for value in json_values(column)]


def csv_line(fields: Iterable[str | None]) -> str:
    """Return a record, without a line end. NULL is an empty field; an empty text is `""`."""
    line = ",".join("" if field is None else _csv_field(field) for field in fields)
    return line or _csv_field("")  # an empty line would not count as a record


def _csv_field(text: str) -> str:
    if text and text == text.strip() and not any(sign in text for sign in ',"\r\n'):
        return text
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def _csv_lines(batch: pa.RecordBatch) -> Iterator[str]:
    columns = [texts(column) for column in batch.columns]
    return (csv_line(row) for row in zip(*columns, strict=True))


def _write_lines(
    sink: BinaryIO,
    batches: Iterable[pa.RecordBatch],
    lines: Callable[[pa.RecordBatch], Iterator[str]],
) -> None:
    for batch in batches:
        sink.write("".join(f"{line}\n" for line in lines(batch)).encode())


def _write_parquet(schema: pa.Schema, batches: Iterable[pa.RecordBatch], sink: BinaryIO) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    with parquet.ParquetWriter(sink, schema) as writer:
        buffered: list[pa.RecordBatch] = []
        for batch in batches:
            buffered.append(batch)
            if sum(part.num_rows for part in buffered) >= _GROUP:
                writer.write_table(pa.Table.from_batches(buffered, schema))
                buffered = []
        if buffered:
            writer.write_table(pa.Table.from_batches(buffered, schema))


def _write_arrow(schema: pa.Schema, batches: Iterable[pa.RecordBatch], sink: BinaryIO) -> None:
    import pyarrow as pa

    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)


# ── values


def _plain(type_: pa.DataType) -> pa.DataType:
    """Return the type with times as numbers: Python's times end with the year 9999, Spark's don't."""
    import pyarrow as pa
    from pyarrow import types

    if types.is_timestamp(type_):
        return pa.int64()
    if types.is_date32(type_):
        return pa.int32()
    if types.is_struct(type_):
        return pa.struct([field.with_type(_plain(field.type)) for field in type_])
    if types.is_map(type_):
        return pa.map_(_plain(type_.key_type), _plain(type_.item_type))
    if types.is_list(type_) or types.is_large_list(type_):
        list_type: pa.DataType = pa.list_(type_.value_field.with_type(_plain(type_.value_type)))
        return list_type
    return type_


def _converter(type_: pa.DataType) -> Convert | None:
    """Return the conversion to JSON of `to_pylist` values of a plain type; None if none is needed."""
    from pyarrow import types

    converters: tuple[tuple[Callable[[Any], bool], Callable[[Any], Convert]], ...] = (
        (types.is_timestamp, lambda t: _timestamp("Z" if t.tz is not None else "")),
        (types.is_date32, lambda t: _date),
        (types.is_decimal, lambda t: lambda value: format(value, "f")),
        (types.is_float32, lambda t: _float32),
        (types.is_floating, lambda t: _float),
        (_is_binary, lambda t: lambda value: base64.b64encode(value).decode()),
        (types.is_struct, _struct),
        (types.is_map, _map),
        (types.is_list, _list),
        (types.is_large_list, _list),
    )
    return next((make(type_) for matches, make in converters if matches(type_)), None)


def _is_binary(type_: Any) -> bool:
    from pyarrow import types

    return bool(types.is_binary(type_) or types.is_large_binary(type_))


def _or_null(type_: Any) -> Convert:
    convert = _converter(type_)
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _struct(type_: Any) -> Convert:
    fields = [(field.name, _or_null(field.type)) for field in type_]
    return lambda value: {name: convert(value[name]) for name, convert in fields}


def _map(type_: Any) -> Convert:
    key, item = _or_null(type_.key_type), _or_null(type_.item_type)
    return lambda value: {_text(key(k)): item(v) for k, v in value}


def _list(type_: Any) -> Convert:
    convert = _or_null(type_.value_type)
    return lambda value: [convert(item) for item in value]


def _float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _float32(value: float) -> float | str:
    """Return the number with the fewest digits that still identify the float32 value."""
    import numpy as np

    return _float(float(str(np.float32(value))))


def _date(days: int) -> str:
    return _moment(days * _DAY)[0]


def _timestamp(zone: str) -> Convert:
    def convert(micros: int) -> str:
        date, time = _moment(micros)
        return f"{date}T{time}{zone}"

    return convert


def _moment(micros: int) -> tuple[str, str]:
    """Return date and time from microseconds since 1970. A year of more than four digits has a sign."""
    cycles = 0
    if not -62_135_596_800_000_000 <= micros < 253_402_300_800_000_000:
        cycles = micros // (_CYCLE * _DAY)
        micros -= cycles * _CYCLE * _DAY
    date, _, time = (_EPOCH + timedelta(microseconds=micros)).replace(tzinfo=None).isoformat().partition("T")
    if cycles:
        year = int(date[:4]) + 400 * cycles
        date = f"{year:+05}{date[4:]}" if not 0 <= year <= 9999 else f"{year:04}{date[4:]}"
    return date, time


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return _encode(value)


def table_lines(
    names: Sequence[str],
    right: Sequence[bool],
    rows: Iterable[Sequence[str | None]],
    *,
    color: bool = False,
) -> Iterator[str]:
    """Yield the lines of a table as the rows arrive; the first rows decide the widths.

    `right`: whether a column is right-aligned. None in a row is NULL."""
    paint = Paint(color)
    cells = ([_cell(value) for value in row] for row in rows)
    first = list(islice(cells, _ROWS_MEASURED))
    head = [_cell(name) for name in names]
    widths = [max(len(row[i]) for row in (head, *first)) for i in range(len(head))]
    yield paint(_line(head, widths, right), "bold")
    for row in chain(first, cells):
        yield _line(row, widths, right)


def _cell(value: str | None) -> str:
    return "NULL" if value is None else cut(safe(value), _CELL)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = [
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(parts).rstrip()
