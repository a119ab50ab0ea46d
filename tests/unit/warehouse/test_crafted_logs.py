"""What others may have written into a warehouse: it is named as damaged, and never costs more than it has."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.spark.versions import require_readable
from mzplan.warehouse.checkpoint_log import CheckpointLog
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.collection_log import CollectionLog, is_at_boundary, steps_of, versions_between
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.going_over import table_read
from mzplan.warehouse.lost_steps import lost_steps
from mzplan.warehouse.replay import files_of
from mzplan.warehouse.step_index import StepIndex
from mzplan.warehouse.step_record import StepRecord
from mzplan.warehouse.table_checkpoints import actions_in

ORDERS = Address.parse("source.orders")
BILLION = 10**12
_METADATA = pa.struct(
    {
        "schemaString": pa.string(),
        "partitionColumns": pa.list_(pa.string()),
        "configuration": pa.map_(pa.string(), pa.string()),
    }
)
DEEP = "[" * 100_000
BRACKETS = f'{{"x": {DEEP}'


def table(folder: Path, *commits: str) -> CollectionLog:
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    for version, commit in enumerate(commits):
        (log / f"{version:020}.json").write_text(commit)
    return CollectionLog(str(folder))


def written(step: Any, **info: Any) -> str:
    """A commit of a step of the query q."""
    head = {"operation": "STREAMING UPDATE", "operationParameters": {"epochId": str(step)}, **info}
    return "\n".join(map(json.dumps, [{"commitInfo": head}, {"txn": {"appId": "q", "version": step}}]))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The versions that were looked for. More than a few thousand are too many."""
    looked: list[int] = []
    commit = CollectionLog.commit

    def looking(self: CollectionLog, version: int) -> Any:
        looked.append(version)
        assert len(looked) < 10_000, "it counts up to what an offset says"
        return commit(self, version)

    monkeypatch.setattr(CollectionLog, "commit", looking)
    return looked


def offset(version: Any, index: Any = 0, **more: Any) -> dict[str, Any]:
    return {"reservoirVersion": version, "index": index, **more}


def test_an_offset_far_beyond_the_log_is_not_counted_up_to(tmp_path: Path, counted: list[int]) -> None:
    log = table(tmp_path, written(0), written(1))
    versions = versions_between(None, offset(BILLION), log)
    assert versions == (0, BILLION) and steps_of(log, *versions) == ((0, 1), None)
    assert steps_of(log, 0, 1)[0] == (0, 1)
    for end in (offset(BILLION), offset(BILLION, isStartingVersion=True)):
        with pytest.raises(GoneError):
            files_of(log, StepRecord(step=0, end=end))


@pytest.mark.parametrize("version", ["x", None, float("inf"), [], {}])
def test_an_offset_that_is_none(tmp_path: Path, version: Any) -> None:
    log = table(tmp_path, written(0))
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
        '{"add": {"path": "x", "size": 1, "modificationTime": 1e999}}',
        f'{{"commitInfo": {{"timestamp": {"9" * 400}}}}}',
        BRACKETS,
        DEEP,
        '{"commitInfo": {"operation": "WRITE", "operationMetrics": {"numOutputRows": 1e999}}}',
        '{"metaData": {"schemaString": ' + json.dumps(DEEP) + "}}",
        '{"add": {"path": 7, "size": 1}}',
        "7",
    ],
)
def test_a_commit_that_is_none_is_named(tmp_path: Path, commit: str) -> None:
    log = table(tmp_path, written(0), commit)
    with pytest.raises(OSError, match=r"0001\.json is damaged"):
        log.commit(1)


