"""Reads the rows of a step again.

For a source, these are exactly the rows that its collection's commit of that step added. For a sink, they are
exactly the rows of its source's collection that the step read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mzplan.schema.columns import CHANGE, DELETE, UPSERT
from mzplan.warehouse.collection_log import CollectionLog, versions_between
from mzplan.warehouse.damage import DamagedError, GoneError, missing_file_error
from mzplan.warehouse.folder import decoding, file_system
from mzplan.warehouse.log_entries import Add, Commit
from mzplan.warehouse.partitions import with_nulls
from mzplan.warehouse.rows.content_hash import ContentHash, content_hash
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    import pyarrow as pa

CHANGE_TYPE = "_change_type"  # the kind of change of each row, in a file of Delta's change feed
_ALL = 2**63
_ROWS = 65_536  # in a batch
_PROBE_BYTES = 1 << 30
_MAX_KEYS = 200_000  # keys of a step that are compared in memory


def read_batches(place: str) -> Iterator[pa.RecordBatch]:
    """Read the rows of one of Spark's Parquet files, without Spark.

    Raises FileNotFoundError, OSError, and DamagedError if it isn't Parquet or can't be decoded."""
    import pyarrow as pa
    from pyarrow import parquet

    system, path = file_system(place)
    try:
        # Spark stores timestamps as INT96. Read in nanoseconds, they would overflow.
        with parquet.ParquetFile(path, filesystem=system, coerce_int96_timestamp_unit="us") as file:
            yield from file.iter_batches(_ROWS)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as problem:
        if isinstance(problem, OSError) and not _can_be_read(system, path):
            raise  # the storage failed; the content may be fine
        first = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
        raise DamagedError(f"{place} is damaged: {first.rstrip('.')}") from None


def _can_be_read(system: Any, path: str) -> bool:
    """Return whether the first _PROBE_BYTES of a file can be read.

    This distinguishes storage errors from decoding errors, because pyarrow raises OSError for both."""
    try:
        with system.open_input_stream(path) as stream:
            for _ in range(_PROBE_BYTES >> 20):
                if not stream.read(1 << 20):
                    break
    except OSError:
        return False
    return True


def require_commit(log: CollectionLog, version: int) -> Commit:
    """Return a commit from the log. Raises GoneError if the log no longer has it, and OSError."""
    commit = log.commit(version)
    if commit is None:
        raise GoneError(
            f"The log of version {version} of {log.collection} is gone: Delta keeps it for "
            "delta.logRetentionDuration, by default 30 days."
        )
    return commit


def commit_of(log: CollectionLog, record: StepRecord) -> Commit:
    """Return the commit that holds a step. Raises GoneError, OSError."""
    if record.version is None:
        raise GoneError(f"It is unknown which version of {log.collection} holds step {record.step}.")
    commit = require_commit(log, record.version)
    if commit.step != record.step:
        content = "no step" if commit.step is None else f"step {commit.step}"
        raise GoneError(
            f"Version {record.version} of {log.collection} holds {content}: the table was restored or "
            "replaced."
        )
    return commit


def collection_batches(log: CollectionLog, record: StepRecord) -> Iterator[pa.RecordBatch]:
    """Yield the step's rows as they were written, with `_position`.

    For a keyed collection, yields its changes, with `_change`. Raises GoneError, DamagedError, OSError."""
    commit = commit_of(log, record)
    for file in commit.changes or commit.files:
        try:
            if commit.merged is None:
                yield from read_batches(file)
            else:
                yield from map(_with_change, read_batches(file))
        except FileNotFoundError:
            raise missing_file_error(log, file, f"which step {record.step} has written") from None


def _with_change(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the changes in a file of Delta's change feed, with `_change` and without rows before an update.

    In a data file, every row is an upsert."""
    import pyarrow as pa
    from pyarrow import compute

    if CHANGE_TYPE not in batch.schema.names:
        change = pa.array([UPSERT] * batch.num_rows, pa.string())
    else:
        batch = batch.filter(compute.not_equal(batch.column(CHANGE_TYPE), "update_preimage"))
        types = batch.column(CHANGE_TYPE).to_pylist()
        change = pa.array(
            [DELETE if change_type == "delete" else UPSERT for change_type in types], pa.string()
        )
        batch = batch.drop_columns([CHANGE_TYPE])
    return batch.append_column(CHANGE, change)


def collection_hash(log: CollectionLog, record: StepRecord) -> ContentHash:
    """Return the content hash of the collection's rows of a step. Raises GoneError, OSError."""
    return content_hash(collection_batches(log, record))


def _read_between(log: CollectionLog, record: StepRecord) -> tuple[Any, dict[str, Any]]:
    """Return Delta's offsets of a sink's step; None for a read from the start. Raises GoneError."""
    is_known = isinstance(record.end, dict) and isinstance(record.start, dict | None)
    if not is_known or (record.start is None and record.step > 0):
        raise GoneError(f"It is no longer known which part of {log.collection} step {record.step} has read.")
    return record.start, record.end


