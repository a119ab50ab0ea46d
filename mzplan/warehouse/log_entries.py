"""The entries of a Delta table's log, and the table itself, opened by delta-rs (only here)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from mzplan.warehouse.erasures import MARK
from mzplan.warehouse.paths import is_uri

if TYPE_CHECKING:
    from deltalake import DeltaTable

# The names that Delta and delta-rs use for a commit's number of deleted rows.
_DELETED = ("numDeletedRows", "num_deleted_rows", "numTargetRowsDeleted", "num_target_rows_deleted")


@dataclass(frozen=True, slots=True, kw_only=True)
class Add:
    """A file that a commit added.

    - `name`, `place`: its name in the log, and its path or URI.
    - `modified`: when it was written, in milliseconds since the epoch.
    - `has_new_rows`: False if its rows come from other files of the table.
    - `partition`: the values of the table's partition columns in all its rows, as text.
    - `rows`: the number of rows; None if the log doesn't say.
    """

    name: str
    place: str
    modified: int
    has_new_rows: bool
    partition: Mapping[str, str | None]
    rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Delta features, by their names in the log, that readers and writers of a table must support."""

    reading: frozenset[str]
    writing: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One version of a table.

    - `step`: None if no streaming query wrote it, or another one than the table's own.
    - `rows`: the rows that it added; for a MERGE, the rows that it inserted, updated and deleted.
    - `adds`, `removes`: the Parquet files that it added, and the names of the files that it removed.
    - `transaction`: the id of the writer, and the writer's step.
    - `merged`: the number of input rows of a MERGE; None for other operations.
    - `changes`: the Parquet files of its change feed. If there are none, all rows of `adds` are new.
    - `features`, `table`, `partitions`: the table's features, its id, and its partition columns with types,
      from this version on; None if unchanged.
    - `operation`: Delta's name for the operation.
    - `deletes`: whether it removed rows. False if the rows of removed files moved to other files.
    - `deleted`: the number of rows that it says it deleted; None if it doesn't say.
    - `is_erasure`: whether it only erased rows of a collection that otherwise only grows. Streams skip it.
    """

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
    table: str | None = None
    partitions: Mapping[str, str] | None = None
    operation: str = ""
    deletes: bool = False
    deleted: int | None = None
    is_erasure: bool = False

    @property
    def files(self) -> tuple[str, ...]:
        """The paths or URIs of the Parquet files that it added."""
        return tuple(add.place for add in self.adds)

    @property
    def has_changes(self) -> bool:
        """Whether it added or removed files."""
        return bool(self.adds or self.changes or self.removes)

    @property
    def is_foreign(self) -> bool:
        """Whether another writer than the table's own query changed rows."""
        return self.step is None and (self.deletes or any(add.has_new_rows for add in self.adds))

    def is_by(self, writer: str | None) -> bool:
        """Whether this query (its id), or one of its tasks, wrote the commit. True if that is unknown.

        A replay's name ends with the query's id."""
        return writer is None or self.transaction is None or self.transaction[0].endswith(writer)

    def is_read_by(self, index: int) -> bool:
        """Whether a reader of the change feed has read all of this MERGE once it has read the file
        `index`."""
        return self.merged is not None and index >= len(self.changes or self.adds) - 1


def decode_commit(collection: str, version: int, data: bytes) -> Commit:
    """Decode a commit. Raises ValueError, TypeError or KeyError for invalid content."""
    actions: dict[str, list[dict[str, Any]]] = {}
    for line in data.splitlines():
        for kind, content in action_of(line).items():
            actions.setdefault(kind, []).append(content)
    info: dict[str, Any] = actions.get("commitInfo", [{}])[-1]
    adds, changes, removes = (actions.get(kind, []) for kind in ("add", "cdc", "remove"))
    is_erasure = info.get("userMetadata") == MARK
    transactions = [(str(txn["appId"]), int(txn["version"])) for txn in actions.get("txn", ())]
    transaction = transactions[-1] if transactions else None
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
                has_new_rows=bool(add.get("dataChange", True)) and not is_erasure,
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
        features=features_of(actions["protocol"][-1]) if "protocol" in actions else None,
        table=table_id_of(actions["metaData"][-1]) if "metaData" in actions else None,
        partitions=partitions_of(actions["metaData"][-1]) if "metaData" in actions else None,
        operation=str(info.get("operation", "")),
        deletes=any(remove.get("dataChange", True) for remove in removes),
        deleted=next((int(metrics[name]) for name in _DELETED if metrics.get(name) is not None), None),
        is_erasure=is_erasure,
    )


def features_of(protocol: Mapping[str, Any]) -> Features:
    """Return the features in a table's `protocol`. Older protocols list none."""
    reading, writing = protocol.get("readerFeatures"), protocol.get("writerFeatures")
    return Features(reading=frozenset(map(str, reading or ())), writing=frozenset(map(str, writing or ())))


def table_id_of(metadata: Mapping[str, Any]) -> str:
    """Return the id in a table's `metaData`."""
    return str(metadata["id"])


def partitions_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the partition columns in a table's `metaData`, with their types."""
    types = {field["name"]: field["type"] for field in json.loads(metadata["schemaString"])["fields"]}
    return {name: types[name] for name in metadata.get("partitionColumns") or ()}


def _step(info: dict[str, Any], transaction: tuple[str, int] | None) -> int | None:
    """Return the step of a commit.

    For Spark's own sink, the operation has it; for a micro-batch written by MERGE or WRITE, the
    transaction."""
    if info.get("operation") in ("MERGE", "WRITE"):
        return transaction[1] if transaction is not None else None
    epoch = (info.get("operationParameters") or {}).get("epochId")
    return int(epoch) if info.get("operation") == "STREAMING UPDATE" and epoch is not None else None


def _rows(info: dict[str, Any], metrics: dict[str, Any]) -> int | None:
    if info.get("operation") == "MERGE":
        counts = [metrics.get(f"numTargetRows{change}") for change in ("Inserted", "Updated", "Deleted")]
        return sum(int(number) for number in counts if number is not None) if any(counts) else None
    return int(metrics["numOutputRows"]) if "numOutputRows" in metrics else None


def _rows_of(add: Mapping[str, Any]) -> int | None:
    """Return the number of rows in a file, without those in its deletion vector; None if unknown."""
    try:
        count = json.loads(add.get("stats") or "{}").get("numRecords")
    except (ValueError, AttributeError):
        return None
    hidden = (add.get("deletionVector") or {}).get("cardinality", 0)
    return count - hidden if isinstance(count, int) and isinstance(hidden, int) else None


def place_of(collection: str, name: str) -> str:
    """Return the path or URI of a file, from its name in the log.

    The name has the escapes of a URI: a URI keeps them, a path doesn't."""
    return f"{collection}/{name if is_uri(collection) else unquote(name)}"


def action_of(line: bytes) -> dict[str, Any]:
    """Parse a line of a commit, or of a checkpoint in JSON. Raises ValueError."""
    action = json.loads(line.decode())
    if not isinstance(action, dict):
        raise ValueError("a line isn't an action")
    return action


def open_delta(folder: str, version: int | None = None) -> DeltaTable:
    """Open a table, by default at its newest version. Raises OSError and deltalake's DeltaError."""
    from deltalake import DeltaTable

    return DeltaTable(folder.replace("s3a://", "s3://", 1), version=version)
