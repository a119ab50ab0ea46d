"""Every Spark type, from a JSON record through Delta into PostgreSQL and back."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from mzplan.connectors.local.row_files import read_rows
from mzplan.render.row_files import json_lines
from mzplan.schema.columns import parse_columns
from mzplan.schema.description import Description
from mzplan.warehouse.rows.snapshot import snapshot_of
from tests.integration.spark_lab import Lab
from tests.support import Make

# Name: Spark type, value in JSON, type in PostgreSQL (None: as the check's CREATE TABLE says), value there.
TYPES: dict[str, tuple[str, Any, str | None, Any]] = {
    "flag": ("BOOLEAN", True, None, True),
    "tiny": ("TINYINT", -128, None, -128),
    "small": ("SMALLINT", 32767, None, 32767),
    "number": ("INT", -2147483648, None, -2147483648),
    "big": ("BIGINT", 9223372036854775807, None, 9223372036854775807),
    "big_numeric": ("BIGINT", 12, "numeric", Decimal(12)),
    "single": ("FLOAT", 1.5, None, 1.5),
    "twice": ("DOUBLE", 2.2250738585072014e-308, None, 2.2250738585072014e-308),
    "text": ("STRING", 'naïve ✓ "quoted" \\ \n', None, 'naïve ✓ "quoted" \\ \n'),
    "short": ("VARCHAR(5)", "fünf!", "varchar(5)", "fünf!"),
    "uid": ("STRING", "123e4567-e89b-12d3-a456-426614174000", "uuid", "123e4567-e89b-12d3-a456-426614174000"),
    "doc": ("STRING", '{"a": [1, 2]}', "jsonb", {"a": [1, 2]}),
    "mood": ("STRING", "happy", "mood", "happy"),
    "bytes": ("BINARY", "AAH/", None, b"\x00\x01\xff"),
    "day": ("DATE", "0001-01-01", None, date(1, 1, 1)),
    "at": (
        "TIMESTAMP",
        "2024-03-31T02:30:00.123456+02:00",
        None,
        datetime(2024, 3, 31, 0, 30, 0, 123456, UTC),
    ),
    "far": (
        "TIMESTAMP",
        "9999-12-31T12:59:59.999999Z",
        None,
        datetime(9999, 12, 31, 12, 59, 59, 999999, UTC),
    ),
    "at_plain": ("TIMESTAMP", "1969-12-31T23:59:59Z", "timestamp", datetime(1969, 12, 31, 23, 59, 59)),
    "wall": ("TIMESTAMP_NTZ", "2024-01-01T12:00:00.5", None, datetime(2024, 1, 1, 12, 0, 0, 500000)),
    "money": ("DECIMAL(10,2)", "-12345678.90", None, Decimal("-12345678.90")),
    "huge": ("DECIMAL(38,18)", "99999999999999999999.123456789012345678", None, None),
    "numbers": ("ARRAY<INT>", [1, None, 3], None, [1, None, 3]),
    "prices": ("ARRAY<DECIMAL(10,2)>", ["1.50", "0.01"], None, [Decimal("1.50"), Decimal("0.01")]),
    "texts_json": ("ARRAY<STRING>", ["a", None], "jsonb", ["a", None]),
    "nested": ("ARRAY<ARRAY<INT>>", [[1], [], None], None, [[1], [], None]),
    "thing": (
        "STRUCT<a: INT, b: STRUCT<c: ARRAY<STRING>, d: DATE>>",
        {"a": 1, "b": {"c": ["x"], "d": "2024-01-01"}},
        None,
        {"a": 1, "b": {"c": ["x"], "d": "2024-01-01"}},
    ),
    "moments": (
        "STRUCT<at: TIMESTAMP, days: MAP<STRING, ARRAY<TIMESTAMP_NTZ>>, rate: DECIMAL(38,18)>",
        {
            "at": "2024-03-31T00:30:00.123456Z",
            "days": {"x": ["2024-01-01T12:00:00.000001"]},
            "rate": "0.000000000000000123",
        },
        None,
        {
            "at": "2024-03-31T00:30:00.123456Z",
            "days": {"x": ["2024-01-01T12:00:00.000001"]},
            "rate": 0.000000000000000123,
        },
    ),
    "things": ("MAP<STRING, BIGINT>", {"x": 1}, "json", {"x": 1}),
    "select": ("BIGINT", 7, None, 7),
    "Id2": ("BIGINT", 8, None, 8),
}
SCHEMA = ", ".join([*(f"`{name}` {type_}" for name, (type_, _, _, _) in TYPES.items()), "row_no INT"])
RECORD = {name: value for name, (_, value, _, _) in TYPES.items()}


def test_every_type_goes_through(lab: Lab, topic: Make, database: Make) -> None:
    name, shop = topic(partitions=1), database()
    lab.execute(shop, "CREATE TYPE mood AS ENUM ('happy', 'sad')")
    source = lab.kafka_source(name, SCHEMA)
    sink = lab.postgres_sink(source, shop, "types", mode="upsert", key=["row_no"])
    statement = lab.finds(sink, "MZ052").hint.partition("\n")[2]
    assert statement.splitlines()[-2:] == ["  PRIMARY KEY (row_no)", ");"]
    for column, (_, _, type_, _) in TYPES.items():
        if type_ is not None:
            line = next(line for line in statement.splitlines() if line.split()[:1] == [column])
            statement = statement.replace(line, f"  {column} {type_},")
    lab.execute(shop, statement)
    assert lab.check(sink).diagnostics == ()

    lab.produce(name, {"row_no": 1, **RECORD}, {"row_no": 2}, {"row_no": 3, **RECORD})
    lab.start(source, sink)
    lab.has_rows(shop, "types", 3)
    lab.stop(source, sink)
    listed = ", ".join(f'"{column}"' for column in TYPES)
    full, empty, again = lab.rows(shop, f"SELECT {listed} FROM types ORDER BY row_no")
    assert full == again
    assert set(empty) == {None}
    for (column, (_, value, _, expected)), found in zip(TYPES.items(), full, strict=True):
        wanted = Decimal(value) if expected is None else expected
        assert (str(found) if column == "uid" else found) == wanted, column
    _is_read_without_spark(lab, source)


def _is_read_without_spark(lab: Lab, source: Description) -> None:
    """The snapshot of the collection: what went in comes out, and can be appended again."""
    history = lab.history(source)
    table = snapshot_of(history, history.upper() - 1)
    assert table.count() == 3
    _, batches = table.rows()
    lines = [line for batch in batches for line in json_lines(batch)]
    full, empty, again = sorted((json.loads(line) for line in lines), key=lambda row: row.pop("row_no"))
    assert full == again and set(empty.values()) == {None}
    assert full == RECORD | {"at": "2024-03-31T00:30:00.123456Z", "wall": "2024-01-01T12:00:00.500000"}
    expected = read_rows("\n".join(lines).encode(), "jsonl", parse_columns(SCHEMA))
    found = pa.Table.from_batches(table.rows()[1])
    assert found.to_pylist() == expected.to_pylist()
    last = """arrow_cast('9999-12-31T12:59:59.999999Z', 'Timestamp(Microsecond, Some("UTC"))')"""
    around = "at > '2024-03-31T00:30:00.123455Z' AND at < '2024-03-31T00:30:00.123457Z'"
    others = ("money = -12345678.90", "things IS NOT NULL AND day < '0001-01-02'")
    for condition in (f"far = {last}", around, *others):
        assert table.count(condition) == 2, condition
