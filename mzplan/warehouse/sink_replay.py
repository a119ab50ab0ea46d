"""A sink's step again: exactly the rows of its source's collection that the step has read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mzplan.warehouse.checkpoint_log import versions_between
from mzplan.warehouse.collection_log import Add, CollectionLog
from mzplan.warehouse.content_hash import ContentHash, content_hash
from mzplan.warehouse.parquet import read_batches
from mzplan.warehouse.source_replay import GoneError, logged
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    import pyarrow as pa

_ALL = 2**63


def files_of(log: CollectionLog, record: StepRecord) -> list[str]:
    """The files that a step has read. Raises GoneError, OSError.

    A sink's offset is a version of the table and the index, in the log's order, of the last file in it that
    was read, of those with new rows; below 0: none of it. A sink that begins when the table has rows already
    reads the files of a snapshot first, in the order of their age (`isStartingVersion`).
    """
    start, end = record.start, record.end
    if not isinstance(end, dict) or (start is None and record.step > 0):
        raise GoneError(f"Which part of {log.collection} step {record.step} has read is not known any more.")
    found: list[Add] = []
    first, after = 0, -1  # of the versions whose files are read one by one: the first, and the last file read
    if start is not None and not start.get("isStartingVersion"):
        first, after = int(start["reservoirVersion"]), int(start["index"])
    elif end.get("isStartingVersion") or start is not None:
        snapshot = _snapshot(log, int((start or end)["reservoirVersion"]))
        upto = int(end["index"]) if end.get("isStartingVersion") else _ALL
        found += snapshot[int(start["index"]) + 1 if start is not None else 0 : max(0, upto + 1)]
        if end.get("isStartingVersion"):
            return [add.place for add in found]
        first = int(start["reservoirVersion"]) + 1 if start is not None else 0
    last, upto = int(end["reservoirVersion"]), int(end["index"])
    for version in range(first, last + 1):
        if version == last and upto < 0:
            break
        fresh = [add for add in logged(log, version).adds if add.has_new_rows]
        found += fresh[max(0, after + 1) if version == first else 0 : upto + 1 if version == last else None]
    return [add.place for add in found]


def versions_of(log: CollectionLog, record: StepRecord) -> tuple[int, int]:
    """The first and last version of a keyed collection whose changes a step has read: of each, all. Raises
    GoneError, OSError."""
    start, end = record.start, record.end
    if not isinstance(end, dict) or (start is None and record.step > 0):
        raise GoneError(f"Which part of {log.collection} step {record.step} has read is not known any more.")
    if end.get("isStartingVersion") or (start is not None and start.get("isStartingVersion")):
        raise GoneError(
            f"Step {record.step} has read a snapshot of {log.collection}: what was there when the sink began "
            "is not told apart by steps."
        )
    found = versions_between(start, end, log)
    last = int(end["index"])
    if found is None or not (last < 0 or logged(log, found[1]).is_read_by(last)):
        raise GoneError(f"Step {record.step} has read no version of {log.collection} to its end.")
    return found


def step_batches(log: CollectionLog, record: StepRecord) -> Iterator[pa.RecordBatch]:
    """The rows, with all columns of the collection. Raises GoneError, OSError."""
    for file in files_of(log, record):
        try:
            yield from read_batches(file)
        except FileNotFoundError:
            raise GoneError(f"{file} is gone: VACUUM has removed what step {record.step} has read.") from None


def step_hash(log: CollectionLog, record: StepRecord, columns: Sequence[str]) -> ContentHash:
    """The content hash of these columns, of all rows. Raises GoneError, OSError."""
    wanted = {name.lower() for name in columns}
    return content_hash(
        batch.select([name for name in batch.schema.names if name.lower() in wanted])
        for batch in step_batches(log, record)
    )


def _snapshot(log: CollectionLog, version: int) -> list[Add]:
    """The files of a version, in the order in which Spark's stream reads them."""
    there: dict[str, Add] = {}
    for number in range(version + 1):
        commit = logged(log, number)
        for name in commit.removes:
            there.pop(name, None)
        there.update({add.name: add for add in commit.adds})
    return sorted(there.values(), key=lambda add: (add.modified, add.name.encode()))
