"""Values that sinks write as JSON, CSV and Parquet: the same format's source and Python read them back."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mzplan.connectors.api.queries import resolve
from mzplan.connectors.files.source import FilesSource
from mzplan.connectors.formats.written import WRITER_OPTIONS, as_written, row_to_csv, row_to_json
from mzplan.connectors.frames.row_hash import row_hash
from tests.integration.spark_lab import Lab

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# The values of each simple type, as Spark SQL. Every column also gets a NULL.
TIMES = [
    "2026-03-01 10:20:30.123456",
    "1500-02-28 01:02:03.000001",
    "9999-12-31 23:59:59.999999",
    "+12345-06-07 08:09:10.000001",
    "0001-01-01 00:00:00",
    "1582-10-10 12:00:00.1",
]
TEXTS = ["", "  a ", "\t", "a,b", ";", '"', '""', 'a"b', ' " ', '"a"', "\\", "a\\", '\\"', '"\\', "'", "#a"]
TEXTS += ["null", "NULL", "\\N", "NaN", '{"a":1}', "é😀\u2028", "\n", "\r", "a\nb", "a\r\nb", "\r\n"]
TEXTS += ["\0", '\0"', '"\0', "a\0b", "\ufeffx", '"\n', '\n"', '",\n']
SIMPLE: dict[str, list[str]] = {
    "BOOLEAN": ["true", "false"],
    "TINYINT": ["-128", "127"],
    "SMALLINT": ["-32768", "0"],
    "INT": ["-2147483648", "2147483647"],
    "BIGINT": ["-9223372036854775808", "9223372036854775807"],
    "FLOAT": ["0.1", "3.4028235e38", "1.4e-45", "'NaN'", "'Infinity'", "'-Infinity'", "-float(0)"],
    "DOUBLE": ["0.1", "1.7976931348623157e308", "4.9e-324", "'NaN'", "'-Infinity'", "-double(0)"],
    "DECIMAL(10,2)": ["'-12345678.90'", "'0.01'", "'1.50'", "0"],
    "DECIMAL(38,28)": ["'0.0000000001234567890123456789'", "'-0.0000001'", "'9999999999.5'", "0"],
    "DECIMAL(38,0)": ["'99999999999999999999999999999999999999'", "'-10'"],
    "DATE": [f"'{time.split()[0]}'" for time in TIMES],
    "TIMESTAMP": [f"'{time}'" for time in TIMES],
    "TIMESTAMP_NTZ": [f"'{time}'" for time in TIMES],
    "STRING": ["decode(X'" + text.encode().hex() + "', 'UTF-8')" for text in TEXTS],
}
DEEP = {
    name: SIMPLE[name]
    for name in ("DOUBLE", "DECIMAL(38,28)", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "STRING")
}
NESTED = {
    "BINARY": ["X''", "X'00ff'", "X'2c220a'"],
    **{
        f"ARRAY<{type_}>": [f"array(CAST({value} AS {type_}), NULL)" for value in values] + ["array()"]
        for type_, values in DEEP.items()
    },
    **{
        f"MAP<STRING,{type_}>": [f"map('', CAST({value} AS {type_}), 'n', NULL)" for value in values]
        for type_, values in DEEP.items()
    },
    **{
        f"STRUCT<a: {type_}, b: ARRAY<STRUCT<c: {type_}>>>": [
            f"named_struct('a', {value}, 'b', array(named_struct('c', {value}), NULL))"
            for value in (f"CAST({value} AS {type_})" for value in values)
        ]
        for type_, values in DEEP.items()
    },
}


def table(lab: Lab, types: dict[str, list[str]]) -> tuple[DataFrame, str]:
    """Return rows with all values of these types, and the columns as DDL. Column `c0` numbers the rows."""
    count = max(map(len, types.values())) + 1
    rows = []
    for row in range(count):
        values = (f"CAST({(['NULL', *values] * count)[row]} AS {type_})" for type_, values in types.items())
        rows.append(f"SELECT {', '.join([str(row), *values])}")
    names = [f"c{i}" for i in range(len(types) + 1)]
    schema = ", ".join(f"{name} {type_}" for name, type_ in zip(names, ["INT", *types], strict=True))
    return lab.spark.sql(" UNION ALL ".join(rows)).toDF(*names).coalesce(1), schema


def write(rows: DataFrame, folder: Path, format_: str) -> list[Path]:
    """Write the rows as a files sink does, and return the files."""
    as_written(rows, format_, []).write.format(format_).options(**WRITER_OPTIONS.get(format_, {})).save(
        str(folder)
    )
    return sorted(folder.glob("part-*"))


def hashes(rows: DataFrame, names: list[str]) -> dict[int, dict[str, int]]:
    """Return the hash of each value by the number of its row."""
    values = rows.select("c0", *(row_hash(rows.select(name)).alias(f"h_{name}") for name in names))
    return {row["c0"]: {name: row[f"h_{name}"] for name in names} for row in values.collect()}


@pytest.mark.parametrize(
    ("format_", "types"),
    [
        ("json", SIMPLE | NESTED),
        ("csv", SIMPLE),
        pytest.param("parquet", SIMPLE | NESTED, marks=pytest.mark.nightly),
    ],
)
def test_a_source_reads_back_the_values_that_a_sink_wrote(
    lab: Lab, tmp_path: Path, format_: str, types: dict[str, list[str]]
) -> None:
    rows, schema = table(lab, types)
    files = write(rows, tmp_path / "out", format_)
    options = {"header": True} if format_ == "csv" else {}
    source = lab.files_source(tmp_path / "out", format={"type": format_, "schema": schema, **options})
    query = resolve(source, lab.secrets, str(tmp_path))
    names = rows.columns
    read_rows = FilesSource().replay(lab.spark, query, None, None, lambda: [str(file) for file in files])
    written_hashes, read_hashes = hashes(rows, names), hashes(read_rows, names)
    assert written_hashes.keys() == read_hashes.keys()
    shown = dict(zip(names, ["INT", *types], strict=True))
    differences = {
        (shown[name], number)
        for number, values in written_hashes.items()
        for name, value in values.items()
        if read_hashes[number][name] != value
    }
    assert differences == set()


@pytest.mark.parametrize("format_", ["json", "csv"])
def test_python_reads_the_values_that_a_sink_wrote(lab: Lab, tmp_path: Path, format_: str) -> None:
    rows, _ = table(lab, SIMPLE)
    (file,) = write(rows, tmp_path / "out", format_)
    with file.open(newline="", encoding="utf-8") as text:
        read_rows = list(_json_rows(text.read()) if format_ == "json" else csv.DictReader(text))
    names = rows.columns[1:]
    texts = rows.selectExpr("c0", *(f"CAST({name} AS STRING) AS {name}" for name in names)).collect()
    for read_row, row in zip(read_rows, texts, strict=True):
        for name, type_ in zip(names, SIMPLE, strict=True):
            expected, value = row[name], read_row[name]
            if expected is None or value is None:
                assert not expected and not value, (type_, row["c0"])
            else:
                assert _plain(value, type_) == _plain(expected, type_), (type_, row["c0"])
    row_text = row_to_json(rows, rows.columns) if format_ == "json" else row_to_csv(rows, rows.columns)
    lines = [row["line"] for row in rows.select(row_text.alias("line")).collect()]
    header = "" if format_ == "json" else ",".join(rows.columns) + "\n"
    assert file.read_bytes().decode() == header + "".join(f"{line}\n" for line in lines)


def _json_rows(text: str) -> Iterator[dict[str, Any]]:
    for line in text.split("\n")[:-1]:
        yield json.loads(line, parse_float=str, parse_int=str)


def _plain(value: Any, type_: str) -> Any:
    """Return a value of Python for a value in a file, or for its text in Spark."""
    text = str(value)
    match type_.partition("(")[0]:
        case "FLOAT" | "DOUBLE":
            return str(float(text))  # NaN equals itself, and -0.0 isn't 0.0
        case "DECIMAL":
            return Decimal(text)
        case "BOOLEAN":
            return text.lower()
        case "TIMESTAMP" | "TIMESTAMP_NTZ" if not text.startswith("+"):
            return datetime.fromisoformat(text).replace(tzinfo=UTC)
        case "TIMESTAMP" | "TIMESTAMP_NTZ":
            return text.replace("T", " ").replace("Z", "")
    return text


def test_keys_of_maps_are_written_as_text(lab: Lab) -> None:
    rows = lab.spark.sql(
        "SELECT map(DATE'2026-01-02', 1) AS day, map(TIMESTAMP'2026-01-02 03:04:05.000006', 1) AS at, "
        "map(TIMESTAMP_NTZ'2026-01-02 03:04:05.000006', map(1, DATE'2026-01-02')) AS wall"
    )
    (row,) = rows.select(row_to_json(rows, rows.columns).alias("line")).collect()
    assert json.loads(row["line"]) == {
        "day": {"2026-01-02": 1},
        "at": {"2026-01-02T03:04:05.000006Z": 1},
        "wall": {"2026-01-02T03:04:05.000006": {"1": "2026-01-02"}},
    }
