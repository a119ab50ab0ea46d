"""Decodes Protobuf records that Google's library has written, bare and in the registry's wire format."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass

from mzplan.connectors.formats import protobuf_schema
from mzplan.connectors.formats.decoder import RecordDecoder, SchemaError, UnknownError
from mzplan.connectors.formats.protobuf_decoder import ProtobufRecords, protobuf_readable
from mzplan.connectors.formats.protobuf_schema import ProtocError, definitions
from mzplan.connectors.formats.protobuf_values import column_types
from mzplan.endpoints.arrow import arrow_schema
from mzplan.schema.columns import Column, parse_columns

MONEY = 'syntax = "proto3"; package shop; message Money { int64 units = 1; int32 nanos = 2; }'
ORDER = """
syntax = "proto3"; package shop;
import "common/money.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Order {
  int64 id = 1; optional string note = 2; Money amount = 3; google.protobuf.Timestamp at = 4;
  map<string, int32> counts = 5; map<int64, Money> prices = 6; repeated string tags = 7;
  enum State { NEW = 0; PAID = 1; } State state = 8; repeated Line lines = 9;
  oneof paid_by { string card = 10; bool cash = 11; } google.protobuf.Int64Value points = 12;
  uint64 big = 13; uint32 small = 14; bytes raw = 15; double ratio = 16; float part = 17; Order parent = 18;
  sint32 delta = 19; fixed64 hash = 20;
  message Line { string sku = 1; int32 count = 2; }
}
message Customer { int64 id = 1; }
"""
TEXTS = (("common/money.proto", MONEY), ("order.proto", ORDER))


class Known:
    """Schemas by id, from 1."""

    def __init__(self, *schemas: Mapping[str, str]):
        self.schemas = schemas

    def texts(self, id_: int) -> Mapping[str, str]:
        if not 0 < id_ <= len(self.schemas):
            raise UnknownError(f"its schema {id_} is not in connection.reg")
        return self.schemas[id_ - 1]


def message(name: str = "shop.Order", texts: Any = TEXTS, **fields: Any) -> bytes:
    class_ = GetMessageClass(definitions(texts).message(name))
    return bytes(ParseDict(fields, class_(), descriptor_pool=class_.DESCRIPTOR.file.pool).SerializeToString())


def wire(data: bytes, id_: int = 1, place: bytes = b"\0") -> bytes:
    return struct.pack(">bI", 0, id_) + place + data


def decode(ddl: str, *records: bytes | None, **more: Any) -> tuple[list[Any], list[str | None]]:
    wanted = pa.struct(list(arrow_schema(parse_columns(ddl))))
    given = {"texts": TEXTS, "message": "shop.Order", **more}
    found = RecordDecoder(ProtobufRecords(wanted=wanted, **given)).decode(pa.array(records, pa.binary()))
    found.validate(full=True)
    return found.field("r").to_pylist(), found.field("e").to_pylist()


@pytest.mark.parametrize(
    ("column", "field", "value"),
    [
        ("id BIGINT", 7, 7),
        ("id DECIMAL(20,0)", 7, Decimal(7)),
        ("id DOUBLE", 7, 7.0),
        ("note STRING", "Zoë", "Zoë"),
        ("amount STRUCT<units: BIGINT, nanos: INT>", {"units": 3}, {"units": 3, "nanos": 0}),
        ("amount STRUCT<nanos: INT, gone: STRING>", {"units": 3}, {"nanos": 0, "gone": None}),
        ("at TIMESTAMP", "1969-12-31T23:59:59.999999Z", datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)),
        ("counts MAP<STRING, INT>", {"a": 1}, [("a", 1)]),
        ("prices MAP<BIGINT, STRUCT<units: BIGINT>>", {"5": {"units": 2}}, [(5, {"units": 2})]),
        ("tags ARRAY<STRING>", ["a", "b"], ["a", "b"]),
        ("state STRING", "PAID", "PAID"),
        ("state INT", "PAID", 1),
        ("state STRING", 9, "9"),  # a number that a later version of the definition names
        ("lines ARRAY<STRUCT<sku: STRING>>", [{"sku": "x"}], [{"sku": "x"}]),
        ("cash BOOLEAN", True, True),
        ("points BIGINT", 0, 0),
        ("big DECIMAL(20,0)", str(2**64 - 1), Decimal(2**64 - 1)),
        ("big BIGINT", "12", 12),
        ("small BIGINT", 2**32 - 1, 2**32 - 1),
        ("raw BINARY", "AP8=", b"\0\xff"),
        ("ratio DOUBLE", 0.5, 0.5),
        ("part FLOAT", 0.5, 0.5),
        ("parent STRUCT<id: BIGINT, parent: STRUCT<id: BIGINT>>", {"id": 1}, {"id": 1, "parent": None}),
        ("delta INT", -3, -3),
        ("hash DECIMAL(20,0)", "5", Decimal(5)),
    ],
)
def test_a_value_is_read_into_its_column(column: str, field: Any, value: Any) -> None:
    name = column.partition(" ")[0]
    rows, reasons = decode(column, message(**{name: field}))
    assert (rows, reasons) == ([{name: value}], [None])


def test_without_a_value_a_field_is_null_only_if_its_definition_says_so() -> None:
    ddl = "id BIGINT, note STRING, amount STRUCT<units: BIGINT>, tags ARRAY<STRING>, counts MAP<STRING, INT>"
    ddl += ", state STRING, card STRING, points BIGINT, gone STRING"
    rows, reasons = decode(ddl, message(), None)
    empty = {"id": 0, "note": None, "amount": None, "tags": [], "counts": [], "state": "NEW", "card": None}
    assert rows == [{**empty, "points": None, "gone": None}, None] and reasons == [None, None]


def test_a_record_that_cannot_be_read_says_why_and_leaves_the_others() -> None:
    good, large = message(id=1, big="1"), message(id=2, big=str(2**63))
    rows, reasons = decode("id BIGINT, big BIGINT", good, b"\xff\xff", large, good)
    assert rows == [{"id": 1, "big": 1}, None, None, {"id": 1, "big": 1}]
    assert reasons == [None, "the record doesn't match the message shop.Order", "big is not a BIGINT", None]


def test_a_framed_record_names_its_schema_and_its_message() -> None:
    named = {"common/money.proto": MONEY, "": ORDER}
    # The second schema has the messages in another order, and another name for `note`.
    other = 'syntax = "proto3"; package shop; message Customer {} '
    other += "message Order { int64 id = 1; string memo = 2; }"
    more = {"schemas": Known(named, {"": other}, {"": "nonsense"}), "latest_id": 1}
    records = [
        wire(message(id=1, note="a")),
        wire(message(id=2), place=b"\x02\x00"),  # one level, the first message
        wire(message("shop.Customer", id=3), place=b"\x02\x02"),
        wire(message(id=4, note="b"), 2, b"\x02\x02"),
        wire(message("shop.Order.Line", sku="x"), place=b"\x04\x00\x00"),
        wire(message(id=5), place=b"\x02\x08"),
        wire(message(id=6), 3),
        wire(message(id=7), 4),
        message(id=8),
        b"\0\0\0",
    ]
    rows, reasons = decode("id BIGINT, note STRING", *records, **more)
    found = [row and (row["id"], row["note"]) for row in rows]
    assert found == [(1, "a"), (2, None), None, (4, "b"), *[None] * 6]
    unframed = "the record doesn't begin with a schema id and a message, as Protobuf from a registry does"
    assert reasons == [
        None,
        None,
        "the record is a shop.Customer, not a shop.Order",
        None,
        "the record is a shop.Order.Line, not a shop.Order",
        "its schema 1 has no message at 4",
        'schema 3: it is not valid Protobuf: line 1:1: Expected top-level statement (e.g. "message")',
        "its schema 4 is not in connection.reg",
        unframed,
        unframed,
    ]


def test_a_broken_latest_definition_is_no_fault_of_the_records() -> None:
    with pytest.raises(RuntimeError, match=r"the latest definition: it has no message shop.Gone"):
        decode("id BIGINT", message(id=1), message="shop.Gone")


@pytest.mark.parametrize(
    ("columns", "wrong"),
    [
        ("id STRING", "its field id is int64, but the column is STRING"),
        ("big INT", "its field big is uint64, but the column is INT"),
        ("at BIGINT", "its field at is google.protobuf.Timestamp, but the column is BIGINT"),
        ("tags STRING", "its field tags is repeated string, but the column is STRING"),
        ("counts ARRAY<INT>", "its field counts is map<string, int32>, but the column is ARRAY"),
        ("state DATE", "its field state is shop.Order.State, but the column is DATE"),
        ("lines ARRAY<STRUCT<sku: INT>>", "its field lines[].sku is string, but the column is INT"),
    ],
)
def test_a_column_that_does_not_fit_its_field_is_refused(columns: str, wrong: str) -> None:
    assert protobuf_readable(TEXTS, "shop.Order", parse_columns(columns)) == ([wrong], [])


def test_definitions_that_cannot_be_used_are_explained() -> None:
    columns = [Column("x", "INT")]

    def said(text: str, message: str = "", name: str = "a.proto") -> Sequence[str]:
        return protobuf_readable(((name, text),), message, columns)[0]

    three = 'syntax = "proto3"; '
    assert said(three + "message A { foo x = 1; }")[0].endswith('a.proto:1:32: "foo" is not defined')
    assert said(three + 'import "b/c.proto";')[0].endswith("b/c.proto: File not found")
    assert said(three) == ["it defines no message"]
    assert said(three + "message Aa { } message B { }", "Ab") == ['it has no message Ab: did you mean "Aa"?']
    for name in (
        "-o.proto",
        "../a.proto",
        "/a.proto",
        "a/../b.proto",
        "a",
        "-I.proto/../../x.proto",
        "x" * 300 + ".proto",
    ):
        with pytest.raises(SchemaError, match="can't be the name of a file"):
            definitions(((name, three),))


def test_every_field_has_a_column_type_that_reads_it() -> None:
    types = column_types(definitions(TEXTS).message("shop.Order"))
    assert (
        types["parent"] is None
        and types["big"] == "DECIMAL(20,0)"
        and types["small"] == "BIGINT"
        and types["at"] == "TIMESTAMP"
    )
    columns = [Column(name, type_) for name, type_ in types.items() if type_]
    assert len(columns) == 19 and protobuf_readable(TEXTS, "shop.Order", columns) == ([], [])


TWO = """
syntax = "proto2"; package two;
message Two { required int64 id = 1; optional Kind kind = 2; repeated Kind kinds = 3; optional In in = 4;
  message In { optional int64 x = 1; } }
