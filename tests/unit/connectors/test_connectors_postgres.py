"""PostgreSQL without a server: types, statements, and the diagnostics of errors."""

from __future__ import annotations

import struct
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, count
from types import SimpleNamespace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from mzplan.connectors.api.queries import Output, ResolvedQuery, resolve
from mzplan.connectors.postgres import types
from mzplan.connectors.postgres.client import conninfo
from mzplan.connectors.postgres.definition import create_table
from mzplan.connectors.postgres.problems import is_lost, reason
from mzplan.connectors.postgres.sink import refusals
from mzplan.connectors.postgres.sink.output import Ledger
from mzplan.connectors.postgres.sink.target_probe import check_table
from mzplan.connectors.postgres.sink.writer import Writer
from mzplan.connectors.postgres.source import decoder as postgres_decode
from mzplan.connectors.postgres.source import replication
from mzplan.connectors.postgres.source.continuity import keeps_values
from mzplan.connectors.postgres.source.replication import ReplicationLink
from mzplan.connectors.postgres.source.values import UnfitValueError, convert, wanted_types
from mzplan.connectors.postgres.tables import Table
from mzplan.connectors.postgres.types import TargetColumn
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.description import CollectionRead, Description
from mzplan.secrets.references import Secrets
from tests.unit.connectors.queries import described, inlined


def column(type_: str, category: str = "U", typmod: int = -1, **other: Any) -> TargetColumn:
    category = "A" if type_.startswith("_") else category
    given = {"name": "c", "type": type_, "type_schema": "pg_catalog", "category": category, "typmod": typmod}
    return TargetColumn(**{**given, "shown": type_, "required": False, "writable": True, **other})


def numeric(precision: int, scale: int) -> TargetColumn:
    return column("numeric", "N", ((precision << 16) | scale) + 4)


@pytest.mark.parametrize(
    ("spark", "target", "expected"),
    [
        ("BIGINT", column("int4", "N"), "narrow"),
        ("BIGINT", column("float8", "N"), "no"),
        ("BIGINT", numeric(18, 0), "narrow"),
        ("DECIMAL(10,2)", column("numeric", "N"), "fits"),
        ("DECIMAL(10,2)", numeric(10, 3), "narrow"),
        ("DECIMAL(10,2)", numeric(20, 1), "no"),
        ("DECIMAL(9,0)", column("int4", "N"), "fits"),
        ("DECIMAL(10,0)", column("int4", "N"), "narrow"),
        ("DECIMAL(9,2)", column("int4", "N"), "no"),
        ("STRING", column("jsonb"), "fits"),
        ("STRING", column("mood", "E", type_schema="public"), "fits"),
        ("STRING", column("bytea"), "no"),
        ("BINARY", column("text", "S"), "no"),
        ("DOUBLE", column("numeric", "N"), "no"),
        ("TIMESTAMP", column("timestamp", "D"), "fits"),
        ("TIMESTAMP", column("timestamptz", "D", 3), "no"),
        ("TIMESTAMP_NTZ", column("timestamp", "D", 6), "fits"),
        ("DATE", column("timestamptz", "D", 0), "fits"),
        ("ARRAY<TIMESTAMP>", column("_timestamptz", "A", 3), "no"),
        ("ARRAY<INT>", column("_int4"), "fits"),
        ("ARRAY<INT>", column("_text"), "no"),
        ("STRUCT<a: INT>", column("json"), "fits"),
    ],
)
def test_fit_of_spark_types_in_columns(spark: str, target: TargetColumn, expected: str) -> None:
    assert types.fit(spark, target) == expected
    if expected == "no":
        misfit = "would round" if target.typmod >= 0 else "can't store"
        assert types.describe_misfit(spark, target) == f"{misfit} {spark}"


@pytest.mark.parametrize(
    ("spark", "target", "staged", "straight"),
    [
        ("BIGINT", column("numeric", "N"), "bigint", False),
        ("STRING", column("varchar", "S", 7), "text", True),
        ("STRING", column("mood", "E", type_schema="public"), "text", False),
        ("DECIMAL(10,2)", numeric(10, 2), "numeric", True),
        ("TIMESTAMP", column("timestamp", "D"), "timestamp with time zone", True),
        ("ARRAY<INT>", column("_int4"), "integer[]", True),
        ("ARRAY<TIMESTAMP>", column("_timestamp"), "timestamp with time zone[]", False),
        ("ARRAY<INT>", column("jsonb"), "text", False),
    ],
)
def test_only_equal_bytes_are_copied_straight_into_a_column(
    spark: str, target: TargetColumn, staged: str, straight: bool
) -> None:
    assert types.staged_type(spark, target) == staged
    assert types.copies_straight([spark], [target]) == straight