def files_of(log: CollectionLog, record: StepRecord) -> list[str]:
    """Return the files that a step has read. Raises GoneError, OSError.

    A sink's offset is a version of the table, and the index of the last file that was read. The index counts
    the version's files with new rows, in the log's order; a negative index means that no file was read. A
    sink that begins on a table with rows first reads the files of a snapshot, the oldest file first
    (`isStartingVersion`)."""
    start, end = _read_between(log, record)
    with decoding(f"the offset of step {record.step} in {log.collection}"):
        return [add.place for add in _adds_between(log, start, end)]


def _adds_between(log: CollectionLog, start: Any, end: dict[str, Any]) -> list[Add]:
    adds: list[Add] = []
    # The first version whose files the step has read, and the last file of it that an earlier step has read.
    first, last_read = 0, -1
    if start is not None and not start.get("isStartingVersion"):
        first, last_read = int(start["reservoirVersion"]), int(start["index"])
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
        new_files = [add for add in require_commit(log, version).adds if add.has_new_rows]
        adds += new_files[
            max(0, last_read + 1) if version == first else 0 : upto + 1 if version == last else None
        ]
    return adds


def versions_of(log: CollectionLog, record: StepRecord) -> tuple[int, int]:
    """Return the first and last version of a keyed collection whose changes a step has read.

    Raises GoneError if the step hasn't read all changes of each version, and OSError."""
    start, end = _read_between(log, record)
    if end.get("isStartingVersion") or (start is not None and start.get("isStartingVersion")):
        raise GoneError(
            f"Step {record.step} has read a snapshot of {log.collection}: rows that are older than the sink "
            "don't belong to single steps."
        )
    versions = versions_between(start, end, log)
    with decoding(f"the offset of step {record.step} in {log.collection}"):
        last = int(end["index"])
    if versions is None or not (last < 0 or require_commit(log, versions[1]).is_read_by(last)):
        raise GoneError(f"Step {record.step} has read no version of {log.collection} completely.")
    return versions


def step_batches(log: CollectionLog, record: StepRecord) -> Iterator[pa.RecordBatch]:
    """Yield the rows that a step has read, with all columns. Raises GoneError, OSError."""
    for file in files_of(log, record):
        try:
            yield from read_batches(file)
        except FileNotFoundError:
            raise missing_file_error(log, file, f"which step {record.step} has read") from None


def step_hash(
    log: CollectionLog,
    record: StepRecord,
    columns: Mapping[str, str],
    keys: Sequence[str] = (),
    partitions: Sequence[str] = (),
) -> ContentHash | None:
    """Return the content hash of a step's rows, as a target with these partitions stores them.

    `columns`: the columns to hash, by their names in the target. Returns None if several rows have, or may
    have, the same `keys`: the target keeps only one of them, and this function doesn't know which. Raises
    GoneError, OSError."""
    total, keys_seen = ContentHash(), set[tuple[Any, ...]]()
    for batch in step_batches(log, record):
        rows = with_nulls(_select(batch, columns), partitions)
        total += content_hash([rows])
        if keys:
            fresh = _keys_of(rows, keys)
            if fresh is None or len(keys_seen) + len(fresh) > _MAX_KEYS:
                return None
            keys_seen.update(fresh)
            if len(keys_seen) != total.rows:
                return None
    return total


def _select(batch: pa.RecordBatch, columns: Mapping[str, str]) -> pa.RecordBatch:
    """Select and rename the columns. Leaves out columns that the file doesn't have: their values are NULL."""
    indices = {name.lower(): index for index, name in enumerate(batch.schema.names)}
    selected = {
        name: indices[column.lower()] for name, column in columns.items() if column.lower() in indices
    }
    return batch.select(list(selected.values())).rename_columns(list(selected))


def _keys_of(batch: pa.RecordBatch, keys: Sequence[str]) -> list[tuple[Any, ...]] | None:
    """Return the key of each row; None if Python and Spark might compare the keys differently."""
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
    """Return the files of a version, in the order in which Spark's stream reads them."""
    files: dict[str, Add] = {}
    for number in range(version + 1):
        commit = require_commit(log, number)
        for name in commit.removes:
            files.pop(name, None)
        files.update({add.name: add for add in commit.adds})
    return sorted(files.values(), key=lambda add: (add.modified, add.name.encode()))


class ValuesSeen:
    """Finds columns of a collection that are NULL in every row, for example because of a misspelt name.

    It counts while rows are read for another purpose. Files that are older than a column don't count for
    it."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._with_value: set[str] = set()

    def watch(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the same batches, and count their values. Deletes don't count: they may have only the key."""
        for batch in batches:
            self._count(batch)
            yield batch

    def empty(self, names: Sequence[str]) -> dict[str, int]:
        """Return the columns among `names` without any value, with their number of rows.

        Columns without any row are left out."""
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