message Other { optional string id = 1; optional int64 kind = 2; optional Text in = 4; }
message Text { optional string x = 1; }
enum Kind { option allow_alias = true; A = 1; B = 2; OLD_A = 1; }
"""


def test_what_the_library_would_leave_out_is_malformed() -> None:
    more: dict[str, Any] = {"texts": (("two.proto", TWO),), "message": "two.Two"}

    def other(**fields: Any) -> bytes:
        return message("two.Other", more["texts"], **fields)

    good = message("two.Two", more["texts"], id=1, kind="OLD_A", kinds=["B"])
    nested = other(**{"in": {"x": "a"}})
    bad = [b"", other(id="text"), good + other(kind=7), good + b"\x18\x09", good + nested]
    ddl = "id BIGINT, kind STRING, kinds ARRAY<STRING>, in STRUCT<x: BIGINT>"
    rows, reasons = decode(ddl, good, *bad, **more)
    assert rows == [{"id": 1, "kind": "A", "kinds": ["B"], "in": None}, *[None] * 5]
    assert reasons == [None, *["the record doesn't match the message two.Two"] * 4, "in is not a STRUCT"]


def test_an_unknown_schema_is_looked_up_once() -> None:
    class Counting(Known):
        asked = 0

        def texts(self, id_: int) -> Mapping[str, str]:
            self.asked += 1
            return super().texts(id_)

    schemas = Counting()
    records = [wire(b"", 9, bytes([2, place])) for place in range(0, 40, 2)]
    decode("id BIGINT", *records, schemas=schemas, latest_id=1)
    assert schemas.asked == 1


def test_the_place_of_a_nested_message_may_count_maps_or_not() -> None:
    text = 'syntax = "proto3"; message O { message X {} map<string, int32> m = 1; message Y {} message Z {} }'
    found = definitions((("o.proto", text),))
    places = [found.names_at((0, place)) for place in range(5)]
    assert places == [{"O.X"}, {"O.Y"}, {"O.Y", "O.Z"}, {"O.Z"}, set()]


def test_protoc_runs_no_code_of_the_folder_and_gets_no_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("grpc_tools/protoc.py", "grpc_tools/__init__.py", "re.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("APP_PASSWORD", "hunter2")
    ran: list[Any] = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **more: ran.append(more) or run(*a, **more))
    text = 'syntax = "proto3"; import "confluent/meta.proto"; '
    text += 'message Once { int32 a = 1 [(confluent.field_meta).doc = "x"]; }'
    assert definitions((("once.proto", text),)).message("").full_name == "Once"
    assert not (tmp_path / "ran").exists() and "hunter2" not in repr(ran) and len(ran) == 1


def test_a_failure_of_protoc_is_no_fault_of_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    schemas = Known({"": 'syntax = "proto3"; message Late {}'})
    with monkeypatch.context() as hurried, pytest.raises(ProtocError, match="within"):
        hurried.setattr(protobuf_schema, "_SECONDS", 0.001)
        decode("id BIGINT", wire(b""), schemas=schemas, latest_id=7)
    odd = [{"": "\ud800"}, {"a.proto": "", "a.proto/b.proto": "", "": ""}]
    _, reasons = decode("id BIGINT", wire(b"", 1), wire(b"", 2), schemas=Known(*odd), latest_id=7)
    assert reasons == [
        "schema 1: it is not valid Unicode",
        'schema 2: "a.proto" is the name of a file and of a folder',
    ]


def test_column_types_of_any_definition_are_bounded() -> None:
    levels = [f"message M{i} {{ M{i + 1} a = 1; M{i + 1} b = 2; M{i + 1} c = 3; }}" for i in range(30)]
    text = f'syntax = "proto3"; {" ".join(levels)} message M30 {{ int32 x = 1; }}'
    types = column_types(definitions((("deep.proto", text),)).message("M0"))
    assert sum(len(type_ or "") for type_ in types.values()) < 100_000