def sink(**body: Any) -> Description:
    link = {"type": "postgres", "host": "db", "database": "shop", "user": "app", "password": "${env:PW}"}
    source = {"topic": "orders", "format": {"type": "json", "schema": "id BIGINT, note STRING"}}
    address = Address("source", "orders")
    read = CollectionRead(address=address, id="s", generation=1, type="kafka", body=source)
    given = {"from": "orders", "connection": "pg", "table": "public.orders", **body}
    return described("sink.orders_pg", "postgres", given, inlined("pg", link), reads={"orders": read})


def resolved(password: str = "pass word", **body: Any) -> ResolvedQuery:
    return resolve(sink(**body), Secrets(".", {"PW": password}), ".")


def table_of(*names: str) -> Table:
    columns = tuple(column("int8", "N", name=name) for name in names)
    return Table(oid=1, schema="public", name="orders", columns=columns, takes_copy=True)


def test_columns_match_by_name_then_ignoring_case() -> None:
    table = table_of("id", "ID", "Total")
    found = [getattr(table.column(name), "name", None) for name in ("id", "ID", "Id", "total")]
    assert found == ["id", "ID", None, "Total"]
    outputs = [Output(name="id", type="BIGINT"), Output(name="ID", type="BIGINT")]
    refused = check_table(resolved(), table_of("id"), outputs)
    assert refused is not None and "two outputs go into its column id" in refused.detail


def test_names_and_values_are_quoted() -> None:
    outputs = [Output(name="id", type="BIGINT"), Output(name='Order"', type=None)]
    assert '\n  id bigint,\n  "Order""" ...\n' in create_table(resolved(), outputs)
    assert types.shown("order") == '"order"' and types.split_name("orders") == (None, "orders")
    assert types.split_name('public."Order ""items"".v1"') == ("public", 'Order "items".v1')
    assert types.split_name('"a.b".Orders') == ("a.b", "Orders")
    assert types.literal("a\\'b") == " E'a\\\\''b'"
    ledger = Ledger(schema='a"b', sink="it's", generation=2, epoch=3, query_id="q")
    assert "'it''s'" in ledger.claim(5, 4, None) and '"a""b".writers' in ledger.claim(5, 4, None)
    assert len(Writer(address="", ledger=replace(ledger, sink="s" * 80)).stage) <= 63
    problem = RuntimeError("ERROR:  bad password p' w\\ here\nmore")
    assert reason(resolved("p' w\\"), problem) == "bad password *** here"
    info = conninfo(resolved("p' w\\").link, ".")
    assert "password='p\\' w\\\\'" in info
    assert "host=db" in info and "connect_timeout=" in info


HEADER = bytes(postgres_decode.HEADER)
Messages = Iterator[tuple[int | None, bytes]]


def empty_transactions() -> Messages:
    """Yield begins and commits of transactions without changes. PostgreSQL 14 sends them."""
    for lsn in range(1, 500):
        yield None, HEADER + struct.pack(">cQQI", b"B", lsn, 0, 1)
        yield None, HEADER + struct.pack(">cBQQQ", b"C", 0, lsn, lsn + 1, 0)


def changes_of_many_tables() -> Messages:
    """Yield a row of each table. The server describes a table before its rows."""
    yield None, HEADER + struct.pack(">cQQI", b"B", 1, 0, 1)
    for id_ in range(1, 500):
        columns = struct.pack(">cHc", b"d", 1, b"\1") + b"id\0" + struct.pack(">Ii", 20, -1)
        yield None, HEADER + struct.pack(">cI", b"R", id_) + b"public\0t\0" + columns
        row = struct.pack(">HcI", 1, b"t", 1) + b"7"
        yield None, HEADER + struct.pack(">cIc", b"I", id_, b"N") + row


ROWS = [(7, ["7"]), (400, ["7"])]


