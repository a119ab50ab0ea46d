"""Formats and included columns, on a real broker and real files: what becomes of records, good and bad."""

from __future__ import annotations

import base64
import datetime
import gzip
import json
import os
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from mzplan.connectors.formats.debezium import Debezium, with_envelope
from mzplan.connectors.formats.envelopes import Envelope
from mzplan.connectors.formats.parsers import ParsedRecord, parser_of
from mzplan.connectors.formats.records import Records, check_records
from mzplan.schema.columns import Column, parse_columns
from mzplan.schema.description import Description
from tests.integration.spark_lab import Lab
from tests.support import Make, eventually

PEOPLE = "id BIGINT NOT NULL, name VARCHAR(5), born DATE"
AT = datetime.datetime.fromtimestamp(1_700_000_000.123)  # in the session of this process: local time


def rows(lab: Lab, source: Any) -> list[dict[str, Any]]:
    found = lab.collection(source).orderBy("_position").drop("_position").collect()
    return [row.asDict(recursive=True) for row in found]


def test_text_and_raw_records_with_their_keys_headers_and_timestamps(lab: Lab, topic: Make) -> None:
    name = topic(partitions=1)
    headers = [("a", b"1"), ("a", b"\xff"), ("none", None)]
    lab.send(name, b"one line", key="käy".encode(), headers=headers, timestamp=1_700_000_000_123)
    lab.send(name, None)
    text = lab.kafka_source(name, format={"type": "text"}, include=["key", "headers", "timestamp"])
    raw = lab.kafka_source(
        name, format={"type": "raw", "schema": "body BINARY"}, include={"key": "k BINARY", "timestamp": "at"}
    )
    lab.start(text, raw)
    for source in (text, raw):
        eventually("both records", lambda source=source: lab.count(source) == 2)  # type: ignore[misc]
    first, second = rows(lab, text)
    assert list(first) == ["value", "key", "headers", "timestamp"]
    assert (first["value"], first["key"], first["timestamp"]) == ("one line", "käy", AT)
    assert [(h["key"], h["value"]) for h in first["headers"]] == headers
    assert (second["value"], second["key"], second["headers"]) == (None, None, None)
    assert rows(lab, raw)[0] == {"body": b"one line", "k": "käy".encode(), "at": AT}
    # What is not text: a key, then a value.
    lab.send(name, b"fine", key=b"\xff")
    problem, _, fix = str(lab.fails(text, "MZ066").error).partition(". Fix: ")
    assert problem == f"topic {name}, partition 0, offset 2: key is not UTF-8" and fix
    eventually("bytes may be anything", lambda: lab.count(raw) == 3)


MALFORMED: dict[str, dict[bytes | None, str]] = {
    "csv": {
        b"4,ann": "the record doesn't have 3 fields",
        b"4,ann,,": "the record doesn't have 3 fields",
        b"x,ann,": "id is not a BIGINT",
        b",ann,": "id is missing (NOT NULL)",
        b"6,annabel,": "name is longer than VARCHAR(5)",
        b"6,ann,someday": "born is not a DATE",
        b"6,ann,\n7,bo,": "the record is not one line of CSV",
        b'6,"a\nn,\n7,bo,': "the record is not one line of CSV",
        b"7,\xff,": "the record is not UTF-8",
        b"": "the record is empty",
        None: "the record has no value",
    },
    "json": {
        b'{"id": 1': "the record is not JSON",
        b'{"id": 1} {"id": 2}': "the record is not one JSON object",
        b'[{"id": 1}]': "the record is not one JSON object",
        b'{"id": "one"}': "id is not a BIGINT",
        b'{"id": 1, "born": "some day", "name": [1, "x"]}': "name is not a VARCHAR(5), born is not a DATE",
        b'{"name": "ann"}': "id is missing (NOT NULL)",
        b"": "the record is empty",
        None: "the record has no value",
    },
}


