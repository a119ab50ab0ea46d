"""Partition columns without Spark: their values count as those of files do, and a table keeps its own."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from mzplan.connectors.api.outputs import outputs_without_spark
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.targets import held
from mzplan.connectors.delta.sink import DeltaSink
from mzplan.model.address import Address
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.content_hash import content_hash
from mzplan.warehouse.partitions import typed, with_nulls
from tests.unit.connectors.lake_queries import on_table

SCHEMA = "id BIGINT, kind STRING, day DATE, raw BINARY, tags ARRAY<STRING>"
ROWS = pa.table({"id": [1, 2, 3], "kind": ["a b", "a/b=ü", None], "day": [date(2024, 2, 29), None, None]})


def sink(table: Path, **body: Any) -> ResolvedQuery:
    return on_table(table, Address("sink", "out"), {"from": "orders", "mode": "append", **body}, SCHEMA)


def found(query: ResolvedQuery) -> list[tuple[str, str, str]]:
    probed = DeltaSink().probe(query, outputs_without_spark(query))
    return [(one.code, one.detail, one.hint) for one in probed.diagnostics]


def test_a_table_keeps_its_partition_columns(tmp_path: Path) -> None:
    divided, whole = tmp_path / "divided", tmp_path / "whole"
    for table, partitions in ((divided, ["kind", "day"]), (whole, None)):
        assert found(sink(table, partition_by=["day"])) == []
        write_deltalake(table, ROWS, partition_by=partitions)
        assert found(sink(table)) == []
    assert found(sink(divided, partition_by=["Kind", "DAY"])) == []
    ((code, detail, hint),) = found(sink(divided, partition_by=["day", "kind"]))
    assert code == "MZ053" and hint.startswith("write `partition_by: [kind, day]`; or have the table")
    assert "it is partitioned by kind, day, and the sink says partition_by: [day, kind]" in detail
    ((code, detail, hint),) = found(sink(whole, partition_by=["day"]))
    assert code == "MZ053" and "it has no partition columns" in detail
    assert hint.startswith("remove `partition_by`; or have") and "on_replace: truncate" in hint


def test_what_no_folder_can_be_named_for(tmp_path: Path) -> None:
    ((code, detail, _),) = found(sink(tmp_path / "out", partition_by=["id", "RAW", "tags"]))
    assert code == "MZ053" and "raw (BINARY), tags (ARRAY<STRING>)" in detail


def test_rows_count_with_the_values_of_their_folders(tmp_path: Path) -> None:
    write_deltalake(tmp_path, ROWS, partition_by=["kind", "day"])
    log = CollectionLog(str(tmp_path))
    assert log.partitions() == {"kind": "string", "day": "date"}
    (commit,) = log.after(-1)
    types = {"kind": pa.string(), "day": pa.date32()}
    written = held((add.place, typed(add.partition, types)) for add in commit.adds)
    assert (written.rows, written.digest) == (3, str(content_hash([ROWS])))
    DeltaTable(tmp_path).create_checkpoint()
    (tmp_path / "_delta_log" / f"{0:020}.json").unlink()
    assert CollectionLog(str(tmp_path)).partitions() == {"kind": "string", "day": "date"}
    assert CollectionLog(str(tmp_path / "none")).partitions() is None


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (pa.string(), "a b", "a b"),
        (pa.int8(), "-1", -1),
        (pa.date32(), "0001-01-01", date(1, 1, 1)),
        (pa.bool_(), "false", False),
        (pa.float64(), "-Infinity", float("-inf")),
        (pa.float32(), "1.0E30", pytest.approx(1e30)),
        (pa.decimal128(38, 18), "-1.500000000000000000", Decimal("-1.5")),
        (pa.timestamp("us", "UTC"), "2024-01-02T03:04:05.678901Z", datetime(2024, 1, 2, 3, 4, 5, 678901)),
        (pa.timestamp("us", "UTC"), "2024-01-02 03:04:05.6", datetime(2024, 1, 2, 3, 4, 5, 600000)),
        (pa.timestamp("us"), "2024-01-02 03:04:05", datetime(2024, 1, 2, 3, 4, 5)),
    ],
)
def test_values_as_spark_names_folders_for_them(type_: pa.DataType, text: str, value: Any) -> None:
    assert typed({"p": text, "q": None}, {"p": type_, "q": type_})["p"].as_py() == value


def test_a_timestamp_is_hashed_as_that_of_a_file() -> None:
    at = datetime(2024, 1, 2, 3, 4, 5, 678901, UTC)
    type_ = pa.timestamp("us", "UTC")
    named = typed({"at": "2024-01-02T03:04:05.678901Z"}, {"at": type_})["at"]
    both = (pa.table({"at": pa.array([at], type_)}), pa.table({"at": pa.array([named.as_py()], named.type)}))
    assert content_hash([both[0]]) == content_hash([both[1]])


def test_texts_that_are_null_in_the_name_of_a_folder() -> None:
    texts = ["", "__HIVE_DEFAULT_PARTITION__", None, " "]
    (batch,) = pa.table({"Kind": texts, "other": texts}).to_batches()
    stored = with_nulls(batch, ["kind"])
    assert stored.column("Kind").to_pylist() == [None, None, None, " "]
    assert stored.column("other").to_pylist() == texts
