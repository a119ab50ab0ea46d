"""Decodes records in the registry's wire format, which fastavro has written."""

from __future__ import annotations

import io
import json
import struct
import time as clock
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest

from mzplan.connectors.formats.avro_decoder import AvroRecords
from mzplan.connectors.formats.avro_schema import parse_avro
from mzplan.connectors.formats.decoder import RecordDecoder, SchemaError, UnknownError
from mzplan.endpoints.arrow import arrow_schema
from mzplan.schema.columns import parse_columns

Schema = Any


class Known:
    """Schemas by id, from 1."""

    def __init__(self, *schemas: Schema):
        self.schemas = list(schemas)
        self.asked: list[int] = []

    def texts(self, id_: int) -> dict[str, str]:
        self.asked.append(id_)
        if not 0 < id_ <= len(self.schemas):
            raise UnknownError(f"its schema {id_} is not in connection.reg")
        found = self.schemas[id_ - 1]
        texts = [json.dumps(one) for one in (found if isinstance(found, tuple) else (found,))]
        return {str(i): text for i, text in enumerate(texts)}


def wire(schema: Schema, value: Any, id_: int = 1) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return struct.pack(">bI", 0, id_) + out.getvalue()


def record(name: str = "r", /, **fields: Schema) -> Schema:
    return {"type": "record", "name": name, "fields": [{"name": k, "type": v} for k, v in fields.items()]}


def decode(
    ddl: str, schemas: Known, *records: bytes | None, latest: Schema = None
) -> tuple[list[Any], list[str | None]]:
    wanted = pa.struct(list(arrow_schema(parse_columns(ddl))))
    newest = (json.dumps(latest),) if latest is not None else ()
    avro = AvroRecords(wanted=wanted, schemas=schemas, latest=newest)
    found = RecordDecoder(avro).decode(pa.array(records, pa.binary()))
    found.validate(full=True)
    return found.field("r").to_pylist(), found.field("e").to_pylist()


def logical(type_: str, logical_type: str, /, **more: Any) -> Schema:
    return {"type": type_, "logicalType": logical_type, **more}


def connect(type_: str, debezium: str) -> Schema:
    return {"type": type_, "connect.name": f"io.debezium.time.{debezium}"}


LOCAL = datetime(2026, 5, 3, 1)
MOMENT = datetime(2026, 5, 3, 17, 30, 1, 234567, tzinfo=UTC)
BEFORE_1970 = datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)
UID = UUID("12345678-1234-5678-1234-567812345678")

DATE, MILLIS = logical("int", "date"), logical("long", "timestamp-millis")
LOCAL_MICROS, NANOS = logical("long", "local-timestamp-micros"), logical("long", "timestamp-nanos")
TWO_PLACES = logical("bytes", "decimal", precision=10, scale=2)
MANY_DIGITS = Decimal("12345678901234567890123456789012345678")
FIXED_DECIMAL = logical("fixed", "decimal", name="d", size=8, precision=10, scale=2)
COLOR = {"type": "enum", "name": "e", "symbols": ["A", "B"]}
PAIR = record("in", a="int", b="string", c="int")

