"""A collection as of a step, read without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from mzplan.columns import POSITION
from mzplan.steps.files import read_batches
from mzplan.steps.history import StepHistory
from mzplan.steps.replay import GoneError, commit_of

if TYPE_CHECKING:
    import pyarrow as pa


def snapshot_files(history: StepHistory, step: int) -> tuple[int, list[str]]:
    """The version of the collection's table that holds all up to a step, and its files. Raises GoneError,
    OSError; and GoneError for a step that is not there."""
    record = next((r for r in history.committed(step, step) if r.step == step), None)
    if record is None:
        raise GoneError(f"Step {step} is not there.")
    version = commit_of(history.collection, record).version
    return version, files_at(history.collection.collection, version)


def files_at(collection: str, version: int) -> list[str]:
    """The data files of a version of a Delta table, as paths or URIs. Raises GoneError, OSError."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError, TableNotFoundError

    try:
        return sorted(DeltaTable(collection, version=version).file_uris())
    except (DeltaError, TableNotFoundError) as problem:
        raise GoneError(f"Version {version} of {collection} can't be read any more: {problem}.") from None


def snapshot_batches(history: StepHistory, step: int) -> Iterator[pa.RecordBatch]:
    """The rows as of a step, without `_position`. Raises GoneError, OSError."""
    version, files = snapshot_files(history, step)
    for file in files:
        try:
            for batch in read_batches(file):
                yield batch.drop_columns([POSITION])
        except FileNotFoundError:
            raise GoneError(f"{file}, of version {version}, is gone: it was vacuumed.") from None
