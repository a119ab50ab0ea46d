"""snapshot: a stored collection as of its steps, through the command line and without Spark."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from mzplan.connectors.local.row_files import read_rows
from mzplan.render.row_files import csv_line, out_format_of
from mzplan.schema.columns import parse_columns
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.rows.snapshot import ConditionError, ensure_one_condition, snapshot_batches
from tests.stored_steps import StoredShop, named
from tests.unit.cli_runs import Ran

DDL = (
    "Id BIGINT, `a b` STRING, amount DECIMAL(38,10), data BINARY, at TIMESTAMP, plain TIMESTAMP_NTZ, "
    "day DATE, x DOUBLE, y FLOAT, ok BOOLEAN, tags ARRAY<STRING>, m MAP<STRING,INT>, "
    "s STRUCT<t:TIMESTAMP,d:DECIMAL(4,2)>"
)
SCHEMA = read_rows(b"", "jsonl", parse_columns(DDL)).schema
LAST = datetime(9999, 12, 31, 23, 59, 59, 999999, UTC)
ODD: dict[str, Any] = {
    "Id": 1,
    "a b": 'comma, "quoted"\nline ',
    "amount": Decimal("1234567890123456789012345678.0000000001"),
    "data": b"\x00\xff",
    "at": LAST,
    "plain": datetime(1, 1, 1, 0, 0, 0, 1),
    "day": datetime(2024, 2, 29).date(),
    "x": float("nan"),
    "y": 0.1,
    "ok": True,
    "tags": ["a", None, ""],
    "m": {"k": 1, "n": None},
    "s": {"t": LAST, "d": Decimal("-0.10")},
}
NOTHING = dict.fromkeys(ODD)


class Shop(StoredShop):
    def snapshot(self, *arguments: str, code: int = 0) -> Ran:
        return self.run("snapshot", "source.orders", *arguments, code=code)

    def refusal(self, *arguments: str, code: int) -> dict[str, Any]:
        return self.snapshot(*arguments, "--json", code=code).error()

    def rows(self, *arguments: str) -> list[Any]:
        """Return the rows, which come in no particular order, by id."""
        found = map(json.loads, self.snapshot("--format", "json", *arguments).out.splitlines())
        return sorted(found, key=lambda row: row["id"])


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop")


@pytest.fixture
def odd(tmp_path: Path) -> Shop:
    made = Shop(tmp_path / "shop", SCHEMA)
    made.source.int96 = True
    made.source.run([{**ODD, "m": list(ODD["m"].items())}, NOTHING])
    return made


def test_a_table_shows_nothing_that_moves_the_cursor(shop: Shop) -> None:
    shop.source.run([{"id": 7, "name": "plain"}, {"id": 10, "name": None}, {"id": None, "name": "\x1b[2J\n"}])
    ran = shop.snapshot()
    assert ran.out.splitlines() == ["  id  name", "   7  plain", "  10  NULL", "NULL  \\x1b[2J\\n"]
    assert "3 rows of source.orders as of step 0." in ran.err


def test_a_snapshot_is_as_of_a_step(shop: Shop) -> None:
    for i in range(3):
        shop.source.run(named(2 * i, 2 * i + 2), files=2)
    assert shop.rows() == named(0, 6)
    assert shop.rows("--as-of", "0") == named(0, 2)
    assert shop.rows("--as-of", "1") == named(0, 4)
    assert shop.snapshot("--count").out == "6\n"
    assert shop.snapshot("--count", "--as-of", "1").out == "4\n"
    bounds = {"address": "source.orders", "since": 0, "upper": 3}
    document = shop.snapshot("--as-of", "1", "--json", "--where", "id = 3").json()
    assert document == {**bounds, "as_of": 1, "columns": ["id", "name"], "rows": named(3, 4)}
    assert shop.snapshot("--json", "--where", "id = 99").json()["rows"] == []
    counted = shop.snapshot("--json", "--count", "--where", "id % 2 = 0").json()
    assert counted == {**bounds, "as_of": 2, "count": 3}
    (first,) = shop.rows("--where", "id = 3", "--position")
    assert first["_position"] == {"partition": 0, "offset": 3, "timestamp": None}


def test_added_columns_and_merged_files_are_read(shop: Shop) -> None:
    shop.source.run(named(0, 2))
    shop.source.alter(pa.field("price", pa.string()))
    shop.source.run([{"id": 5, "name": "n", "price": "9"}])
    shop.source.merge()
    files = (*shop.source.data(0), *shop.source.data(1))
    shop.source.vacuum()
    for data in files:
        data.unlink()  # what the newest version needs stays
    rows = shop.rows()
    assert rows == [*({**row, "price": None} for row in named(0, 2)), {"id": 5, "name": "n", "price": "9"}]
    assert shop.snapshot("--count").out == "3\n"  # the merged file has no statistics: its rows are counted
    assert len(list(snapshot_batches(shop.source.history, 1))) == 1
    for where in ([], ["--where", "id = 1"]):
        gone = shop.refusal("--as-of", "0", *where, code=1)
        assert gone["code"] == "MZ091" and "the VACUUM of version 5 has removed it" in gone["detail"]


def test_only_steps_that_the_collection_holds_can_be_read(shop: Shop) -> None:
    nothing = shop.refusal(code=64)
    assert nothing["code"] == "MZ094" and "still empty" in nothing["summary"]
    shop.source.record(*(shop.source.run(named(i, i + 1)) for i in range(4)))
    above = shop.refusal("--as-of", "4", code=64)
    assert "doesn't exist yet" in above["summary"] and "0 to 3" in above["detail"]
    shop.source.history.index.expire(2)
    below = shop.refusal("--as-of", "1", code=64)
    assert "was expired" in below["summary"] and "2 to 3" in below["detail"]
    assert shop.rows("--as-of", "2") == named(0, 3)
    sink = shop.error("snapshot", "sink.out", code=64)
    assert sink["code"] == "MZ094" and "mzplan snapshot source.orders" in sink["hint"]
    shop.run("snapshot", "source.other", code=64)
    for step in ("-1", str(2**64)):
        shop.snapshot("--as-of", step, code=64)
    shop.source.cut_log(4)
    gone = shop.refusal("--as-of", "3", code=1)
    assert gone["code"] == "MZ091" and "30 days" in gone["detail"]


def test_a_damaged_file_is_an_error(shop: Shop) -> None:
    shop.source.run(named(0, 3))
    (data,) = shop.source.data(0)
    data.write_bytes(b"PAR1 nothing PAR1")
    for arguments in (["--json"], ["--where", "id > 1", "--json"], ["--format", "csv"]):
        ran = shop.snapshot(*arguments, code=1)
        assert "can't be read" in ran.out + ran.err
    assert shop.snapshot("--count").out == "3\n", "the log has the number of rows"
    (shop.source.collection / "_delta_log" / f"{1:020}.json").write_text("{not json")
    damaged = shop.refusal(code=1)
    assert damaged["code"] == "MZ090" and "is damaged" in damaged["detail"]


def test_only_one_condition_over_the_columns_is_accepted(shop: Shop) -> None:
    shop.source.run(named(0, 3))
    for condition in (
        "   ",
        "nope = 1",
        "ID = 1",
        "id = 1) OR (1 = 1",
        "1 = 1) UNION ALL SELECT * FROM collection WHERE (1 = 1",
        "id = 1 -- and more",
        "id = /* */ 1",
        "id = 1; DROP TABLE collection",
        "name = 'open",
        "(id = 1",
        "id / 0 = 1",
        "EXISTS (SELECT 1 FROM '/etc/passwd')",
        "\0",
        "(" * 4000 + "1=1" + ")" * 4000,
        "id = " + "9" * 11_000,
        "\ud800 = 1",
    ):
        for more in ([], ["--count"]):
            assert shop.refusal("--where", condition, *more, code=64)["code"] == "MZ019", condition


def test_a_condition_selects_rows(shop: Shop) -> None:
    shop.source.run([*named(0, 3), {"id": 4, "name": "it's; -- ("}, {"id": 5, "name": None}])
    assert shop.rows("--where", "name = 'it''s; -- ('") == [{"id": 4, "name": "it's; -- ("}]
    assert [row["id"] for row in shop.rows("--where", "name IS NULL OR UPPER(name) = 'N1'")] == [1, 5]
    assert [row["id"] for row in shop.rows("--where", "id IN (0, 2) AND (name LIKE 'n%')")] == [0, 2]
    assert shop.snapshot("--count", "--where", '"id" BETWEEN 1 AND 4').out == "3\n"
    with pytest.raises(ConditionError, match="never closed"):
        ensure_one_condition("name = 'a''b")
    ensure_one_condition("a = ')' AND (b = \"(\")")


def test_a_condition_uses_columns_of_every_type(odd: Shop) -> None:
    for condition in (
        "amount = 1234567890123456789012345678.0000000001",
        "amount > 1.5 AND amount < 9999999999999999999999999999",
        "y < 0.11 AND y > 0.09",
        "`a b` LIKE 'comma%' AND \"a b\" <> ''",
        "at > '2200-01-01' AND day = '2024-02-29'",
        "s.d = -0.10 AND s['d'] < 0",
        "ok AND tags[1] = 'a'",
        "data = X'00ff'",
        "day < '2025-01-01' AND x > 0",
    ):
        assert odd.snapshot("--count", "--where", condition).out == "1\n", condition
        assert odd.snapshot("--count", "--where", f"NOT ({condition})").out == "0\n", condition


def test_json_lines_are_what_append_reads(odd: Shop) -> None:
    out = odd.snapshot("--format", "json").out
    first, second = (json.loads(line) for line in out.splitlines())
    assert first == {
        **ODD,
        "amount": "1234567890123456789012345678.0000000001",
        "data": "AP8=",
        "at": "9999-12-31T23:59:59.999999Z",
        "plain": "0001-01-01T00:00:00.000001",
        "day": "2024-02-29",
        "x": "NaN",
        "s": {"t": "9999-12-31T23:59:59.999999Z", "d": "-0.10"},
    }
    assert second == NOTHING
    again = read_rows(out.encode(), "jsonl", parse_columns(DDL))
    found = pa.Table.from_batches(list(snapshot_batches(odd.source.history, 0)))
    assert again.drop_columns(["x"]).to_pylist() == found.drop_columns(["x"]).to_pylist()


def test_csv_is_what_append_reads(odd: Shop) -> None:
    out = odd.snapshot("--format", "csv").out
    header, first, second = csv.reader(io.StringIO(out, newline=""))
    assert header == list(ODD)
    texts = ["1", ODD["a b"], str(ODD["amount"]), "AP8=", "9999-12-31T23:59:59.999999Z"]
    assert first[:5] == texts
    nested = ['["a", null, ""]', '{"k": 1, "n": null}', '{"t": "9999-12-31T23:59:59.999999Z", "d": "-0.10"}']
    assert first[9:] == ["true", *nested]
    assert second == [""] * len(ODD)
    assert csv_line([None, "", "a"]) == ',"",a' and csv_line([None]) == '""'


def test_a_file_has_the_format_of_its_name(odd: Shop, tmp_path: Path) -> None:
    for format_ in ("parquet", "arrow", "json", "csv"):
        target = tmp_path / f"rows.{format_}"
        document = odd.snapshot("--out", str(target), "--json").json()
        assert (document["rows"], document["file"]) == (2, str(target))
        if format_ in ("json", "csv"):
            assert target.read_text() == odd.snapshot("--format", format_).out
            continue
        table = parquet.read_table(target) if format_ == "parquet" else pa.ipc.open_stream(target).read_all()
        assert table.schema.types == SCHEMA.types
        for column in ("at", "amount", "s"):
            assert table[column].to_pylist() == [ODD[column], None]
    assert len(list(tmp_path.glob("*rows*"))) == 4
    target = tmp_path / "rows.txt"
    odd.snapshot("--out", str(target), code=64)
    odd.snapshot("--out", str(target), "--format", "table")
    assert target.read_text().startswith("  Id  a b")


def test_a_file_is_written_completely_or_not_at_all(shop: Shop, tmp_path: Path) -> None:
    shop.source.run(named(0, 3))
    target = tmp_path / "kept.csv"
    target.write_text("before")
    shop.snapshot("--out", str(target), "--where", "CAST(name AS BIGINT) = 1", code=64)
    assert target.read_text() == "before"
    assert shop.refusal("--out", str(tmp_path / "nowhere" / "x.csv"), code=1)["code"] == "MZ035"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept.csv", "shop"]
    shop.snapshot("--count", "--out", str(target), code=64)
    shop.snapshot("--json", "--format", "csv", code=64)
    assert out_format_of("a/b.JSONL") == "json" and out_format_of("json") is None


def test_rows_are_read_as_they_are_taken(shop: Shop, tmp_path: Path) -> None:
    """To bound memory, the last of many files aren't opened before their rows are needed."""
    shop.source.run(named(0, 40_000), files=20)
    batches = snapshot_batches(shop.source.history, 0)
    assert 0 < next(batches).num_rows <= 8192
    shop.source.data(0)[-1].unlink()
    with pytest.raises(GoneError, match="is missing, and no version has taken it out"):
        list(batches)
    target = tmp_path / "part.csv"
    shop.snapshot("--out", str(target), code=1)
    assert not target.exists()
