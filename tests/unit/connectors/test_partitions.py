"""Folders of files without Spark: the committed files, and the values of partition columns."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from mzplan.connectors.api.outputs import outputs_without_spark
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.targets import hash_files
from mzplan.connectors.delta.sink import DeltaSink
from mzplan.connectors.files.manifest import LOG, committed_files, hadoop_path
from mzplan.connectors.files.sink import FilesSink
from mzplan.model.address import Address
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.folder import remote
from mzplan.warehouse.partitions import typed, with_nulls
from mzplan.warehouse.rows.content_hash import content_hash
from tests.unit.connectors.queries import on_table

SCHEMA = "id BIGINT, kind STRING, day DATE, raw BINARY, tags ARRAY<STRING>"
ROWS = pa.table({"id": [1, 2, 3], "kind": ["a b", "a/b=ü", None], "day": [date(2024, 2, 29), None, None]})


def sink(table: Path, **body: Any) -> ResolvedQuery:
    return on_table(table, Address("sink", "out"), {"from": "orders", "mode": "append", **body}, SCHEMA)


def found(query: ResolvedQuery) -> list[tuple[str, str, str]]:
    connector = FilesSink() if "format" in query.body else DeltaSink()
    diagnostics = connector.probe(query, outputs_without_spark(query)).diagnostics
    return [(one.code, one.detail, one.hint) for one in diagnostics]


def test_a_table_keeps_its_partition_columns(tmp_path: Path) -> None:
    divided, whole = tmp_path / "divided", tmp_path / "whole"
    for table, partitions in ((divided, ["kind", "day"]), (whole, None)):
        assert found(sink(table, partition_by=["day"])) == []
        write_deltalake(table, ROWS, partition_by=partitions)
        assert found(sink(table)) == []
    assert found(sink(divided, partition_by=["Kind", "DAY"])) == []
    ((code, detail, hint),) = found(sink(divided, partition_by=["day", "kind"]))
    assert code == "MZ053" and hint.startswith("write `partition_by: [kind, day]`; or rewrite the target")
    assert "is partitioned by kind, day, but the sink has partition_by: [day, kind]" in detail
    ((code, detail, hint),) = found(sink(whole, partition_by=["day"]))
    assert code == "MZ053" and "has no partition columns" in detail
    assert hint.startswith("remove `partition_by`; or rewrite") and "on_replace: truncate" in hint


def of_files(folder: Path, format_: str = "parquet", **body: Any) -> ResolvedQuery:
    return sink(folder, format={"type": format_}, **body)


def put(*files: Path) -> None:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


def test_a_folder_of_files_keeps_its_partition_columns(tmp_path: Path) -> None:
    divided, whole, begun = tmp_path / "divided", tmp_path / "whole", tmp_path / "begun"
    for number in range(100):
        (divided / f"old={number}").mkdir(parents=True)  # emptied
    put(divided / "README.md", divided / "notes/a.parquet", divided / "_temporary/a.parquet")
    assert found(of_files(divided, partition_by=["day"])) == []
    put(divided / "kind=1/d%61y=x/part-0.snappy.parquet", whole / "part-0.json")
    assert found(of_files(divided, partition_by=["Kind", "DAY"])) == []
    assert found(of_files(divided, "json", partition_by=["day"])) == found(of_files(whole, "json")) == []

    ((code, detail, hint),) = found(of_files(divided, partition_by=["day", "kind"]))
    assert code == "MZ053" and hint.startswith("write `partition_by: [kind, day]`; or give the sink a target")
    assert "is partitioned by kind, day, but the sink has partition_by: [day, kind]" in detail
    ((_, detail, _),) = found(of_files(divided))
    assert "but the sink has no partition_by" in detail
    ((code, detail, hint),) = found(of_files(whole, "json", partition_by=["day"]))
    assert code == "MZ053" and "has no partition columns" in detail
    assert hint.startswith("remove `partition_by`; or give the sink a target")

    strange = tmp_path / "strange"
    put(strange / (os.fsdecode(b"\xff\x1b[2J=1")) / "a.parquet")  # a name that isn't text
    ((_, detail, hint),) = found(of_files(strange))
    assert "is partitioned by \\udcff\\x1b[2J, but" in detail and (detail + hint).isprintable()

    # What a files sink has written can be removed by the next one.
    put(whole / LOG / "0")
    ((_, _, hint),) = found(other := of_files(whole, "json", partition_by=["day"]))
    assert "on_replace: truncate" in hint
    second = replace(other.description, generation=2)
    emptied = replace(other, body={**other.body, "on_replace": "truncate"}, description=second)
    assert found(emptied) == []
    # What others put beside the files of a sink that runs is nothing of its target.
    put(begun / "spark/offsets/0")
    assert found(replace(other, checkpoint=Checkpoint(str(begun)))) == []


def test_paths_in_an_object_store_have_the_escapes_of_a_uri() -> None:
    listed = {
        "s3a://lake/out/at=03%253A04/kind=a%20b/part-0": "s3a://lake/out/at=03%3A04/kind=a b/part-0",
        "/lake/out/at=03%3A04/part-0": "/lake/out/at=03%3A04/part-0",
    }
    assert [hadoop_path(path) for path in listed] == list(listed.values())
    _, path = remote("s3a://lake/kind=é%20a%252Fb/part 0?region=us-east-1")
    assert path == "lake/kind=é a%2Fb/part 0"


def test_links_in_a_folder_of_files_are_not_followed(tmp_path: Path) -> None:
    put(tmp_path / "elsewhere/part-0.parquet", tmp_path / "out/_x")
    (tmp_path / "out/kind=1").symlink_to(tmp_path / "elsewhere")
    assert found(of_files(tmp_path / "out", partition_by=["day"])) == []


def test_a_column_whose_values_name_no_folder_is_refused(tmp_path: Path) -> None:
    ((code, detail, _),) = found(sink(tmp_path / "out", partition_by=["id", "RAW", "tags"]))
    assert code == "MZ053" and "raw (BINARY), tags (ARRAY<STRING>)" in detail


def test_rows_are_hashed_with_the_values_of_their_folders(tmp_path: Path) -> None:
    write_deltalake(tmp_path, ROWS, partition_by=["kind", "day"])
    log = CollectionLog(str(tmp_path))
    assert log.partitions() == {"kind": "string", "day": "date"}
    types = {"kind": pa.string(), "day": pa.date32()}
    for place in (str(tmp_path), tmp_path.as_uri()):
        (commit,) = CollectionLog(place).after(-1)
        written = hash_files((add.place, typed(add.partition, types)) for add in commit.adds)
        assert (written.rows, written.digest) == (3, str(content_hash([ROWS]))), place
    DeltaTable(tmp_path).create_checkpoint()
    (tmp_path / "_delta_log" / f"{0:020}.json").unlink()
    assert CollectionLog(str(tmp_path)).partitions() == {"kind": "string", "day": "date"}
    assert CollectionLog(str(tmp_path / "none")).partitions() is None


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (pa.string(), "a b", "a b"),
        (pa.date32(), "0001-01-01", date(1, 1, 1)),
        (pa.float64(), "-Infinity", float("-inf")),
        (pa.decimal128(38, 18), "-1.500000000000000000", Decimal("-1.5")),
        (pa.timestamp("us", "UTC"), "2024-01-02T03:04:05.678901Z", datetime(2024, 1, 2, 3, 4, 5, 678901)),
        (pa.timestamp("us", "UTC"), "2024-01-02 03:04:05.6", datetime(2024, 1, 2, 3, 4, 5, 600000)),
    ],
)
def test_a_folders_name_is_read_as_a_value(type_: pa.DataType, text: str, value: Any) -> None:
    assert typed({"p": text, "q": None}, {"p": type_, "q": type_})["p"].as_py() == value


def test_empty_texts_in_a_folders_name_are_null() -> None:
    texts = ["", "__HIVE_DEFAULT_PARTITION__", None, " "]
    (batch,) = pa.table({"Kind": texts, "other": texts}).to_batches()
    stored = with_nulls(batch, ["kind"])
    assert stored.column("Kind").to_pylist() == [None, None, None, " "]
    assert stored.column("other").to_pylist() == texts


def test_a_decimal_that_spark_would_not_write_is_refused() -> None:
    """pyarrow crashes at some of them, and anybody can name a folder."""
    type_ = pa.decimal128(38, 18)
    texts = {"1E-7": Decimal("1E-7"), "-1.50": Decimal("-1.5"), "1E+2": Decimal(100), "0E-18": Decimal(0)}
    for text, value in texts.items():
        assert typed({"d": text}, {"d": type_})["d"].as_py() == value
    for text in ("1e-999999999", "1E-999", "9" * 99, "NaN", ""):
        with pytest.raises(ValueError, match="isn't a decimal"):
            typed({"d": text}, {"d": type_})


# --- the files that count in a folder that a files sink writes


def entry(folder: Path, name: str, *paths: str) -> None:
    log = folder / LOG
    log.mkdir(exist_ok=True)
    lines = [json.dumps({"path": path, "size": 1, "action": "add"}) for path in paths]
    (log / name).write_text("\n".join(["v1", *lines]))


def test_steps_in_their_order_and_what_is_compacted_once(tmp_path: Path) -> None:
    for step in range(12):
        entry(tmp_path, str(step), f"file:///out/part-{step}%20x")
    expected = [f"/out/part-{step} x" for step in range(12)]
    assert committed_files(tmp_path) == expected and committed_files(tmp_path / "gone") == []
    entry(tmp_path, "9.compact", *(f"file:///out/part-{step}%20x" for step in range(10)))
    assert committed_files(tmp_path) == expected
    (tmp_path / LOG / ".10.crc").write_text("")
    assert committed_files(tmp_path) == expected


def test_another_store_and_another_version(tmp_path: Path) -> None:
    entry(tmp_path, "0", "s3a://bucket/out/part-0")
    assert committed_files(tmp_path) == ["s3a://bucket/out/part-0"]
    (tmp_path / LOG / "1").write_text("v2\n")
    with pytest.raises(ValueError, match="version 'v2'"):
        committed_files(tmp_path)
