"""The rows of a step again.

Of a source: exactly those that its collection's commit of that step has added. Of a sink: exactly those of
its source's collection that the step has read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mzplan.schema.columns import CHANGE, DELETE, UPSERT
from mzplan.warehouse.collection_log import CollectionLog, versions_between
from mzplan.warehouse.content_hash import ContentHash, content_hash
from mzplan.warehouse.damage import DamagedError, GoneError, missing
from mzplan.warehouse.folder import decoding, file_system
from mzplan.warehouse.log_entries import Add, Commit
from mzplan.warehouse.partitions import with_nulls
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    import pyarrow as pa

_TYPE = "_change_type"  # the column in which a file of Delta's change feed says what became of a row
_ALL = 2**63
_ROWS = 65_536  # of a batch
_LOOKED_AT = 1 << 30  # bytes
_MOST_KEYS = 200_000  # of a step, that are compared in memory


def read_batches(place: str) -> Iterator[pa.RecordBatch]:
    """The rows of one of Spark's Parquet files, read without Spark. Raises FileNotFoundError, OSError, and
    DamagedError for one that is no Parquet or can't be decoded."""
    import pyarrow as pa
    from pyarrow import parquet

    system, path = file_system(place)
    try:
        # Spark stores timestamps as INT96, which would be read in nanoseconds and overflow.
        with parquet.ParquetFile(path, filesystem=system, coerce_int96_timestamp_unit="us") as file:
            yield from file.iter_batches(_ROWS)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as problem:
        if isinstance(problem, OSError) and not _can_be_read(system, path):
            raise  # the storage, not what is in the file
        first = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise DamagedError(f"{place} is damaged: {first.rstrip('.')}") from None


def _can_be_read(system: Any, path: str) -> bool:
    """Whether the bytes of a file (of a huge one, the first) come: pyarrow's errors of decoding are OSErrors
    as well."""
    try:
        with system.open_input_stream(path) as stream:
            for _ in range(_LOOKED_AT >> 20):
                if not stream.read(1 << 20):
                    break
    except OSError:
        return False
    return True


def logged(log: CollectionLog, version: int) -> Commit:
    """A version that was written, from the log. Raises GoneError, OSError."""
    commit = log.commit(version)
    if commit is None:
        raise GoneError(
            f"The log of version {version} of {log.collection} is gone: Delta keeps it for "
            "delta.logRetentionDuration, by default 30 days."
        )
    return commit


def commit_of(log: CollectionLog, record: StepRecord) -> Commit:
    """The commit that holds a step. Raises GoneError, OSError."""
    if record.version is None:
        raise GoneError(f"Which version of {log.collection} holds step {record.step} is not known.")
    commit = logged(log, record.version)
    if commit.step != record.step:
        held = "no step" if commit.step is None else f"step {commit.step}"
        raise GoneError(
            f"Version {record.version} of {log.collection} holds {held}: the table was restored or replaced."
        )
    return commit


def collection_batches(log: CollectionLog, record: StepRecord) -> Iterator[pa.RecordBatch]:
    """The step's rows, `_position` among them, as they were written; of a keyed collection what it changed,
    with `_change`. Raises GoneError, DamagedError, OSError."""
    commit = commit_of(log, record)
    for file in commit.changes or commit.files:
        try:
            if commit.merged is None:
                yield from read_batches(file)
            else:
                yield from map(_changed, read_batches(file))
        except FileNotFoundError:
            raise missing(log, file, f"which step {record.step} has written") from None


