"""What an entry of a Delta table's log says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from mzplan.warehouse.paths import is_uri

# What Delta and delta-rs call the number of rows that a commit deleted.
_DELETED = ("numDeletedRows", "num_deleted_rows", "numTargetRowsDeleted", "num_target_rows_deleted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """A file: its name in the log, its path or URI, when it was made (milliseconds), and whether its rows are
    new to the table (False: they were in other files before). `partition`: the values, as text, that all its
    rows have in the table's partition columns. `rows`: how many it has; None if the log doesn't say."""

    name: str
    place: str
    modified: int
    has_new_rows: bool
    partition: Mapping[str, str | None]
    rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Of Delta, by the names that its log has: those that whoever reads the table must have, and those that
    whoever writes it must."""

    reading: frozenset[str]
    writing: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One version. `step` is None for one that no streaming query wrote. `rows` are those that it added; of a
    MERGE those that it inserted, updated and deleted. `adds` are the Parquet files that it added, `removes`
    the names of the files that it removed. `transaction` is who says that it wrote this, and as which step;
    `merged` the rows that a MERGE was given (None: it is none), and `changes` the Parquet files of its change
    feed: with none of them, its rows are those of `adds`, all new. `features`: what the table asks for from
    here on; None where that is as before. `partitions`: likewise, the table's partition columns with their
    types, by Delta's names. `operation`: what was done, by Delta's name. `deletes`: whether it took rows
    away, and not only files whose rows are in others now; `deleted`: how many rows it says that it deleted,
    None if it doesn't say."""

    version: int
    step: int | None
    rows: int | None
    bytes: int | None
    time: float | None
    adds: tuple[Add, ...] = ()
    removes: tuple[str, ...] = ()
    transaction: tuple[str, int] | None = None
    merged: int | None = None
    is_vacuum: bool = False
    changes: tuple[str, ...] = ()
    features: Features | None = None
    partitions: Mapping[str, str] | None = None
    operation: str = ""
    deletes: bool = False
    deleted: int | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """Paths or URIs of the Parquet files that it added."""
        return tuple(add.place for add in self.adds)

    def is_read_by(self, index: int) -> bool:
        """Whether a reader of the change feed that is at this file of a MERGE has seen all of it."""
        return self.merged is not None and index >= len(self.changes or self.adds) - 1


def decode_commit(collection: str, version: int, data: bytes) -> Commit:
    """Decode a commit. Raises ValueError, TypeError or KeyError for anything else."""
    info: dict[str, Any] = {}
    adds: list[dict[str, Any]] = []
    removes: list[dict[str, Any]] = []
    changes: list[dict[str, Any]] = []
    transaction: tuple[str, int] | None = None
    features: Features | None = None
    partitions: Mapping[str, str] | None = None
    actions = [action_of(line) for line in data.splitlines()]
    for action in actions:
        if "commitInfo" in action:
            info = action["commitInfo"]
        elif "add" in action:
            adds.append(action["add"])
        elif "cdc" in action:
            changes.append(action["cdc"])
        elif "remove" in action:
            removes.append(action["remove"])
        elif "txn" in action:
            transaction = str(action["txn"]["appId"]), int(action["txn"]["version"])
        elif "protocol" in action:
            features = features_of(action["protocol"])
        elif "metaData" in action:
            partitions = partitions_of(action["metaData"])
    metrics = info.get("operationMetrics") or {}
    return Commit(
        version=version,
        step=_step(info, transaction),
        rows=_rows(info, metrics),
        bytes=sum(file["size"] for file in changes or adds),
        time=info["timestamp"] / 1000 if "timestamp" in info else None,
        adds=tuple(
            Add(
                name=add["path"],
                place=place_of(collection, add["path"]),
                modified=int(add.get("modificationTime", 0)),
                has_new_rows=bool(add.get("dataChange", True)),
                partition=add.get("partitionValues") or {},
                rows=_rows_of(add),
            )
            for add in adds
        ),
        removes=tuple(remove["path"] for remove in removes),
        transaction=transaction,
        merged=int(metrics["numSourceRows"]) if "numSourceRows" in metrics else None,
        is_vacuum=str(info.get("operation", "")).startswith("VACUUM"),
        changes=tuple(place_of(collection, file["path"]) for file in changes),
        features=features,
        partitions=partitions,
        operation=str(info.get("operation", "")),
        deletes=any(remove.get("dataChange", True) for remove in removes),
        deleted=next((int(metrics[name]) for name in _DELETED if metrics.get(name) is not None), None),
    )


def features_of(protocol: Mapping[str, Any]) -> Features:
    """Of a table's `protocol`; one of the time before features has none, and each Delta can read it."""
    reading, writing = protocol.get("readerFeatures"), protocol.get("writerFeatures")
    return Features(reading=frozenset(map(str, reading or ())), writing=frozenset(map(str, writing or ())))


def partitions_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Of a table's `metaData`."""
    types = {field["name"]: field["type"] for field in json.loads(metadata["schemaString"])["fields"]}
    return {name: types[name] for name in metadata.get("partitionColumns") or ()}


def _step(info: dict[str, Any], transaction: tuple[str, int] | None) -> int | None:
    """Of which step a commit says that it is: Spark's own sink names it, what is written a micro-batch at a
    time (MERGE, WRITE) has it as its transaction."""
    if info.get("operation") in ("MERGE", "WRITE"):
        return transaction[1] if transaction is not None else None
    epoch = (info.get("operationParameters") or {}).get("epochId")
    return int(epoch) if info.get("operation") == "STREAMING UPDATE" and epoch is not None else None


def _rows(info: dict[str, Any], metrics: dict[str, Any]) -> int | None:
    if info.get("operation") == "MERGE":
        counted = [metrics.get(f"numTargetRows{change}") for change in ("Inserted", "Updated", "Deleted")]
        return sum(int(number) for number in counted if number is not None) if any(counted) else None
    return int(metrics["numOutputRows"]) if "numOutputRows" in metrics else None


def _rows_of(add: Mapping[str, Any]) -> int | None:
    """The rows of a file, without those that its deletion vector hides; None if its statistics don't say."""
    try:
        counted = json.loads(add.get("stats") or "{}").get("numRecords")
    except (ValueError, AttributeError):
        return None
    hidden = (add.get("deletionVector") or {}).get("cardinality", 0)
    return counted - hidden if isinstance(counted, int) and isinstance(hidden, int) else None


def place_of(collection: str, name: str) -> str:
    """The path or URI of a file, by its name in the log, which has the escapes of a URI: a URI keeps them,
    and a path has none."""
    return f"{collection}/{name if is_uri(collection) else unquote(name)}"


def action_of(line: bytes) -> dict[str, Any]:
    """A line of a commit, or of a checkpoint in JSON. Raises ValueError."""
    action = json.loads(line.decode())
    if not isinstance(action, dict):
        raise ValueError("a line is no action")
    return action