VALUES: list[tuple[Schema, Any, str, Any]] = [
    ("boolean", True, "BOOLEAN", True),
    ("int", -7, "INT", -7),
    ("int", 7, "DOUBLE", 7.0),
    ("long", 1 << 60, "BIGINT", 1 << 60),
    ("long", 1 << 60, "DECIMAL(20,0)", Decimal(1 << 60)),
    ("float", 0.5, "FLOAT", 0.5),
    ("double", 0.1, "DOUBLE", 0.1),
    ({"type": "string", "avro.java.string": "String"}, "Zoë", "STRING", "Zoë"),
    ("bytes", b"\x00\xff", "BINARY", b"\x00\xff"),
    ({"type": "fixed", "name": "f", "size": 2}, b"ab", "BINARY", b"ab"),
    (COLOR, "B", "STRING", "B"),
    (["null", "long"], 5, "BIGINT", 5),
    (["null", "int", "long", "double"], 5.5, "DOUBLE", 5.5),
    (TWO_PLACES, Decimal("-12.34"), "DECIMAL(12,4)", Decimal("-12.3400")),
    (logical("bytes", "decimal", precision=38), MANY_DIGITS, "DECIMAL(38,0)", MANY_DIGITS),
    (FIXED_DECIMAL, Decimal("1.50"), "DECIMAL(10,2)", Decimal("1.50")),
    (logical("string", "uuid"), UID, "STRING", str(UID)),
    (logical("fixed", "uuid", name="u", size=16), UID.bytes, "STRING", str(UID)),
    (DATE, date(1960, 2, 29), "DATE", date(1960, 2, 29)),
    (DATE, date(1970, 1, 3), "INT", 2),
    (MILLIS, BEFORE_1970, "TIMESTAMP", BEFORE_1970),
    (logical("long", "timestamp-micros"), MOMENT, "TIMESTAMP", MOMENT),
    (NANOS, 1_001, "TIMESTAMP", datetime(1970, 1, 1, 0, 0, 0, 1, UTC)),
    (NANOS, -1, "TIMESTAMP", datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)),
    (LOCAL_MICROS, LOCAL.replace(microsecond=5), "TIMESTAMP_NTZ", LOCAL.replace(microsecond=5)),
    (logical("int", "time-millis"), time(1, 2, 3, 4000), "STRING", "01:02:03.004"),
    (logical("long", "time-micros"), time(1, 2, 3, 4), "STRING", "01:02:03.000004"),
    (connect("int", "Date"), 1, "DATE", date(1970, 1, 2)),
    (connect("long", "MicroTimestamp"), 5, "TIMESTAMP_NTZ", datetime(1970, 1, 1, 0, 0, 0, 5)),
    (connect("string", "ZonedTimestamp"), "2026-05-03T17:30:01.234567Z", "TIMESTAMP", MOMENT),
    ({"type": "array", "items": ["null", "int"]}, [1, None], "ARRAY<BIGINT>", [1, None]),
    (["null", {"type": "array", "items": "int"}], None, "ARRAY<INT>", None),
    ({"type": "map", "values": "double"}, {"a": 1.5}, "MAP<STRING,DOUBLE>", [("a", 1.5)]),
    (PAIR, {"a": 1, "b": "x", "c": 2}, "STRUCT<c: INT,a: BIGINT,z: DATE>", {"c": 2, "a": 1, "z": None}),
    (["null", record("in", a=["null", "int"])], None, "STRUCT<a: INT>", None),
]


@pytest.mark.parametrize(("type_", "value", "column", "expected"), VALUES)
def test_a_value_is_read_into_its_column(type_: Schema, value: Any, column: str, expected: Any) -> None:
    schema = record(x=type_)
    rows, reasons = decode(f"x {column}", Known(schema), wire(schema, {"x": value}))
    assert (rows, reasons) == ([{"x": expected}], [None])


@pytest.mark.parametrize(
    ("type_", "column", "named"),
    [
        ("long", "INT", "long"),
        (["null", "string", "int"], "STRING", "string or int"),
        (["string", COLOR], "STRING", "string or enum"),
        (logical("bytes", "decimal", precision=10, scale=4), "DECIMAL(10,2)", "decimal(10,4)"),
        (TWO_PLACES, "BINARY", "decimal(10,2)"),
        (MILLIS, "TIMESTAMP_NTZ", "timestamp-millis (long)"),
        ({"type": "map", "values": "int"}, "STRUCT<a: INT>", "map"),
    ],
)
def test_a_type_that_would_lose_values_is_refused(type_: Schema, column: str, named: str) -> None:
    _, (reason,) = decode(f"x {column}", Known(record(x=type_)), struct.pack(">bI", 0, 1))
    assert reason == f"schema 1: its field x is {named}, but the column is {column.partition('<')[0]}"