def _changed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows of a file of Delta's change feed without those that were there before an update, and what
    became of each as `_change`; of a data file that all are new."""
    import pyarrow as pa
    from pyarrow import compute

    if _TYPE not in batch.schema.names:
        change = pa.array([UPSERT] * batch.num_rows, pa.string())
    else:
        batch = batch.filter(compute.not_equal(batch.column(_TYPE), "update_preimage"))
        types = batch.column(_TYPE).to_pylist()
        change = pa.array(
            [DELETE if change_type == "delete" else UPSERT for change_type in types], pa.string()
        )
        batch = batch.drop_columns([_TYPE])
    return batch.append_column(CHANGE, change)


def collection_hash(log: CollectionLog, record: StepRecord) -> ContentHash:
    """The content hash of what the collection holds of a step. Raises GoneError, OSError."""
    return content_hash(collection_batches(log, record))


def _read_between(log: CollectionLog, record: StepRecord) -> tuple[Any, dict[str, Any]]:
    """Delta's offsets between which a sink's step has read (None: from the start). Raises GoneError."""
    is_known = isinstance(record.end, dict) and isinstance(record.start, dict | None)
    if not is_known or (record.start is None and record.step > 0):
        raise GoneError(f"Which part of {log.collection} step {record.step} has read is not known any more.")
    return record.start, record.end


def files_of(log: CollectionLog, record: StepRecord) -> list[str]:
    """The files that a step has read. Raises GoneError, OSError.

    A sink's offset is a version of the table and the index, in the log's order, of the last file in it that
    was read, of those with new rows; below 0: none of it. A sink that begins when the table has rows already
    reads the files of a snapshot first, in the order of their age (`isStartingVersion`).
    """
    start, end = _read_between(log, record)
    with decoding(f"the offset of step {record.step} in {log.collection}"):
        return [add.place for add in _adds_between(log, start, end)]


def _adds_between(log: CollectionLog, start: Any, end: dict[str, Any]) -> list[Add]:
    adds: list[Add] = []
    first, after = 0, -1  # of the versions whose files are read one by one: the first, and the last file read
    if start is not None and not start.get("isStartingVersion"):
        first, after = int(start["reservoirVersion"]), int(start["index"])
    elif end.get("isStartingVersion") or start is not None:
        snapshot = _snapshot(log, int((start or end)["reservoirVersion"]))
        upto = int(end["index"]) if end.get("isStartingVersion") else _ALL
        adds += snapshot[int(start["index"]) + 1 if start is not None else 0 : max(0, upto + 1)]
        if end.get("isStartingVersion"):
            return adds
        first = int(start["reservoirVersion"]) + 1 if start is not None else 0
    last, upto = int(end["reservoirVersion"]), int(end["index"])
    for version in range(first, last + 1):
        if version == last and upto < 0:
            break
        fresh = [add for add in logged(log, version).adds if add.has_new_rows]
        adds += fresh[max(0, after + 1) if version == first else 0 : upto + 1 if version == last else None]
    return adds


def versions_of(log: CollectionLog, record: StepRecord) -> tuple[int, int]:
    """The first and last version of a keyed collection whose changes a step has read: of each, all. Raises
    GoneError, OSError."""
    start, end = _read_between(log, record)
    if end.get("isStartingVersion") or (start is not None and start.get("isStartingVersion")):
        raise GoneError(
            f"Step {record.step} has read a snapshot of {log.collection}: what was there when the sink began "
            "is not told apart by steps."
        )
    versions = versions_between(start, end, log)
    with decoding(f"the offset of step {record.step} in {log.collection}"):
        last = int(end["index"])
    if versions is None or not (last < 0 or logged(log, versions[1]).is_read_by(last)):
        raise GoneError(f"Step {record.step} has read no version of {log.collection} to its end.")
    return versions


def step_batches(log: CollectionLog, record: StepRecord) -> Iterator[pa.RecordBatch]:
    """The rows, with all columns of the collection. Raises GoneError, OSError."""
    for file in files_of(log, record):
        try:
            yield from read_batches(file)
        except FileNotFoundError:
            raise missing(log, file, f"which step {record.step} has read") from None


def step_hash(
    log: CollectionLog,
    record: StepRecord,
    columns: Mapping[str, str],
    keys: Sequence[str] = (),
    partitions: Sequence[str] = (),
) -> ContentHash | None:
    """The content hash of these columns, by the names that they get, of all rows, as a target with these
    partition columns stores them. Raises GoneError, OSError. None where rows have the same `keys`, or may
    have: which of them counts is not decided here."""
    total, seen = ContentHash(), set[tuple[Any, ...]]()
    for batch in step_batches(log, record):
        rows = with_nulls(_renamed(batch, columns), partitions)
        total += content_hash([rows])
        if keys:
            fresh = _keys_of(rows, keys)
            if fresh is None or len(seen) + len(fresh) > _MOST_KEYS:
                return None
            seen.update(fresh)
            if len(seen) != total.rows:
                return None
    return total


def _renamed(batch: pa.RecordBatch, columns: Mapping[str, str]) -> pa.RecordBatch:
    """Columns that a file does not have yet are left out: they are NULL."""
    indices = {name.lower(): index for index, name in enumerate(batch.schema.names)}
    selected = {
        name: indices[column.lower()] for name, column in columns.items() if column.lower() in indices
    }
    return batch.select(list(selected.values())).rename_columns(list(selected))


def _keys_of(batch: pa.RecordBatch, keys: Sequence[str]) -> list[tuple[Any, ...]] | None:
    """The key of each row; None where Python might find equal what Spark does not, or the reverse."""
    import pyarrow as pa

    names = {name.lower(): index for index, name in enumerate(batch.schema.names)}
    key_columns = []
    for key in keys:
        column = batch.column(names[key.lower()]) if key.lower() in names else None
        if column is None or not (pa.types.is_integer(column.type) or pa.types.is_string(column.type)):
            return None
        key_columns.append(column.to_pylist())
    return list(zip(*key_columns, strict=True))


def _snapshot(log: CollectionLog, version: int) -> list[Add]:
    """The files of a version, in the order in which Spark's stream reads them."""
    files: dict[str, Add] = {}
    for number in range(version + 1):
        commit = logged(log, number)
        for name in commit.removes:
            files.pop(name, None)
        files.update({add.name: add for add in commit.adds})
    return sorted(files.values(), key=lambda add: (add.modified, add.name.encode()))


class ValuesSeen:
    """Which columns of a collection have had a value at all: a declared field that no record has is NULL in
    every row, and looks like one that was misspelt.

    Counts while rows are read for something else. Only rows of files that have a column count for it:
    those from before it was declared say nothing of it."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._with_value: set[str] = set()

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same batches. Rows that say what was deleted don't count: they may have the key alone."""
        for batch in batches:
            self._count(batch)
            yield batch

    def empty(self, names: Sequence[str]) -> dict[str, int]:
        """Of these columns, those that have had no value, with how many rows were looked at; not those of
        which none was."""
        return {
            name: rows
            for name in names
            if name not in self._with_value and (rows := self._rows.get(name, 0)) > 0
        }

    def _count(self, batch: pa.RecordBatch) -> None:
        if CHANGE in batch.schema.names:
            from pyarrow import compute

            batch = batch.filter(compute.not_equal(batch.column(CHANGE), DELETE))
        for name in batch.schema.names:
            self._rows[name] = self._rows.get(name, 0) + batch.num_rows
            if name not in self._with_value and batch.column(name).null_count < batch.num_rows:
                self._with_value.add(name)
