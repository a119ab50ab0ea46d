"""Encodes columns as Avro records. Columns that don't fit the schema are reported before the first row."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Decimal
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from mzplan.connectors.api.queries import Output
from mzplan.connectors.formats.avro_encoder import Encoder
from mzplan.connectors.formats.registry_fit import avro_writable


def logical(type_: str, name: str) -> dict[str, str]:
    return {"type": type_, "logicalType": name}


LINE_FIELDS = [{"name": "b", "type": "string"}, {"name": "a", "type": "int"}]
LINE = {"name": "line", "type": "record", "fields": LINE_FIELDS}
TAGS = {"type": "map", "values": ["null", "long"]}
ITEMS = {"type": "array", "items": LINE}
AMOUNT = {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 4}
EXACT = {"type": "fixed", "name": "exact", "size": 8, "logicalType": "decimal", "precision": 10, "scale": 2}
WALL = datetime.datetime(2026, 5, 3, 17, 30, 0, 123456)
AT = WALL.replace(tzinfo=datetime.UTC)
DECIMAL = pa.decimal128(10, 2)
LINES = pa.list_(pa.struct({"a": pa.int32(), "b": pa.string()}))
# The Avro type of each field, the column's type, its Arrow type, and a value.
COLUMNS: dict[str, tuple[Any, str, pa.DataType, Any]] = {
    "id": ("long", "INT", pa.int32(), 1),
    "amount": (["null", AMOUNT], "DECIMAL(10,2)", DECIMAL, Decimal("9.99")),
    "exact": (EXACT, "DECIMAL(10,2)", DECIMAL, Decimal("-0.01")),
    "at": (logical("long", "timestamp-micros"), "TIMESTAMP", pa.timestamp("us", "UTC"), AT),
    "wall": (logical("long", "local-timestamp-micros"), "TIMESTAMP_NTZ", pa.timestamp("us"), WALL),
    "day": (logical("int", "date"), "DATE", pa.date32(), WALL.date()),
    "color": ({"type": "enum", "name": "color", "symbols": ["red", "blue"]}, "STRING", pa.string(), "red"),
    "tags": (TAGS, "MAP<STRING,INT>", pa.map_(pa.string(), pa.int32()), {"a": 1, "b": None}),
    "lines": (["null", ITEMS], "ARRAY<STRUCT<a: INT, b: STRING>>", LINES, [{"a": 1, "b": "x"}]),
}
SCHEMA = {
    "type": "record",
    "name": "orders",
    "fields": [
        *({"name": name, "type": avro} for name, (avro, *_) in COLUMNS.items()),
        {"name": "note", "type": "string", "default": "none"},
        {"name": "more", "type": ["null", "string"]},
    ],
}
TYPES = {name: type_ for name, (_, type_, *_) in COLUMNS.items()}
ARROW = pa.struct({name: arrow for name, (_, _, arrow, _) in COLUMNS.items()})
ROW = {name: value for name, (*_, value) in COLUMNS.items()}


def problems(schema: Any, **types: str | None) -> list[str]:
    return avro_writable([json.dumps(schema)], [Output(name=name, type=t) for name, t in types.items()])


def encode(*rows: dict[str, Any] | None, schema: Any = SCHEMA) -> list[bytes | None]:
    keys = pa.array(["k"] * len(rows))
    batch = pa.RecordBatch.from_arrays([keys, pa.array(rows, ARROW)], names=["key", "value"])
    encoder = Encoder(schemas=[json.dumps(schema)], id=7, mark="mzplan[MZ059]")
    (made,) = encoder([batch])
    assert made.column(0).to_pylist() == ["k"] * len(rows)
    return made.column(1).to_pylist()  # type: ignore[no-any-return]


def test_encoded_rows_are_read_back_unchanged() -> None:
    assert problems(SCHEMA, **TYPES) == []
    empty = {**ROW, "amount": None, "tags": {}, "lines": None}
    one, nothing, two = encode(ROW, None, empty)
    assert one is not None and two is not None and nothing is None
    assert one[:5] == b"\0\0\0\0\x07"
    schema = fastavro.parse_schema(SCHEMA)
    filled = {"note": "none", "more": None}
    assert fastavro.schemaless_reader(io.BytesIO(one[5:]), schema, None) == ROW | filled
    assert fastavro.schemaless_reader(io.BytesIO(two[5:]), schema, None) == empty | filled


def test_milliseconds_are_never_cut_off() -> None:
    at, wall = logical("long", "timestamp-millis"), logical("long", "local-timestamp-millis")
    inner = {"type": "record", "name": "inner", "fields": [{"name": "wall", "type": ["null", wall]}]}
    nested = {"type": "array", "items": inner}
    fields = [{"name": "at", "type": at}, {"name": "all", "type": ["null", nested]}]
    schema = {"type": "record", "name": "ticks", "fields": fields}
    wall_type = pa.struct({"wall": pa.timestamp("us")})
    type_ = pa.struct({"at": pa.timestamp("us", "UTC"), "all": pa.list_(wall_type)})
    far = 327_335_000_000_000_000  # in the year 12342

    def ticks(at: int, wall: int | None) -> bytes:
        rows = pa.array([{"at": at, "all": [{"wall": wall}, None][:1]}], type_)
        (made,) = Encoder(schemas=[json.dumps(schema)], id=7, mark="m")(
            [pa.RecordBatch.from_arrays([rows], names=["value"])]
        )
        return bytes(made.column(0)[0].as_py())

    plain = {**schema, "fields": json.loads(json.dumps(fields).replace("timestamp", "x"))}
    for value in (1_000, -1_000, far):
        read_row: Any = fastavro.schemaless_reader(io.BytesIO(ticks(value, value)[5:]), plain, None)
        assert read_row == {"at": value // 1000, "all": [{"wall": value // 1000}]}
    ticks(0, None)
    for row, name in (((1_001, 0), "at"), ((0, -1), "wall")):
        with pytest.raises(RuntimeError, match=f": {name} has microseconds in the row"):
            ticks(*row)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": None}, "orders.id is long in the schema, but NULL in the row"),
        ({"color": "pink"}, "orders.color is one of red, blue in the schema, but str in the row"),
        ({"tags": None}, "orders.tags is map in the schema, but NULL in the row"),
    ],
)
def test_error_of_an_unfit_row_shows_no_values(change: dict[str, Any], said: str) -> None:
    with pytest.raises(RuntimeError) as problem:
        encode({**ROW, **change})
    text, _, fix = str(problem.value).partition(". Fix: ")
    assert text == f"mzplan[MZ059]: a row can't be written with schema 7: {said}"
    assert "select" in fix and "restart the sink" in fix


@pytest.mark.parametrize(
    ("name", "type_", "avro"),
    [
        ("id", "DOUBLE", "long"),
        ("id", "INTERVAL DAY TO SECOND", "long"),
        ("amount", "DECIMAL(12,2)", "decimal(12,4)"),
        ("at", "TIMESTAMP_NTZ", "timestamp-micros (long)"),
        ("tags", "MAP<INT,INT>", "map"),
        ("lines", "ARRAY<STRUCT<a: INT>>", "array"),
    ],
)
def test_lossy_column_types_are_refused(name: str, type_: str, avro: str) -> None:
    expected = [f"its field {name} is {avro}, but the sink writes {type_}"]
    assert problems(SCHEMA, **{**TYPES, name: type_}) == expected


def test_fields_without_a_column_and_columns_without_a_field() -> None:
    types = {name: type_ for name, type_ in TYPES.items() if name != "id"}
    assert problems(SCHEMA, **types, other="INT") == [
        "it has no field other, which the sink writes",
        "its field id has no default, but the sink doesn't write it",
    ]
    # If only Spark knows a column's type, the check comes when the query starts.
    assert problems(SCHEMA, **{**TYPES, "id": None}) == []


def test_a_schema_that_is_no_record_or_has_a_lossy_union_is_refused() -> None:
    assert problems("string", id="INT") == ["its schema is string, not a record"]
    assert problems({"type": "nonsense"}, id="INT")[0].startswith("its schema is not an Avro schema")
    either = {"type": "record", "name": "r", "fields": [{"name": "id", "type": ["null", "float", "double"]}]}
    assert problems(either, id="DOUBLE") == ["its field id is float or double, but the sink writes DOUBLE"]
