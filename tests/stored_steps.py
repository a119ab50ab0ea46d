"""Writes the storage of sources and sinks as Spark does, so that tests can read it without Spark.

tests/integration/test_steps.py shows that Spark writes the same files.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema
from pyarrow import parquet

from mzplan.model.codec import encode
from mzplan.warehouse.checkpoints import Checkpoint, collection_path
from mzplan.warehouse.erasures import MARK
from mzplan.warehouse.rows.content_hash import ContentHash, content_hash
from mzplan.warehouse.step_history import StepHistory
from mzplan.warehouse.step_record import StepRecord
from tests.unit.cli_runs import Ran, apply, failed, mzplan, state, write

Row = dict[str, Any]
TABLE = "7f4c1c4e-1b0e-4c0e-9d0e-2f4d9c1f7a11"
POSITION = pa.struct([("partition", pa.int32()), ("offset", pa.int64()), ("timestamp", pa.timestamp("us"))])
_PROTOCOL = {
    "minReaderVersion": 3,
    "minWriterVersion": 7,
    "readerFeatures": ["timestampNtz"],
    "writerFeatures": ["timestampNtz", "appendOnly", "invariants"],
}
SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":1795244165603,"conf":{}}'


class StoredSource:
    """A Kafka source of one partition: its collection and checkpoint below a warehouse."""

    def __init__(self, warehouse: Path, id_: str = "orders-id", schema: pa.Schema | None = None):
        self.warehouse = warehouse
        self.place = (id_, 1)
        self.checkpoint = Path(Checkpoint.of(str(warehouse), *self.place).spark)
        self.collection = Path(collection_path(str(warehouse), *self.place))
        columns = schema or pa.schema([("id", pa.int64()), ("name", pa.string())])
        self.schema = columns.append(pa.field("_position", POSITION))
        self.int96 = False  # Store timestamps as INT96, as Spark does.
        self.offset = 0
        self.step = 0
        self._operate("CREATE TABLE", {"protocol": _PROTOCOL}, self._metadata())
        initial = self.checkpoint / "sources" / "0"
        initial.mkdir(parents=True)
        (initial / "0").write_bytes(b"\0v1\n" + json.dumps({"orders": {"0": 0}}).encode())

    @property
    def history(self) -> StepHistory:
        return StepHistory(str(self.warehouse), self.place)

    @property
    def version(self) -> int:
        """The next version of the table."""
        return len(list((self.collection / "_delta_log").glob("*.json")))

    def plan(self, rows: Sequence[Row]) -> None:
        """Log the offsets of the next step."""
        self.offset += len(rows)
        offsets(self.checkpoint, self.step, {"orders": {"0": self.offset}})

    def pass_over(self) -> None:
        """Run a step that writes nothing, not even a version of the table."""
        self.plan([])
        commit(self.checkpoint, self.step)
        self.step += 1

    def run(self, rows: Sequence[Row], *, seen_through: bool = True, files: int = 1) -> ContentHash:
        """Run a step: log its offsets, add its rows and, unless `seen_through` is false, commit it."""
        first = self.offset
        self.plan(rows)
        placed = [
            {**row, "_position": {"partition": 0, "offset": first + i, "timestamp": None}}
            for i, row in enumerate(rows)
        ]
        table = pa.Table.from_pylist(placed, schema=self.schema)
        adds = []
        for number in range(files):
            part = table.slice(number * len(rows) // files, len(rows) // files)
            if not part.num_rows:
                continue
            name = f"part-{number:05}-{self.step}-c000.snappy.parquet"
            # Spark leaves no Arrow schema in its files.
            parquet.write_table(
                part, self.collection / name, use_deprecated_int96_timestamps=self.int96, store_schema=False
            )
            size = (self.collection / name).stat().st_size
            stats = json.dumps({"numRecords": part.num_rows})
            adds.append({"add": _add(name, size, stats=stats)})
        written = {"outputMode": "Append", "queryId": "q", "epochId": str(self.step)}
        metrics = {"numOutputRows": str(len(rows))}
        self._operate("STREAMING UPDATE", *adds, operationParameters=written, operationMetrics=metrics)
        if seen_through:
            commit(self.checkpoint, self.step)
        self.step += 1
        return content_hash([table])

    def change(self, rows: Sequence[Row], *changes: tuple[str, Row]) -> None:
        """Run a step of a keyed collection: one MERGE that adds rows and logs `changes` in its feed."""
        self.plan([*rows, *changes])
        actions: list[dict[str, Any]] = []
        feed = self.schema.append(pa.field("_change_type", pa.string()))
        files = [("part-00000", "add", rows, self.schema)]
        files.append(("cdc-00000", "cdc", [{**row, "_change_type": type_} for type_, row in changes], feed))
        for prefix, action, listed, schema in files:
            if listed:
                name = f"{prefix}-{self.step}-c000.snappy.parquet"
                parquet.write_table(pa.Table.from_pylist(list(listed), schema=schema), self.collection / name)
                actions.append({action: _add(name, 1)})
        kinds = [kind for kind, _ in changes] or ["insert"] * len(rows)
        counted = {"Inserted": "insert", "Updated": "update_postimage", "Deleted": "delete"}
        metrics = {f"numTargetRows{what}": str(kinds.count(kind)) for what, kind in counted.items()}
        metrics["numSourceRows"] = str(len(rows))
        transaction = {"txn": {"appId": "q", "version": self.step}}
        self._operate("MERGE", transaction, *actions, operationMetrics=metrics)
        commit(self.checkpoint, self.step)
        self.step += 1

    def erase(self, step: int, erased: Row, left: Sequence[Row]) -> None:
        """Run a step that erases a row of an earlier one: it replaces its file by one with the rows left."""
        self.plan([])
        (old,) = self.data(step)
        new, cdc = (f"{name}-{self.step}-erased.snappy.parquet" for name in ("part", "cdc"))
        parquet.write_table(pa.Table.from_pylist(list(left), schema=self.schema), self.collection / new)
        feed = self.schema.append(pa.field("_change_type", pa.string()))
        changes = pa.Table.from_pylist([{**erased, "_change_type": "delete"}], schema=feed)
        parquet.write_table(changes, self.collection / cdc)
        actions: list[dict[str, Any]] = [
            {"txn": {"appId": "q", "version": self.step}},
            {"remove": {"path": old.name, "dataChange": True, "deletionTimestamp": 4}},
            {"add": _add(new, 1)},
            {"cdc": _add(cdc, 1)},
        ]
        metrics = {"numTargetRowsDeleted": "1", "numSourceRows": "1"}
        self._operate("MERGE", *actions, operationMetrics=metrics, userMetadata=MARK)
        commit(self.checkpoint, self.step)
        self.step += 1

    def alter(self, *columns: pa.Field) -> None:
        """Commit a version that belongs to no step and adds columns."""
        for column in columns:
            self.schema = self.schema.insert(len(self.schema) - 1, column)
        self._operate("ADD COLUMNS", *([self._metadata()] if columns else []))

    def merge(self) -> None:
        """Commit a version with the same rows in one file, as OPTIMIZE does."""
        table = DeltaTable(str(self.collection))
        paths = [Path(uri) for uri in table.file_uris()]
        whole = pa.concat_tables([parquet.read_table(path) for path in paths], promote_options="default")
        name = f"part-00000-merged-{self.version}.snappy.parquet"
        parquet.write_table(whole, self.collection / name)
        size = (self.collection / name).stat().st_size
        self._operate(
            "OPTIMIZE",
            {"add": _add(name, size, data_change=False)},
            *({"remove": {"path": p.name, "dataChange": False, "deletionTimestamp": 3}} for p in paths),
        )

    def delete(self, file: str) -> None:
        """Commit a version of another writer that deletes the rows of this file."""
        self._operate("DELETE", {"remove": {"path": file, "dataChange": True, "deletionTimestamp": 4}})

    def insert(self, rows: Sequence[Row], *, writer: str | None = None) -> None:
        """Commit a version of another writer that adds these rows. `writer`: the id of a streaming query."""
        name = f"part-00000-foreign-{self.version}.snappy.parquet"
        parquet.write_table(pa.Table.from_pylist(list(rows), schema=self.schema), self.collection / name)
        transaction = [{"txn": {"appId": writer, "version": 57}}] if writer is not None else []
        stats = json.dumps({"numRecords": len(rows)})
        self._operate("WRITE", *transaction, {"add": _add(name, 1, stats=stats)})

    def update(self, rows: Sequence[Row], changes: Sequence[tuple[str, Row]]) -> None:
        """Commit a version of another writer, with its change feed."""
        name = f"cdc-{self.version}.snappy.parquet"
        feed = self.schema.append(pa.field("_change_type", pa.string()))
        listed = [{**row, "_change_type": type_} for type_, row in changes]
        parquet.write_table(pa.Table.from_pylist(listed, schema=feed), self.collection / name)
        gone = {"remove": {"path": "gone", "dataChange": True, "deletionTimestamp": 4}}
        self._operate("UPDATE", gone, {"add": _add("new", 1)}, {"cdc": _add(name, 1)})

    def cut_log(self, *versions: int) -> None:
        """Remove versions from the table's log."""
        for version in versions:
            (self.collection / "_delta_log" / f"{version:020}.json").unlink()

    def vacuum(self) -> None:
        """Commit the version that Delta writes after VACUUM. Removes no file."""
        self._operate("VACUUM END")

    def _metadata(self) -> dict[str, Any]:
        return {
            "metaData": {
                "id": TABLE,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(json.loads(Schema.from_arrow(self.schema).to_json())),
                "partitionColumns": [],
                "configuration": {},
                "createdTime": 1,
            }
        }

    def record(self, *hashes: ContentHash) -> None:
        """Write the index, as the runner does with the hashes that the stream reports."""
        history = self.history
        found = history.tail(history.index.last())
        history.index.append(
            StepRecord.parse(json.dumps({**encode(r), "hash": str(h), "hash_from": "stream"}))
            for r, h in zip(found, hashes, strict=True)
        )

    def data(self, step: int) -> list[Path]:
        """Return the files of a step."""
        return sorted(self.collection.glob(f"part-*-{step}-c000.snappy.parquet"))

    def _operate(self, operation: str, *actions: dict[str, Any], **more: dict[str, str] | str) -> None:
        """Commit an operation's actions. Each step is a second later than the step before it."""
        info = {"operation": operation, "timestamp": 1795244169143 + self.step * 1000, **more}
        log = self.collection / "_delta_log"
        log.mkdir(parents=True, exist_ok=True)
        text = "".join(json.dumps(action) + "\n" for action in ({"commitInfo": info}, *actions))
        (log / f"{self.version:020}.json").write_text(text)


