"""Damaged checkpoints and files of a Delta table."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet

from mzplan.connectors.delta.table import last_step, open_table
from mzplan.warehouse import foreign_query
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.snapshot import TableSnapshot, small_files


def table(folder: Path) -> Path:
    for number in range(2):
        write_deltalake(str(folder), pa.table({"id": [number]}), mode="append")
    return folder


@pytest.mark.parametrize("named", ["", "uuid.json", "uuid.parquet"])
def test_checkpoint_with_sidecars(tmp_path: Path, named: str) -> None:
    """In Delta's V2 checkpoints, separate files list the table's files."""
    folder = table(tmp_path / "t")
    DeltaTable(folder).create_checkpoint()
    log, before = folder / "_delta_log", CollectionLog(str(folder))
    classic = log / f"{1:020}.checkpoint.parquet"
    rows, schema = parquet.read_table(classic).to_pylist(), parquet.read_schema(classic)
    files = [row for row in rows if row["add"]]
    (log / "_sidecars").mkdir()

    of_files = [{"add": row["add"]} for row in files]
    parquet.write_table(pa.Table.from_pylist(of_files), log / "_sidecars" / "s.parquet")
    kept = [row for row in rows if not row["add"]]
    if named.endswith("json"):
        kept = [{kind: value for kind, value in row.items() if value} for row in kept]
        text = "".join(json.dumps(row) + "\n" for row in [*kept, {"sidecar": {"path": "s.parquet"}}])
        (log / f"{1:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json").write_text(text)
    else:
        name = f"{1:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.parquet" if named else classic.name
        with_sidecar = [*kept, {"sidecar": {"path": "s.parquet", "sizeInBytes": 1, "modificationTime": 1}}]
        parquet.write_table(pa.Table.from_pylist(with_sidecar, schema), log / name)
    partitions, features = before.partitions(), before.features()
    if named:
        classic.unlink()
    looked = CollectionLog(str(folder))
    assert (looked.partitions(), looked.features()) == (partitions, features)


def test_last_step_ignores_only_a_damaged_checkpoint(tmp_path: Path) -> None:
    folder = table(tmp_path / "t")
    DeltaTable(folder).create_checkpoint()
    (folder / "_delta_log" / f"{0:020}.json").unlink()
    (folder / "_delta_log" / f"{1:020}.checkpoint.parquet").write_bytes(b"PAR1")
    assert last_step(CollectionLog(str(folder)), "q") == (1, -1)
    (folder / "_delta_log" / f"{1:020}.json").write_text("7")
    with pytest.raises(OSError, match="is damaged"):
        last_step(CollectionLog(str(folder)), "q")


def test_truncated_files_are_clear_errors(tmp_path: Path) -> None:
    """Truncated logs, checkpoints and data files neither end the process nor look like a defect."""
    whole = table(tmp_path / "whole")
    DeltaTable(whole).create_checkpoint()
    write_deltalake(str(whole), pa.table({"id": [7]}), mode="append")
    for number, file in enumerate(path for path in sorted(whole.rglob("*")) if path.is_file()):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        data = file.read_bytes()
        (folder / file.relative_to(whole)).write_bytes(data[: len(data) // 2])
        for read in (
            small_files,
            open_table,
            foreign_query.open_table,
            lambda path: list(TableSnapshot(path, 2).rows()[1]),
            lambda path: CollectionLog(path).partitions(),
            lambda path: CollectionLog(path).last_transaction("q"),
        ):
            with suppress(OSError, GoneError, foreign_query.NotAdoptableError):
                read(str(folder))
