"""Damaged files in a warehouse are errors that name the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.spark.versions import require_readable
from mzplan.warehouse.checkpoint_log import CheckpointLog
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.collection_log import CollectionLog, is_at_boundary, versions_between
from mzplan.warehouse.replay import files_of
from mzplan.warehouse.step_index import StepIndex
from mzplan.warehouse.step_record import StepRecord

ORDERS = Address.parse("source.orders")


def table(folder: Path, *commits: str) -> CollectionLog:
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    for version, commit in enumerate(commits):
        (log / f"{version:020}.json").write_text(commit)
    return CollectionLog(str(folder))


WRITTEN = '{"commitInfo": {"operation": "STREAMING UPDATE", "operationParameters": {"epochId": "0"}}}'


def offset(version: Any, index: Any = 0) -> dict[str, Any]:
    return {"reservoirVersion": version, "index": index}


@pytest.mark.parametrize("version", ["x", float("inf")])
def test_an_invalid_offset_is_damage(tmp_path: Path, version: Any) -> None:
    log = table(tmp_path, WRITTEN)
    for start, end in ((None, offset(version)), (None, offset(0, version)), (offset(version), offset(1))):
        with pytest.raises(OSError, match="is damaged"):
            versions_between(start, end, log)
        with pytest.raises(OSError, match="is damaged"):
            files_of(log, StepRecord(step=1, start=start or offset(0), end=end))
    with pytest.raises(OSError, match="is damaged"):
        is_at_boundary(offset(0, version))


@pytest.mark.parametrize(
    "commit",
    [
        '{"txn": {"appId": "q", "version": 1e999}}',
        '{"commitInfo": {"operation": "WRITE", "operationMetrics": {"numOutputRows": "x"}}}',
        '{"add": {"path": 7, "size": 1}}',
        "7",
    ],
)
def test_a_damaged_commit_is_named(tmp_path: Path, commit: str) -> None:
    log = table(tmp_path, WRITTEN, commit)
    with pytest.raises(OSError, match=r"0001\.json is damaged"):
        log.commit(1)


def spark_log(folder: Path, **files: str) -> CheckpointLog:
    """Write files of a Spark checkpoint by name: `offsets_3` stands for `offsets/3`."""
    for name, text in files.items():
        path = folder / name.replace("_", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return CheckpointLog(str(folder))


@pytest.mark.parametrize("text", ["[]", "7", '{"id": '])
def test_damaged_logs_of_spark_are_named(tmp_path: Path, text: str) -> None:
    log = spark_log(tmp_path, metadata=text, offsets_1=f"v1\n{text}\n-", sources_0_0=f"v1\n{text}")
    with pytest.raises(OSError, match="metadata is damaged"):
        log.query_id()
    if text != "[]":  # valid JSON, though without settings
        with pytest.raises(OSError, match="offsets/1 is damaged"):
            log.is_written(1)
    with pytest.raises(OSError, match="offsets/1 is damaged"):
        log.offset(1)
    with pytest.raises(OSError, match="is damaged"):
        log.files(None, {"logOffset": 3})


def test_damaged_lines_of_an_index_are_skipped(tmp_path: Path) -> None:
    index = StepIndex(Checkpoint(str(tmp_path)))
    (tmp_path / "index").mkdir()
    lines = ['{"step": ', '{"step": 1e999}', StepRecord(step=3).line()]
    (tmp_path / "index" / f"{0:020}.jsonl").write_text("\n".join(lines))
    assert [record.step for record in index.backwards()] == [3]


@pytest.mark.parametrize("name", ["layout", "collection", "departure", "begun", "migrated", "versions"])
def test_damaged_files_of_a_checkpoint_are_named(tmp_path: Path, name: str) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    readers = {"begun": checkpoint.descriptions, "migrated": checkpoint.migrated_rows}
    for text in ('"x"', f'{{"{name}": ', f'{{"{name}": 7}}'):
        (tmp_path / f"{name}.json").write_text(text)
        with pytest.raises(OSError, match=f"{name}.json is damaged"):
            readers.get(name, getattr(checkpoint, name, None))()  # type: ignore[misc]


def test_a_newer_layout_stops_only_its_query(tmp_path: Path) -> None:
    (tmp_path / "layout.json").write_text('{"layout": {"version": 7}}')
    with pytest.raises(MzplanError) as caught:
        require_readable(Checkpoint(str(tmp_path)), ORDERS)
    (told,) = caught.value.diagnostics
    assert told.code == "MZ031" and told.address == ORDERS and "layout 7" in told.summary