@pytest.mark.parametrize(("messages", "expected"), [(empty_transactions, []), (changes_of_many_tables, ROWS)])
def test_changes_of_other_tables_use_no_memory(
    messages: Callable[[], Messages], expected: list[tuple[int, list[str]]]
) -> None:
    for tracing in (False, True):  # the first run loads modules
        decoder = postgres_decode.Decoder(lambda relation: ["id"], (7, 400))
        if tracing:
            tracemalloc.start()
        changes = decoder.changes(chain(messages(), [(2000, b"")]), 0, 2000)
        rows = [(rows.relation.id, rows.text("id").to_pylist()) for rows in changes]
        assert rows == expected
    assert tracemalloc.get_traced_memory()[1] < 50_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("spark", "text", "value"),
    [
        ("DECIMAL(38,10)", "1e-999999999", None),  # pyarrow would crash
        ("DECIMAL(38,10)", "NaN", None),
        ("DECIMAL(38,10)", "", None),
        ("DECIMAL(38,10)", "-12.5", "-12.5000000000"),
        ("DECIMAL(38,10)", "9" * 131072, None),  # of this and the next ones it would make other numbers
        ("DECIMAL(38,10)", "1" * 33, None),
        ("DECIMAL(38,10)", "0." + "0" * 49 + "1", None),
        ("DECIMAL(38,10)", "1." + "0" * 200, "1.0000000000"),
        ("DECIMAL(10,2)", "12345678." + "0" * 40, "12345678.00"),
        ("DECIMAL(10,2)", "123456789", None),
        ("DECIMAL(10,2)", "1.234", None),
        ("DECIMAL(10,2)", "1.2300", "1.23"),
        ("DECIMAL(38,38)", "0." + "9" * 38, "0." + "9" * 38),
        ("DATE", "0000-01-01", None),
        ("DATE", "99999-01-01", None),
        ("TIMESTAMP", "0001-01-01 00:00:00+15", None),
        ("TIMESTAMP_NTZ", "2147483648-01-01 00:00:00", None),
    ],
)
def test_text_values_are_converted_exactly_or_refused(spark: str, text: str, value: str | None) -> None:
    values = pa.array([None, text])
    if value is None:
        with pytest.raises(UnfitValueError) as told:
            convert(spark, values)
        assert told.value.row == 1
        return
    assert [str(v) if v is not None else v for v in convert(spark, values).to_pylist()] == [None, value]
    assert convert(spark, values.slice(0, 1)).to_pylist() == [None]
    assert convert(spark, values.slice(0, 0)).to_pylist() == []


@pytest.mark.parametrize(
    ("was", "now", "kept", "kept_as_text"),
    [
        (("int4", -1), ("int8", -1), True, True),
        (("int8", -1), ("int4", -1), False, False),
        (("_int4", -1), ("_int8", -1), True, True),
        (("varchar", 13), ("text", -1), True, True),
        (("varchar", 13), ("varchar", 9), False, False),
        (("bpchar", 13), ("text", -1), False, False),
        (("numeric", (20 << 16) + 4 + 4), ("numeric", (20 << 16) + 1 + 4), False, False),
        (("numeric", (20 << 16) + 4 + 4), ("numeric", (22 << 16) + 6 + 4), True, False),
        (("numeric", -1), ("numeric", (20 << 16) + 4 + 4), False, False),
        (("timestamptz", 3), ("timestamptz", -1), True, True),
        (("timestamptz", -1), ("timestamptz", 3), False, False),
        (("float4", -1), ("float8", -1), True, False),
    ],
)
def test_type_changes_that_keep_all_values(
    was: tuple[str, int], now: tuple[str, int], kept: bool, kept_as_text: bool
) -> None:
    assert keeps_values(was, now, as_text=False) is kept
    assert keeps_values(was, now, as_text=True) is kept_as_text


@pytest.mark.parametrize(
    ("precision", "scale", "wanted"),
    [(10, 2, "DECIMAL(10,2)"), (5, -2, "DECIMAL(7,0)"), (2, 5, "DECIMAL(5,5)"), (50, 10, "STRING")],
)
def test_the_spark_type_for_a_numeric(precision: int, scale: int, wanted: str) -> None:
    assert wanted_types(numeric(precision, scale & 0x7FF)) == wanted


def test_a_denied_batch_has_its_code_even_if_the_server_no_longer_answers() -> None:
    description = sink()
    description.connections["connection"].body.update(host="127.0.0.1", port=1)
    query = resolve(description, Secrets(".", {"PW": "pw"}), ".")
    problem = RuntimeError("mzplan[COPY]: permission denied for schema mzplan\n at x")
    explained = refusals.explain_batch_error(query, (), None, problem)
    assert isinstance(explained, MzplanError)
    (found,) = explained.diagnostics
    assert found.code == "MZ054" and "permission denied for schema mzplan." in found.detail
    assert "correct the table" not in found.hint


def test_a_server_that_shuts_down_is_a_lost_connection() -> None:
    assert is_lost(psycopg.errors.AdminShutdown()) and is_lost(psycopg.errors.CrashShutdown())
    assert is_lost(psycopg.OperationalError("closed")) and not is_lost(psycopg.errors.UniqueViolation())


def test_a_stream_counts_the_silence_of_the_server_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A suspended process, or a slow reader of the stream, doesn't make a server look dead."""
    monkeypatch.setattr(time, "monotonic", count(step=1000.0).__next__)
    monkeypatch.setattr(replication, "_SILENCE_S", 10 * replication._PING_S)
    arrived = iter([False] * 9 + [True] + [False] * 30)
    asked: list[bool] = []
    link: Any = ReplicationLink.__new__(ReplicationLink)
    link._connection = SimpleNamespace(get_copy_data=lambda asynchronous: (0, b""))
    link._wait = lambda: next(arrived)
    link._send_status = lambda *, ask: asked.append(ask)
    with pytest.raises(psycopg.OperationalError, match="the server was silent"):
        next(link.messages())
    assert 18 <= len(list(arrived)) <= 20 and asked == [True]