@pytest.mark.parametrize(
    ("name", "latest", "aliases", "is_read"),
    [
        ("old.Created", "shop.Created", [], True),
        ("shop.Cancelled", "shop.Created", [], False),
        ("shop.Cancelled", "shop.Created", ["Cancelled"], True),
        ("old.Cancelled", "shop.Created", ["old.Cancelled"], True),
        ("old.Cancelled", "shop.Created", ["Cancelled"], False),
    ],
)
def test_a_record_of_another_name_is_malformed(
    name: str, latest: str, aliases: list[str], is_read: bool
) -> None:
    """In Avro, names match without their namespaces, or the full name is an alias of the reader."""
    other = record(name, reason="string")
    own = record(latest, id="long")
    own["fields"][0]["default"] = 0
    own["aliases"] = aliases
    rows, (reason,) = decode("id BIGINT", Known(other), wire(other, {"reason": "late"}), latest=own)
    said = f"schema 1: it is the record {name}, and the latest schema's is {latest}"
    assert (rows, reason) == ([{"id": 0}], None) if is_read else (rows, reason) == ([None], said)
    nested, value = record(x=other), {"x": {"reason": "late"}}
    rows, (reason,) = decode("x STRUCT<id: BIGINT>", Known(nested), wire(nested, value), latest=record(x=own))
    assert rows == [{"x": {"id": 0}} if is_read else None] and (reason is None) == is_read


def test_a_malformed_record_is_returned_with_the_reason() -> None:
    schema = record(id="long", small="int", price=logical("bytes", "decimal", precision=20, scale=2))
    other, union = record(id="string", small="boolean"), ["null", "int"]
    good = wire(schema, {"id": 7, "small": 1, "price": Decimal("1.00")})
    no_wire = "the record doesn't begin with a schema id, as Avro from a registry does"
    unfit = wire(schema, {"id": 1, "small": 300, "price": Decimal("12345.00")})
    malformed = [
        (b"", no_wire),
        (b'{"id": 1}', no_wire),
        (good[:4], no_wire),
        (struct.pack(">bI", 0, 77) + good[5:], "its schema 77 is not in connection.reg"),
        (good[:-1], "the record doesn't match its schema 1"),
        (good + b"\x00", "the record is longer than its schema 1 says"),
        (unfit, "small is not a TINYINT, price is not a DECIMAL(6,2)"),
        (
            wire(other, {"id": "x", "small": True}, 2),
            "schema 2: its field id is string, but the column is BIGINT; "
            "its field small is boolean, but the column is TINYINT",
        ),
        (wire(union, 5, 3), "schema 3: its schema is union, not a record"),
        (struct.pack(">bI", 0, 4) + b"\x00", "schema 4: its schema is not an Avro schema: "),
    ]
    known = Known(schema, other, union, {"type": "nonsense"})
    records = [good, None, *(record for record, _ in malformed), good]
    rows, reasons = decode("id BIGINT, small TINYINT, price DECIMAL(6,2)", known, *records)
    assert [row and row["id"] for row in rows] == [7, *[None] * 11, 7]
    assert reasons[:11] == [None, None, *(reason for _, reason in malformed[:-1])]
    assert (reasons[11] or "").startswith(malformed[-1][1]) and reasons[12] is None


def test_names_and_references() -> None:
    """A schema in a namespace that uses a type twice, a type of another subject, and itself."""
    address = {**record("Address", city="string"), "namespace": "org.shop"}
    order = record("org.shop.Order", a="org.shop.Address", b=["null", "Address"], child=["null", "Order"])
    value = {"a": {"city": "Rome"}, "b": {"city": "Oslo"}, "child": None}
    names: dict[str, Any] = {}
    fastavro.parse_schema(address, named_schemas=names)
    out, parsed = io.BytesIO(), fastavro.parse_schema(order, named_schemas=names)
    fastavro.schemaless_writer(out, parsed, {**value, "child": value})
    rows, reasons = decode(
        "a STRUCT<city: STRING>, b STRUCT<city: STRING>, child STRUCT<b: STRUCT<city: STRING>>",
        Known((address, order)),
        struct.pack(">bI", 0, 1) + out.getvalue(),
    )
    assert reasons == [None]
    assert rows == [{"a": {"city": "Rome"}, "b": {"city": "Oslo"}, "child": {"b": {"city": "Oslo"}}}]


