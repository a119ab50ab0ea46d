"""What other writers changed in a Delta table, in files with and without the partition's columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.foreign_changes import foreign_changes

IDS = pa.array(range(9), pa.int64())


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of ids, partitioned by their remainder."""
    rows = pa.table({"id": IDS, "third": pa.array([i % 3 for i in range(9)], pa.int32())})
    write_deltalake(tmp_path, rows, partition_by=["third"])
    return tmp_path


def put_partition_into_removed_files(table: Path) -> None:
    """As Spark writes some of them."""
    kept = {Path(uri).name for uri in DeltaTable(table).file_uris()}
    for file in table.glob("third=1/*.parquet"):
        if file.name not in kept:
            whole = pq.ParquetFile(file).read()
            pq.write_table(whole.append_column("third", pa.array([1] * whole.num_rows, pa.int32())), file)


def again(table: Path, *ids: int) -> None:
    """A replay writes rows again."""
    rows = pa.table({"id": pa.array(ids, pa.int64()), "third": pa.array([i % 3 for i in ids], pa.int32())})
    name = CommitProperties(app_transactions=[Transaction("mzplan replay 3 of q", 0)])
    write_deltalake(table, rows, mode="append", partition_by=["third"], commit_properties=name)


def said(table: Path) -> str | None:
    log = CollectionLog(str(table))
    commits = [*log.after(0)]
    replays = [c for c in commits if c.transaction is not None]
    found = foreign_changes(log, [c for c in commits if c not in replays], replays)
    return str(found) if found is not None else None


def test_a_delete_is_the_rows_that_are_gone_until_they_are_written_again(table: Path) -> None:
    DeltaTable(table).delete("id BETWEEN 3 AND 4")
    put_partition_into_removed_files(table)
    gone = 'removed 2 rows ({"id": 3, "third": "0"}; {"id": 4, "third": "1"}).'
    assert said(table) == f"Version 1 (DELETE) {gone}"
    again(table, 3)
    assert said(table) == f"Version 1 (DELETE) {gone}"
    again(table, 4)
    assert said(table) is None
    DeltaTable(table).delete("id = 4")
    assert said(table) is not None


def test_rows_that_others_add_are_not_undone_by_a_replay(table: Path) -> None:
    DeltaTable(table).update(updates={"id": "id + 100"}, predicate="id = 8")
    assert said(table) is not None
    again(table, 8)
    assert "added 1 row" in str(said(table))
