"""A source's step again: exactly the rows that its collection's commit of that step has added."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mzplan.schema.columns import CHANGE, DELETE, UPSERT
from mzplan.warehouse.collection_log import CollectionLog, Commit
from mzplan.warehouse.content_hash import ContentHash, content_hash
from mzplan.warehouse.parquet import read_batches
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    import pyarrow as pa


_TYPE = "_change_type"  # the column in which a file of Delta's change feed says what became of a row


class GoneError(Exception):
    """A step can't be replayed from the collection any more. The message is a sentence that says why."""


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
        there = "no step" if commit.step is None else f"step {commit.step}"
        raise GoneError(
            f"Version {record.version} of {log.collection} holds {there}: the table was restored or replaced."
        )
    return commit


def collection_batches(log: CollectionLog, record: StepRecord) -> Iterator[pa.RecordBatch]:
    """The step's rows, `_position` among them, as they were written; of a keyed collection what it changed,
    with `_change`. Raises GoneError, OSError."""
    commit = commit_of(log, record)
    for file in commit.changes or commit.files:
        try:
            if commit.merged is None:
                yield from read_batches(file)
            else:
                yield from map(_changed, read_batches(file))
        except FileNotFoundError:
            raise GoneError(
                f"{file} is gone: step {record.step} was merged with others (OPTIMIZE), and VACUUM has then "
                "removed what it had written."
            ) from None


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
        change = pa.array([DELETE if one == "delete" else UPSERT for one in types], pa.string())
        batch = batch.drop_columns([_TYPE])
    return batch.append_column(CHANGE, change)


def collection_hash(log: CollectionLog, record: StepRecord) -> ContentHash:
    """The content hash of what the collection holds of a step. Raises GoneError, OSError."""
    return content_hash(collection_batches(log, record))