@pytest.mark.parametrize("format_", MALFORMED)
def test_a_malformed_record_has_a_reason(lab: Lab, format_: str) -> None:
    reasons = MALFORMED[format_]
    found = fates(lab, list(reasons), {"type": format_, "schema": PEOPLE})
    assert dict(zip(reasons, found, strict=True)) == reasons


def raw_rows(lab: Lab, values: Sequence[bytes | None]) -> DataFrame:
    """Records with these values, as a Kafka source reads them; their offsets are their numbers."""
    listed = [(b"", value, n) for n, value in enumerate(values)]
    return lab.spark.createDataFrame(listed, "key BINARY, value BINARY, offset BIGINT")


def checked(rows: DataFrame, parsed: ParsedRecord, columns: Sequence[Column], **more: Any) -> DataFrame:
    """What becomes of these records; the malformed ones are kept."""
    records = Records(rows=rows, position=f.struct("offset"), where=lambda at: f.lit("here"), **more)
    return check_records(records, parsed, columns, "dead-letter")


def outcomes(
    rows: DataFrame, parsed: ParsedRecord, columns: Sequence[Column], envelope: Envelope | None = None
) -> list[Any]:
    """For each record, why it is malformed or its columns that have a value."""
    found = checked(rows, parsed, columns, envelope=envelope).orderBy("_position").collect()
    names = [column.name for column in columns]
    return [
        {name: row[name] for name in names if row[name] is not None} if row[-1] is None else row[-1].reason
        for row in found
    ]


def fates(lab: Lab, values: Sequence[bytes | None], format_: Mapping[str, str]) -> list[Any]:
    """The outcomes of records in a format without envelope."""
    columns = parse_columns(format_["schema"])
    return outcomes(raw_rows(lab, values), parser_of(format_, columns), columns)


D, T = Decimal, datetime.datetime


def decimals(*texts: str) -> dict[str, Decimal]:
    return {text: Decimal(text.strip('"')) for text in texts}


