"""What an entry of a Delta table's log says. Others may have written it: what leads out of the table is
refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.words import one_line
from mzplan.warehouse.paths import is_uri, stays_below

# What has Delta compute something with each write, or Spark load a class: of a field's metadata and of types.
_COMPUTING = (
    "delta.generationExpression",
    "delta.identity",
    "delta.invariants",
    "CURRENT_DEFAULT",
    "EXISTS_DEFAULT",
)
_CONSTRAINTS = "delta.constraints."
_ONCE = ("protocol", "metaData")
# What Delta and delta-rs call the number of rows that a commit deleted.
_DELETED = ("numDeletedRows", "num_deleted_rows", "numTargetRowsDeleted", "num_target_rows_deleted")
_ENCODED_ID = 20  # characters of the UUID in the name of a deletion vector, behind its folder


class OutsideError(MzplanError, OSError):
    """MZ283: the log of a table names a file outside it. For who reads storage, an OSError."""

    def __init__(self, table: str, entry: str, name: str):
        """`entry`: the file of the log; `name` as it is there."""
        self.why = f"{entry} names {one_line(name)}"
        super().__init__(
            Diagnostic(
                code="MZ283",
                summary=f"The log of {table} leads out of it",
                detail=f"{self.why}, which is not below the table's folder. Nothing of it was read, written "
                "or removed.",
                hint="look who else writes the table. A shallow clone has files of another table: make it a "
                "deep one, or use that table.",
            )
        )

    def at(self, address: Address) -> MzplanError:
        """The same of a query."""
        return MzplanError(replace(diagnostic, address=address) for diagnostic in self.diagnostics)

    def __str__(self) -> str:
        return f"{self.diagnostics[0].summary}: {self.why}"


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
    the names of those that it took away. `transaction` is who says that it wrote this, and as which step;
    `merged` the rows that a MERGE was given (None: it is none), and `changes` the Parquet files of its change
    feed: with none of them, its rows are those of `adds`, all new. `features`: what the table asks for from
    here on; None where that is as before. `computing`: likewise, what Delta is to compute with each write
    (generated columns, constraints, defaults), and types that name a class. `partitions`: likewise, the
    table's partition columns with their types, by Delta's names. `operation`: what was done, by Delta's name.
    `deletes`: whether it took rows away, and not only files whose rows are in others now; `deleted`: how many
    rows it says that it deleted, None if it doesn't say."""

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
    computing: tuple[str, ...] | None = None
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
    """Raises ValueError and its like for what is no commit, OutsideError for one that names other files."""
    info: dict[str, Any] = {}
    adds: list[dict[str, Any]] = []
    removes: list[dict[str, Any]] = []
    changes: list[dict[str, Any]] = []
    transaction: tuple[str, int] | None = None
    features: Features | None = None
    computing: tuple[str, ...] | None = None
    partitions: Mapping[str, str] | None = None
    actions = [action_of(line) for line in data.splitlines()]
    if any(sum(kind in action for action in actions) > 1 for kind in _ONCE):
        raise ValueError("it says twice what the table is")
    ensure_inside(collection, f"{version:020}.json", actions)
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
            computing = computing_of(action["metaData"])
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
        computing=computing,
        partitions=partitions,
        operation=str(info.get("operation", "")),
        deletes=any(remove.get("dataChange", True) for remove in removes),
        deleted=next((int(metrics[name]) for name in _DELETED if metrics.get(name) is not None), None),
    )


def features_of(protocol: Mapping[str, Any]) -> Features:
    """Of a table's `protocol`; one of the time before features has none, and each Delta can read it."""
    reading, writing = protocol.get("readerFeatures"), protocol.get("writerFeatures")
    return Features(reading=frozenset(map(str, reading or ())), writing=frozenset(map(str, writing or ())))


def computing_of(metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Of a table's `metaData`, the properties and the columns, sorted."""
    settings = dict(metadata.get("configuration") or {})  # of a checkpoint: pairs
    names = {name for name in settings if name.lower().startswith(_CONSTRAINTS)}
    _look_at(json.loads(metadata["schemaString"]), "", names)
    return tuple(sorted(names))


def partitions_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Of a table's `metaData`."""
    types = {field["name"]: field["type"] for field in json.loads(metadata["schemaString"])["fields"]}
    return {name: types[name] for name in metadata.get("partitionColumns") or ()}


def _look_at(type_: Any, column: str, names: set[str]) -> None:
    """Add the columns of a type, in Delta's JSON, that compute something or name a class."""
    if not isinstance(type_, dict):
        return
    if type_.get("type") == "udt":
        names.add(column)
    for field in type_.get("fields") or ():
        name = f"{column}.{field['name']}" if column else str(field["name"])
        if any(key.startswith(_COMPUTING) for key in field.get("metadata") or ()):
            names.add(name)
        _look_at(field["type"], name, names)
    for part in ("elementType", "keyType", "valueType", "type"):
        _look_at(type_.get(part), column, names)


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


def ensure_inside(table: str, entry: str, actions: Iterable[Mapping[str, Any]]) -> None:
    """Raise OutsideError where these actions of an entry name a file outside the table."""
    for action in actions:
        for name in _names(action):
            if not stays_below(name):
                raise OutsideError(table, entry, name)


def _names(action: Mapping[str, Any]) -> Iterator[str]:
    """Of all files that an action names, and folders of deletion vectors."""
    for kind in ("add", "remove", "cdc"):
        file = action.get(kind)
        if file is None:
            continue
        yield str(file["path"])
        vector = file.get("deletionVector")
        if vector is None or vector["storageType"] == "i":  # in the log itself
            continue
        where = str(vector["pathOrInlineDv"])
        if vector["storageType"] != "u":  # "p": a path, where it may be
            yield f"/{where}"
        elif folder := where[:-_ENCODED_ID]:
            yield folder


def action_of(line: bytes) -> dict[str, Any]:
    """A line of a commit, or of a checkpoint in JSON. Raises ValueError, also for two actions in it, or two
    values of a key: readers take different ones."""
    action = json.loads(line.decode(), object_pairs_hook=_distinct)
    if not isinstance(action, dict) or len(action) != 1:
        raise ValueError("a line is not one action")
    return action


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        raise ValueError("a key is there twice")
    return mapping