def spark_log(folder: Path, **files: str) -> CheckpointLog:
    """A checkpoint of Spark's: the files of its folders by their names, `offsets_3` for `offsets/3`."""
    for name, text in files.items():
        path = folder / name.replace("_", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return CheckpointLog(str(folder))


def test_steps_that_are_only_numbers_are_not_counted_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {f"commits_{BILLION}": "v1", "offsets_0": "v1\n{}\n-", "metadata": "{}"}
    log = spark_log(tmp_path / "c", **files)
    looked: list[int] = []
    lines = CheckpointLog.lines

    def looking(self: CheckpointLog, step: int) -> list[str]:
        looked.append(step)
        assert len(looked) < 1000, "it counts from what a name says"
        return lines(self, step)

    monkeypatch.setattr(CheckpointLog, "lines", looking)
    assert log.last_written() == 0
    (tmp_path / "c" / "metadata").write_text('{"id": "q"}')
    collection = table(tmp_path / "t", written(0), written(BILLION))
    assert lost_steps(collection, log) is None


@pytest.mark.parametrize("text", [DEEP, "[]", '"x"', "7", '{"id": '])
def test_spark_logs_that_are_none_are_named(tmp_path: Path, text: str) -> None:
    log = spark_log(tmp_path, metadata=text, offsets_1=f"v1\n{text}\n-", sources_0_0=f"v1\n{text}")
    with pytest.raises(OSError, match="metadata is damaged"):
        log.query_id()
    if text not in ("[]", '"x"'):  # no words in them, but nothing to stumble over either
        with pytest.raises(OSError, match="offsets/1 is damaged"):
            log.is_written(1)
    with pytest.raises(OSError, match="offsets/1 is damaged"):
        log.offset(1)
    with pytest.raises(OSError, match="is damaged"):
        log.files(None, {"logOffset": 3})
    assert table_read(DEEP) is None


def test_an_offset_whose_time_is_none(tmp_path: Path) -> None:
    log = spark_log(tmp_path, offsets_1='v1\n{"batchTimestampMs": ' + "9" * 400 + "}\n-")
    with pytest.raises(OSError, match="offsets/1 is damaged"):
        log.offset(1)


def test_lines_and_marks_of_an_index_that_are_none(tmp_path: Path) -> None:
    index = StepIndex(Checkpoint(str(tmp_path)))
    (tmp_path / "index").mkdir()
    lines = [DEEP, '{"step": 1e999}', f'{{"step": {"9" * 5000}}}', StepRecord(step=3).line()]
    (tmp_path / "index" / f"{0:020}.jsonl").write_text("\n".join(lines))
    assert [record.step for record in index.backwards()] == [3]
    for text in ('{"since": 1e999}', DEEP, "7"):
        (tmp_path / "index" / "since.json").write_text(text)
        with pytest.raises(OSError, match=r"since\.json is damaged"):
            index.since()


@pytest.mark.parametrize(
    "text", ['{"layout":{}}', '"x"', '{"layout":{"version":1e999}}', "1e999", DEEP, "{}"]
)
def test_facts_of_a_checkpoint_that_are_none_are_named(tmp_path: Path, text: str) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    for name in ("layout", "collection", "departure", "begun", "replays", "carried", "versions"):
        (tmp_path / f"{name}.json").write_text(text.replace("layout", name))
        with pytest.raises(OSError, match=f"{name}.json is damaged"):
            getattr(checkpoint, name)()
            if name in ("begun", "replays", "carried", "versions"):  # nothing in it, or another name
                raise OSError(f"{name}.json is damaged")


def test_a_layout_of_a_later_mzplan_refuses_its_own_query(tmp_path: Path) -> None:
    (tmp_path / "layout.json").write_text('{"layout": {"version": 7}}')
    with pytest.raises(MzplanError) as caught:
        require_readable(Checkpoint(str(tmp_path)), ORDERS)
    (told,) = caught.value.diagnostics
    assert told.code == "MZ241" and told.address == ORDERS and "layout 7" in told.summary


@pytest.mark.parametrize(("text", "lies"), [("", False), ("x" * 1_000_000, False), ("x" * 1_000_000, True)])
def test_a_small_checkpoint_that_decodes_to_gigabytes_is_refused(
    tmp_path: Path, text: str, lies: bool
) -> None:
    """Of rows without anything, and of one long text many times; also where its footer says that it is
    short."""
    log = table(tmp_path, written(0))
    at = tmp_path / "_delta_log" / f"{0:020}.checkpoint.parquet"
    rows = 1_000 if text else 1_000_000
    name = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), [text])
    version = pa.array([1] * rows)
    transactions = pa.StructArray.from_arrays([name, version], ["appId", "version"])
    with parquet.ParquetWriter(
        at,
        pa.schema([("txn", transactions.type)]),
        compression="zstd",
        store_schema=not lies,
        dictionary_pagesize_limit=1 << 30,
        write_statistics=not lies,
    ) as writer:
        writer.write_table(pa.table({"txn": transactions}))
    if lies:  # the length is a number of variable length: 7 bits a byte, the lowest first, doubled
        long = parquet.read_metadata(at).row_group(0).column(0).total_uncompressed_size * 2
        parts = [long >> shift & 127 for shift in range(0, long.bit_length(), 7)]
        true = bytes([*(part | 128 for part in parts[:-1]), parts[-1]])
        short = bytes([0x82, *[0x80] * (len(parts) - 2), 0])
        assert at.read_bytes().count(true) == 1
        at.write_bytes(at.read_bytes().replace(true, short))
        assert parquet.read_metadata(at).row_group(0).column(0).total_uncompressed_size == 1
    (tmp_path / "_delta_log" / f"{0:020}.json").rename(tmp_path / "_delta_log" / f"{1:020}.json")
    assert at.stat().st_size < 100_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(OSError, match="holds more than 256 MiB"):
        log.last_transaction("other")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_500_000, "KiB"


@pytest.mark.parametrize("kind", ["DELTA_BYTE_ARRAY", pa.binary(4)])
def test_texts_of_a_checkpoint_that_can_not_be_measured_are_refused(tmp_path: Path, kind: Any) -> None:
    encoding = {"txn.appId": kind} if isinstance(kind, str) else None
    name = pa.array([b"abcd"], pa.string() if encoding else kind)
    transactions = pa.StructArray.from_arrays([name, pa.array([1])], ["appId", "version"])
    at = tmp_path / f"{1:020}.checkpoint.parquet"
    parquet.write_table(
        pa.table({"txn": transactions}),
        at,
        use_dictionary=False,
        column_encoding=encoding,
        store_schema=False,
    )
    with pytest.raises(OSError, match=rf"{at.name} is damaged: it\w* .*texts"):
        actions_in(str(tmp_path), at.name, "txn")


def test_a_checkpoint_says_what_a_table_is_divided_by(tmp_path: Path) -> None:
    """Only what is needed of its columns is read; that is all which is needed."""
    log = table(tmp_path, *[json.dumps({"commitInfo": {}})] * 2)
    schema = json.dumps({"fields": [{"name": "day", "type": "date", "metadata": {}}]})
    of_table: dict[str, Any] = {"schemaString": schema, "partitionColumns": ["day"]}
    of_table["configuration"] = [("delta.constraints.c", "x")]
    rows = pa.table({"metaData": pa.array([None, of_table], _METADATA)})
    parquet.write_table(rows, tmp_path / "_delta_log" / f"{1:020}.checkpoint.parquet")
    assert log.partitions() == {"day": "date"} and log.computing() == ("delta.constraints.c",)