class StoredSink:
    """The checkpoint of a sink."""

    def __init__(self, source: StoredSource, id_: str = "out-id"):
        self.source = source
        self.place = (id_, 1)
        self.checkpoint = Path(Checkpoint.of(str(source.warehouse), *self.place).spark)
        self.step = 0

    @property
    def history(self) -> StepHistory:
        return StepHistory(str(self.source.warehouse), self.place, self.source.place)

    def run(
        self, version: int, index: int = -1, *, starting: bool = False, seen_through: bool = True
    ) -> None:
        """Run a step that ends before file `index + 1` of a version."""
        place = {"reservoirVersion": version, "index": index, "isStartingVersion": starting}
        offsets(self.checkpoint, self.step, {"sourceVersion": 1, "reservoirId": TABLE, **place})
        if seen_through:
            commit(self.checkpoint, self.step)
        self.step += 1


class StoredShop:
    """A committed project of one source with two sinks on a dry instance, and the source's storage."""

    def __init__(self, folder: Path, schema: pa.Schema | None = None):
        self.folder = write(folder)
        apply(folder)
        self.ids = {address: record["id"] for address, record in state(folder)["resources"].items()}
        self.source = StoredSource(folder / "warehouse", self.ids["source.orders"], schema)
        self.hashes: list[ContentHash] = []

    def run(self, *arguments: str, code: int = 0) -> Ran:
        ran = mzplan(self.folder, *arguments)
        assert ran.code == code, ran
        return ran

    def json(self, *arguments: str, code: int = 0) -> Any:
        return self.run(*arguments, "--json", code=code).json()

    def error(self, *arguments: str, code: int) -> dict[str, Any]:
        return failed(self.folder, *arguments, code=code)

    def sink(self, name: str) -> StoredSink:
        return StoredSink(self.source, self.ids[f"sink.{name}"])

    def steps(self, count: int) -> None:
        """Record so many steps of two rows each."""
        first = len(self.hashes)
        fresh = [self.source.run(named(2 * i, 2 * i + 2)) for i in range(first, first + count)]
        self.source.record(*fresh)
        self.hashes += fresh


def _add(name: str, size: int, *, stats: str | None = None, data_change: bool = True) -> dict[str, Any]:
    found = {"path": name, "partitionValues": {}, "size": size, "modificationTime": 1}
    return {**found, "dataChange": data_change, **({"stats": stats} if stats else {})}


def offsets(checkpoint: Path, step: int, offset: Any) -> None:
    folder = checkpoint / "offsets"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(step)).write_text(f"v1\n{SETTINGS}\n{json.dumps(offset)}")


def commit(checkpoint: Path, step: int) -> None:
    folder = checkpoint / "commits"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / str(step)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def named(first: int, last: int) -> list[Row]:
    """Rows with ids first … last - 1."""
    return [{"id": i, "name": f"n{i}"} for i in range(first, last)]