# By format and type, the texts of values and the values that they are.
EXACT: dict[str, dict[str, dict[str, Any]]] = {
    "json": {
        "DECIMAL(10,2)": decimals(
            "12.34", "12.340", "-7", "1.5e2", "1e-2", '"12.34"', '"1e3"', "99999999.99"
        ),
        "DECIMAL(38,18)": decimals("0.123456789012345678", "12345678901234567890.123456789012345678"),
        "TIMESTAMP": {
            '"2024-01-01T00:00:00.123456000Z"': T(2024, 1, 1, 0, 0, 0, 123456, tzinfo=datetime.UTC),
            '"2024-01-01T02:00:00+02:00"': T(2024, 1, 1, tzinfo=datetime.UTC),
            '"2024-01-01 01:00:00 Europe/Paris"': T(2024, 1, 1, tzinfo=datetime.UTC),
            '"2024-01-01"': T(2024, 1, 1, tzinfo=datetime.UTC),
        },
        "TIMESTAMP_NTZ": {'"2024-01-01T01:02:03.5"': T(2024, 1, 1, 1, 2, 3, 500000)},
        "DATE": {'"2024-02-29"': datetime.date(2024, 2, 29), '"2024-1-5"': datetime.date(2024, 1, 5)},
        "DOUBLE": {"0.30000000000000004": 0.30000000000000004, "1": 1.0, '"-Infinity"': float("-inf")},
        "FLOAT": {"0.5": 0.5},
        "BIGINT": {"9007199254740993": 9007199254740993},
        "STRING": {'"1.10"': "1.10", '""': "", '"a\\u0000b"': "a\0b", '"true"': "true"},
        "ARRAY<DECIMAL(4,1)>": {"[1.5, null]": [D("1.5"), None]},
        "MAP<STRING,STRING>": {'{"a": "b"}': {"a": "b"}},
        "STRUCT<at: TIMESTAMP>": {'{"at": null}': (None,), "{}": (None,)},
    },
    "csv": {
        "DECIMAL(10,2)": decimals("12.34", "1e3"),
        "TIMESTAMP": {"2024-01-01T00:00:00Z": T(2024, 1, 1, tzinfo=datetime.UTC)},
        "DATE": {"2024-01-01": datetime.date(2024, 1, 1)},
        "DOUBLE": {"Infinity": float("inf"), "0.5": 0.5},
        "FLOAT": {},
        "STRING": {"1.10": "1.10"},
    },
}
# Texts that are no value of the type, or not exactly.
MALFORMED_VALUES: dict[str, list[tuple[str, list[str]]]] = {
    "json": [
        ("DECIMAL(10,2)", ["1.2345e1", "12.345", "0.0049", '"12.345"', "1.0000000000000000000000001"]),
        ("DECIMAL(10,2)", ["100000000", "1e400", "true", "{}", "[1]", '""', '" 12.5 "']),
        ("DECIMAL(10,2)", ['"12,50"', '"1.234,50"', '"1,234.50"', '",,1,,2"']),
        ("DECIMAL(38,18)", ["0.1234567890123456789", "1.234567890123456789e1"]),
        ("TIMESTAMP", ["1700000000000", "1700000000", "1700000000.5", "true", '""', '"now"', '"epoch"']),
        ("TIMESTAMP", ['"12:30:45"', '"T12:30"', '"202401"', '"2024"', '"2024-02-30T00:00:00Z"']),
        ("TIMESTAMP", ['"2024-01-01T00:00:00.123456789Z"', '"2024-01-01T00:00:00 Mars/Base"']),
        ("TIMESTAMP_NTZ", ['"2024-01-01T00:00:00+02:00"', '"2024-01-01T00:00:00Z"']),
        ("TIMESTAMP_NTZ", ['"12:30:45"', "1700000000"]),
        ("DATE", ['"2024-02-30"', '"24-01-05"', '"2024-01-01T23:30:00-05:00"', '"today"', "19700", '"2024"']),
        ("DOUBLE", ["1e400", "-1e400", '"1.5"']),
        ("FLOAT", ["1e40"]),
        ("BIGINT", ["1.0", '"12"', "9223372036854775808"]),
        ("STRING", ["1.10", "true", '{"v": 12345678901234567.89}', "12345678901234567.89", "[1]"]),
        ("ARRAY<DECIMAL(4,1)>", ["[1.5, 1.55]", '["1,5"]']),
        ("MAP<STRING,STRING>", ['{"a": 1.10}']),
        ("STRUCT<at: TIMESTAMP>", ['{"at": 1700000000000}']),
    ],
    "csv": [
        ("DECIMAL(10,2)", ['"12,50"', "12.345", '"1,234.50"']),
        ("TIMESTAMP", ["12:30:45", "1700000000000", "202401"]),
        ("DATE", ["2024-01-01T23:30:00"]),
        ("DOUBLE", ["1e400", "x"]),
        ("FLOAT", ["1e40"]),
    ],
}


def local(value: Any) -> Any:
    """A time as Spark's session in Python shows it."""
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone().replace(tzinfo=None)
    return value


@pytest.mark.parametrize("format_", EXACT)
def test_a_value_is_exactly_of_its_type_or_its_record_is_malformed(lab: Lab, format_: str) -> None:
    """A column for each type; a record has a value in one of them."""
    types = dict(zip(ascii_lowercase, EXACT[format_], strict=False))
    columns = {type_: name for name, type_ in types.items()}

    def record(name: str, value: str) -> bytes:
        if format_ == "json":
            return f'{{"{name}": {value}}}'.encode()
        return ",".join(value if each == name else "" for each in types).encode()

    wanted: dict[tuple[str, str], Any] = {}
    for type_, values in EXACT[format_].items():
        name = columns[type_]
        wanted |= {(name, text): {name: local(value)} for text, value in values.items()}
    for type_, texts in MALFORMED_VALUES[format_]:
        name = columns[type_]
        wanted |= {(name, text): f"{name} is not a {type_}" for text in texts}

    nulls = [b"{}", *(record(name, "null") for name in types)]
    nothing = nulls if format_ == "json" else [record("", "")]
    schema = ", ".join(f"{name} {type_}" for name, type_ in types.items())
    found = fates(lab, [*nothing, *(record(*one) for one in wanted)], {"type": format_, "schema": schema})
    assert found[: len(nothing)] == [{}] * len(nothing)
    assert dict(zip(wanted, found[len(nothing) :], strict=True)) == wanted


