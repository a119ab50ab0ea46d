"""Which columns of a collection have had a value at all: a declared field that no record has is NULL in every
row, and looks like one that was misspelt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from mzplan.schema.columns import CHANGE, DELETE

if TYPE_CHECKING:
    import pyarrow as pa


class ValuesSeen:
    """Counts while rows are read for something else. Only rows of files that have a column count for it:
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