def test_deeply_nested_record_is_malformed() -> None:
    """fastavro's compiled reader would end the process."""
    chain = record("n", id="int", next=["null", "n"])
    endless = record("e", id="int", next={"type": "array", "items": {"type": "map", "values": ["int", "e"]}})
    endless["fields"].append({"name": "again", "type": "e"})
    far = record("n", id="int", next=record("line", of={"type": "array", "items": ["null", "n"]}))

    def nested(depth: int) -> bytes:
        return struct.pack(">bI", 0, 1) + b"\x02\x02" * depth + b"\x02\x00"

    endless_record = struct.pack(">bI", 0, 2) + bytes(9)
    far_record = struct.pack(">bI", 0, 3) + b"\x02\x02\x02" * 100_000
    records = [nested(20), nested(5_000), endless_record, nested(100_000), far_record, nested(0)]
    rows, reasons = decode("id INT", Known(chain, endless, far), *records)
    deep = "the record is nested too deep, by its schema"
    assert reasons[1:5] == [f"{deep} 1", "the record doesn't match its schema 2", f"{deep} 1", f"{deep} 3"]
    assert [row and row["id"] for row in rows] == [1, None, None, None, None, 1]


def test_a_renamed_field_is_found_by_its_alias() -> None:
    """The latest schema has the alias, also in a nested record."""
    old = record(client="string", who=["null", record("who", first="string")], n="int")
    who = record("who", name="string")
    new = record(customer="string", who=["null", who], number="int")
    who["fields"][0] |= {"aliases": ["first"]}
    new["fields"][0] |= {"aliases": ["buyer", "client"], "default": "none"}
    new["fields"][2] |= {"aliases": ["n"]}
    rows, reasons = decode(
        "customer STRING, who STRUCT<name: STRING>, number TINYINT",
        Known(old, new),
        wire(old, {"client": "ann", "who": {"first": "Ann"}, "n": 1}),
        wire(new, {"customer": "bob", "who": {"name": "Bob"}, "number": 2}, 2),
        wire(old, {"client": "ann", "who": None, "n": 1000}),
        latest=new,
    )
    ann, bob = ({"customer": name, "who": {"name": name.title()}} for name in ("ann", "bob"))
    assert rows == [{**ann, "number": 1}, {**bob, "number": 2}, None]
    assert reasons == [None, None, "number is not a TINYINT"]


# --- records and schemas that would take endless time or memory


@pytest.mark.parametrize("name", ["record", "union", "fixed", "int"])
def test_schema_with_the_name_of_an_avro_type(name: str) -> None:
    """Formerly, looking up the name never ended."""
    rows, reasons = decode("id INT", Known(record(name, id="int")), struct.pack(">bI", 0, 1) + b"\x02")
    assert (rows, reasons) == ([{"id": 1}], [None])
    of = {"name": name, "symbols": ["A"], "size": 1, "fields": []}
    for type_ in ("enum", "fixed", "record"):
        schema = parse_avro([json.dumps(record(x={**of, "type": type_}, y=["null", name]))])
        assert schema.root.fields["x"].node.type == type_
        assert schema.root.fields["y"].node.type == "union"


def test_schema_that_claims_to_be_parsed() -> None:
    """fastavro would not check the names in such a schema, which could refer to each other without end."""
    hints = {"__fastavro_parsed": True, "__named_schemas": {"a": "b", "b": "a"}}
    with pytest.raises(SchemaError, match="not an Avro schema: a"):
        parse_avro([json.dumps({**record(x="a"), **hints})])


def test_a_huge_number_is_malformed_and_takes_no_time() -> None:
    """A decimal may have leading bytes that don't change its value."""
    schema = record(n=logical("bytes", "decimal", precision=38, scale=2))
    values = {
        b"\x05" * (8 << 20): None,
        b"\xff" * 500 + b"\xfe": Decimal("-0.02"),
        bytes(500) + b"\x01": Decimal("0.01"),
        (10**38 - 1).to_bytes(16, "big"): Decimal("9" * 36 + ".99"),
        b"\xff" + b"\x05" * 16: None,
        b"": Decimal(0),
    }
    began = clock.monotonic()
    records = [wire(record(n="bytes"), {"n": value}) for value in values]
    rows, reasons = decode("n DECIMAL(38,2)", Known(schema), *records)
    assert [row and row["n"] for row in rows] == list(values.values())
    unfit = "n is not a DECIMAL(38,2)"
    assert reasons == [unfit if value is None else None for value in values.values()]
    # Integers of a schema that the Python reader reads.
    begin, chain = struct.pack(">bI", 0, 1), record("n", id="int", next=["null", "n"])
    _, reasons = decode("id INT", Known(chain), begin + b"\xff" * (1 << 20), begin + b"\x02\x00")
    assert reasons == ["the record doesn't match its schema 1", None]
    assert clock.monotonic() - began < 5.0