UNKNOWN = "__debezium_unavailable_value"
BYTES = list(UNKNOWN.encode())
IN_BASE64 = base64.b64encode(UNKNOWN.encode()).decode()
# By type, the placeholders, and a value.
PLACEHOLDERS: dict[str, tuple[list[Any], Any]] = {
    "STRING": ([UNKNOWN, json.dumps({UNKNOWN: UNKNOWN}, separators=(",", ":")), UNKNOWN.encode().hex()], "x"),
    "BINARY": ([IN_BASE64], "eA=="),
    "ARRAY<STRING>": ([[UNKNOWN], ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"]], []),
    "ARRAY<BINARY>": ([[IN_BASE64]], []),
    "ARRAY<INT>": ([BYTES], [95]),
    "ARRAY<BIGINT>": ([BYTES], []),
    "ARRAY<DOUBLE>": ([BYTES], []),
    "MAP<STRING,STRING>": ([{UNKNOWN: UNKNOWN}], {}),
}


def test_debeziums_placeholder_is_no_value(lab: Lab) -> None:
    types = dict(zip(ascii_lowercase, PLACEHOLDERS, strict=False))
    columns = parse_columns(", ".join(("id BIGINT", *(f"{name} {type_}" for name, type_ in types.items()))))
    unknown = [(name, value) for name, type_ in types.items() for value in PLACEHOLDERS[type_][0]]
    real = [(name, value) for name, type_ in types.items() for value in (PLACEHOLDERS[type_][1], None)]
    changes = [
        json.dumps({"op": "u", "after": {"id": 1, name: value}}).encode() for name, value in unknown + real
    ]
    envelope = Debezium(key=f.col("key"), row=columns, columns=columns[:1], raw_format="json")
    rows = envelope.split(with_envelope(raw_rows(lab, changes), columns, "json"))
    found = outcomes(rows, envelope.parsed(), columns, envelope)
    for (name, value), why in zip(unknown, found, strict=False):
        assert str(why).startswith(f"Debezium did not receive the value of {name}"), (value, why)
    assert [one["id"] for one in found[len(unknown) :]] == [1] * len(real)


def test_a_line_break_within_quotes_belongs_to_the_field(lab: Lab) -> None:
    format_ = {"type": "csv", "schema": "x STRING, y STRING"}
    values = [b'"a\nb",y', b'"a\r\n\r\nb","y"\n', b'"say ""a\nb""",y', b'"a""b,",']
    found = [one["x"] for one in fates(lab, values, format_)]
    assert found == ["a\nb", "a\r\n\r\nb", 'say "a\nb"', 'a"b,']


NAMES = ["plain", "other", "orders[1]", "{a,plain}", "*", "a?", "a b (1)", "ab"]


def test_files_are_read_once_whatever_their_names(lab: Lab, tmp_path: Path) -> None:
    """A name can be a pattern for other names, and folders can be named after values."""
    folder = tmp_path / "in=1"
    names = [f"{name}.json" for name in NAMES] + [f"n={name}/m=2/x.json" for name in NAMES]
    for number, name in enumerate([*names, "sub/not-read.json", ".n=1/hidden.json"]):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps({"id": number}) + "\n")
    source = lab.files_source(folder, "id BIGINT, n STRING")
    lab.start(source)
    eventually("all of them", lambda: lab.count(source) >= len(names))
    assert sorted((row["id"], row["n"]) for row in lab.read(source)) == list(
        enumerate([*([None] * len(NAMES)), *NAMES])
    )
    old = tmp_path / "old.json"
    old.write_text('{"id": 99}\n')
    os.utime(old, (1_000_000_000, 1_000_000_000))
    old.rename(folder / "old.json")
    eventually("a file of another age", lambda: lab.ids(source)[-1] == 99)


def put(file: Path, row: dict[str, Any]) -> None:
    """Let a file with one row appear whole."""
    part = file.with_name(f".{file.name}")
    file.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(row, default=str) + "\n"
    if ".csv" in file.name:
        text = "".join(",".join(map(str, line)) + "\n" for line in (row, row.values()))
    if ".parquet" in file.name:
        parquet.write_table(pa.Table.from_pylist([row]), part)
    else:
        part.write_bytes(gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode())
    part.rename(file)


def test_values_are_read_from_the_names_of_folders(lab: Lab, tmp_path: Path) -> None:
    """Files beside such a folder, and files of a folder that comes later, are read as well."""
    schema = "id BIGINT, day DATE NOT NULL, at TIMESTAMP, x STRING"
    first, last = datetime.date(2026, 11, 28), datetime.date(2026, 11, 30)
    at = datetime.datetime(2026, 11, 28, 1, 2, 3, 456, datetime.UTC)
    inner, null = "day=2026-11-28/at=2026-11-28 01%3A02%3A03.000456", "at=__HIVE_DEFAULT_PARTITION__"
    for kind in ("json", "parquet", "csv"):
        put(tmp_path / kind / inner / f"a.{kind}", {"id": 1, "x": "a+b"})
        put(tmp_path / kind / "day=2026-11-28" / null / f"a.{kind}", {"id": 2, "x": "c"})
    for kind in ("json", "parquet"):
        put(tmp_path / kind / f"b.{kind}", {"id": 3, "day": first, "x": "d"})
    put(tmp_path / "flat" / "a.json", {"id": 1, "day": first})
    formats: dict[str, dict[str, Any]] = {
        "json": {"type": "json", "schema": schema},
        "parquet": {"type": "parquet", "schema": schema},
        "csv": {"type": "csv", "schema": schema, "header": True},
        "flat": {"type": "json", "schema": "id BIGINT, day DATE"},
    }
    sources = {name: lab.files_source(tmp_path / name, format=format_) for name, format_ in formats.items()}
    lab.start(*sources.values())

    def found(name: str) -> list[tuple[Any, ...]]:
        rows = lab.read(sources[name])
        return sorted((tuple(row[key] for key in row if key != "_position") for row in rows), key=str)

    beside: list[tuple[Any, ...]] = [(1, first, at, "a+b"), (2, first, None, "c"), (3, first, None, "d")]
    eventually("the first files", lambda: [len(found(name)) for name in sources] == [3, 3, 2, 1])
    assert [found(name) for name in sources] == [beside, beside, beside[:2], [(1, first)]]
    later = [(4, last, None, "e"), (5, last, None, "f")]
    for kind in ("json", "parquet", "csv"):
        put(tmp_path / kind / "day=2026-11-30" / null / f"c.{kind}", {"id": 4, "x": "e"})
    put(tmp_path / "json" / "day=2026-11-30" / "d.json.gz", {"id": 5, "x": "f"})
    put(tmp_path / "parquet" / "d.parquet", {"id": 5, "day": last, "x": "f"})
    put(tmp_path / "csv" / "day=2026-11-30" / null / "d.csv.gz", {"id": 5, "x": "f"})
    put(tmp_path / "flat" / "day=2026-11-30" / "b.json", {"id": 2})
    put(tmp_path / "flat" / "c.json", {"id": 3})
    eventually("the later files", lambda: [len(found(name)) for name in sources] == [5, 5, 4, 3])
    wanted = [[*beside, *later], [*beside, *later], [*beside[:2], *later], [(1, first), (2, last), (3, None)]]
    assert [found(name) for name in sources] == wanted
    put(tmp_path / "csv" / "b.csv", {"id": 6, "x": "beside"})
    put(tmp_path / "json" / "day=yesterday" / "e.json", {"id": 6})
    lab.fails(sources["csv"], "MZ066", "b.csv", "named day=…")
    lab.fails(sources["json"], "MZ066", "day=yesterday/e.json", "day in the name of its folder isn't a DATE")
    assert [len(found(name)) for name in sources] == [5, 5, 4, 3]


def test_an_open_quote_in_a_csv_file_is_malformed(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "csv"
    folder.mkdir()
    (folder / "a.csv").write_text('1,"a\nb"\n2,"open\n3,c\n')
    source = lab.files_source(folder, format={"type": "csv", "schema": "id BIGINT, x STRING"})
    lab.start(source)
    lab.fails(source, "MZ066", "a.csv", "line 3")
    (folder / "a.csv").write_text('1,"a\nb"\n2,"closed"\n3,c\n')
    lab.start(source)
    eventually("all rows", lambda: [row["x"] for row in lab.read(source)] == ["a\nb", "closed", "c"])
    record = {"type": "csv", "schema": "x STRING, y STRING"}
    whys = fates(lab, [b'a,"b', b'a,"b""', b'a,5" b', b'"a"",",b', b'"a,b'], record)
    assert ["not one line" in str(why) for why in whys] == [True, True, False, False, True]


def test_a_format_may_have_values_converted(lab: Lab) -> None:
    format_ = {"type": "json", "values": "converted", "schema": "x DECIMAL(10,2), y STRING"}
    record = b'{"x": 12.345, "y": {"a": 1}}'
    assert fates(lab, [record], format_) == [{"x": D("12.35"), "y": '{"a":1}'}]


@pytest.mark.nightly
def test_csv_text_and_parquet_files(lab: Lab, tmp_path: Path) -> None:
    def arrive(kind: str, name: str, text: str) -> None:
        """A file that appears whole."""
        (tmp_path / name).write_text(text)
        (tmp_path / kind).mkdir(exist_ok=True)
        (tmp_path / name).rename(tmp_path / kind / name)

    def source(kind: str, **format_: Any) -> Description:
        return lab.files_source(tmp_path / kind, format={"type": kind, **format_})

    def is_refused(source: Description, *says: str) -> None:
        lab.fails(source, "MZ066", *says)
        lab.stop(source)

    arrive("csv", "a.csv", "id;name;born\n1;'a;b';2001-02-03\n2;;\n")
    arrive("csv", "b.csv", "id;name;born\n3;'b\n4;';\n\n")
    arrive("text", "a.txt", "one\n\nthree\n")
    table = pa.table({"id": pa.array([1], pa.int64()), "other": ["x"]})
    (tmp_path / "parquet").mkdir()
    parquet.write_table(table, tmp_path / "parquet" / "a.parquet")
    csv = source("csv", schema=PEOPLE, delimiter=";", quote="'", header=True)
    text = source("text", schema="line STRING")
    columns = source("parquet", schema="id BIGINT, missing STRING")
    lab.start(csv, text, columns)
    eventually("three people", lambda: lab.count(csv) == 3)
    eventually("three lines", lambda: lab.count(text) == 3)
    eventually("a row", lambda: lab.count(columns) == 1)
    assert sorted((row["id"], row["name"]) for row in rows(lab, csv)) == [(1, "a;b"), (2, None), (3, "b\n4;")]
    assert [row["line"] for row in rows(lab, text)] == ["one", "", "three"]
    assert rows(lab, columns) == [{"id": 1, "missing": None}]
    lab.stop(text, columns)

    # A malformed line names its file; so does a header of other columns.
    arrive("csv", "c.csv", "id;name;born\nx;bo;\n")
    is_refused(csv, "c.csv", "id is not a BIGINT")
    skipping = lab.retried(csv)
    skipping.body["on_error"] = "skip"  # type: ignore[index]
    arrive("csv", "d.csv", "id;name;born\n4;bo;\n5\n")
    lab.start(skipping)
    eventually("one more", lambda: lab.count(csv) == 4)
    arrive("csv", "e.csv", "name;id;born\nbo;5;\n")
    is_refused(skipping, "e.csv")