def doubled(last: Schema, **more: Any) -> Schema:
    """Return thirty nested records, each with two of the next: a billion values of the last one."""
    schema = record("R30", v=last)
    for level in range(29, -1, -1):
        fields = [{"name": "a", "type": schema, **more}, {"name": "b", "type": f"R{level + 1}", **more}]
        schema = {"type": "record", "name": f"R{level}", "fields": fields}
    return schema


def items(of: Schema) -> Schema:
    return record(id="int", x={"type": "array", "items": of})


LONG_TEXT = {"name": "y", "type": "string", "default": "y" * 9_999}
TEXTS = {"type": "array", "items": {**record("s"), "fields": [LONG_TEXT]}}
LONG_DEFAULTS = {"name": "x", "type": TEXTS, "default": [{}] * 11}


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (items("null"), "an array whose items take no bytes"),
        (items(record("e", of=record("f", x="null"))), "an array whose items take no bytes"),
        (items({"type": "fixed", "name": "f", "size": 0}), "an array whose items take no bytes"),
        ((record("f", x="int"), record("g", x="f"), record("f"), items("f")), "items take no bytes"),
        (record(id="int", **{f"x{i}": "null" for i in range(17)}), "more than 16 values that take no bytes"),
        (doubled("null"), "more than 16 values that take no bytes"),
        (record(**{f"r{i}": record(f"r{i}", x=f"r{i - 1}" if i else "int") for i in range(3_000)}), "deep"),
        (record(n=[1]), "not an Avro schema"),
        ({**record(), "fields": [{"name": [1], "type": "int"}]}, "a field whose name is not text"),
        (record(n={**doubled("int", default={})}), "more than 100,000 values"),
        ({**record(), "fields": [LONG_DEFAULTS]}, "more than 100,000 values"),
    ],
)
def test_schema_that_multiplies_values_is_refused(schema: Schema, said: str) -> None:
    ended = struct.pack(">bI", 0, 1) + b"\x02" + b"\xfe" * 8 + b"\x7f\x00"
    rows, reasons = decode("id INT", Known(schema), ended)
    assert rows == [None] and said in (reasons[0] or "")


def test_similar_harmless_schemas_are_accepted() -> None:
    """A recursive record with empty defaults, and a record with few values that take no bytes."""
    tree = record("t", id="int", none="null", empty=record("e"), map={"type": "map", "values": "null"})
    children = {"type": "array", "items": "t"}
    for name, type_, default in (("children", children, []), ("next", ["null", "t"], None)):
        tree["fields"].append({"name": name, "type": type_, "default": default})
    begin = struct.pack(">bI", 0, 1)
    rows, reasons = decode("id INT", Known(tree), begin + b"\x02\x00\x00\x00", latest=tree)
    assert (rows, reasons) == ([{"id": 1}], [None])


def test_registry_text_in_a_reason_is_safe_and_short() -> None:
    class Named(Known):
        def texts(self, id_: int) -> dict[str, str]:
            raise UnknownError("its schema 1 is of type \ud800" + "x" * 9_999)

    union = [{"type": "fixed", "name": f"f{i}", "size": 1} for i in range(999)]
    _, reasons = decode("id INT", Named(), bytes(9))
    odd = Known(record(id="\ud800"), record(id=union))
    _, others = decode("id INT", odd, bytes(4) + b"\1", bytes(4) + b"\2")
    said = [reason or "" for reason in (*reasons, *others)]
    assert all(len(reason) <= 500 and reason.isprintable() for reason in said)
    assert "type \\ud800xx" in said[0] and "\\ud800" in said[1]
    assert said[2].startswith("schema 2: its field id is fixed or fixed")
