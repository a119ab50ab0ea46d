"""Decodes the rows of pgoutput's messages column by column.

Many messages are concatenated in one buffer, and values are slices of it. Arrow takes all slices of a column
at once. In a row, a column begins where the previous column ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pyarrow import StringArray

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

INSERT, UPDATE, DELETE = b"IUD"
_NEW = ord("N")  # otherwise an old row, or its key, comes first
_NULL, _UNCHANGED = b"nu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A table, as the stream describes it before its first row.

    `types`: oids of the columns' types.
    `identity`: the columns of the replica identity, which are sent for a deleted row.
    `full`: whether the replica identity is FULL, which means all columns.
    """

    id: int
    schema: str
    name: str
    columns: tuple[str, ...]
    types: tuple[int, ...]
    identity: frozenset[str]
    full: bool


@dataclass(slots=True)
class Values:
    """One column of some rows, as slices of a buffer.

    `kind`: n (NULL), u (unchanged, and not sent), or t (text).
    """

    kind: Bytes
    start: Ints
    length: Ints

    def at(self, rows: Any) -> Values:
        return Values(self.kind[rows], self.start[rows], self.length[rows])

    def unchanged_from(self, old: Values) -> Values:
        """Return a copy in which each value that wasn't sent is replaced by the value in `old`.

        A NULL in `old` is never used. The server always sends NULLs, so a NULL means that the old row has
        only the key, as in partitions whose replica identity isn't FULL.
        """
        same = (self.kind == _UNCHANGED) & (old.kind != _NULL)
        if not same.any():
            return self
        return Values(
            np.where(same, old.kind, self.kind),
            np.where(same, old.start, self.start),
            np.where(same, old.length, self.length),
        )

    def has_unsent(self) -> bool:
        """Return whether any value wasn't sent."""
        return bool((self.kind == _UNCHANGED).any())


@dataclass(slots=True)
class TableChanges:
    """Changes of one table, all upserts or all deletes. A delete has only the key's columns.

    `lsn` and `sequence` order the changes: the LSN of the transaction's commit, and the number within it.
    """

    relation: Relation
    deleted: bool
    data: bytes
    lsn: Ints
    sequence: Ints
    columns: dict[str, Values]

    def text(self, column: str) -> StringArray:
        """Return a column as Arrow strings."""
        return _strings(self.data, self.columns[column])


@dataclass(slots=True)
class MessageBlock:
    """Messages of one kind and table. `at` has the offset of the letter before each message's first tuple."""

    relation: Relation
    key: tuple[str, ...]
    data: bytes
    buffer: Bytes
    at: Ints
    lsn: Ints
    sequence: Ints

    def rows(self, kind: int) -> Iterator[TableChanges]:
        if kind != UPDATE:
            yield self._single_tuples(deleted=kind == DELETE)
            return
        has_only_new = self.buffer[self.at] == _NEW
        if has_only_new.any():
            yield self._select(has_only_new)._single_tuples(deleted=False)
        if not has_only_new.all():
            yield from self._select(~has_only_new)._updates()

    def _single_tuples(self, *, deleted: bool) -> TableChanges:
        columns, _ = self._tuples(self.at + 1)
        return self._to_changes(columns, deleted=deleted)

    def _updates(self) -> Iterator[TableChanges]:
        """Yield the changes of updates that also have the old row, or its key."""
        before, after_old = self._tuples(self.at + 1)
        now, _ = self._tuples(after_old + 1)
        if self.relation.full:
            now = [
                new_values.unchanged_from(old_values)
                for new_values, old_values in zip(now, before, strict=True)
            ]
        key_changed = self._key_changed(before, now)
        if key_changed.any():
            # Put the delete before the upsert, because both keys may be equal in spite of different texts.
            deleted_rows = self._select(key_changed)
            deleted_rows.sequence = deleted_rows.sequence - 1
            yield deleted_rows._to_changes([values.at(key_changed) for values in before], deleted=True)
        yield self._to_changes(now, deleted=False)

    def _key_changed(self, before: list[Values], now: list[Values]) -> Any:
        """Return the mask of the rows whose key has changed."""
        from pyarrow import compute as pc

        changed = np.zeros(len(self.at), bool)
        for name, old, new in zip(self.relation.columns, before, now, strict=True):
            if name in self.key and not new.has_unsent():
                same = pc.equal(_strings(self.data, old), _strings(self.data, new))
                changed |= ~same.fill_null(False).to_numpy(zero_copy_only=False)
        return changed

    def _select(self, rows: Any) -> MessageBlock:
        return MessageBlock(
            self.relation,
            self.key,
            self.data,
            self.buffer,
            self.at[rows],
            self.lsn[rows],
            self.sequence[rows],
        )

    def _to_changes(self, columns: list[Values], *, deleted: bool) -> TableChanges:
        named = zip(self.relation.columns, columns, strict=True)
        by_name = {name: values for name, values in named if not deleted or name in self.key}
        return TableChanges(self.relation, deleted, self.data, self.lsn, self.sequence, by_name)

    def _tuples(self, at: Ints) -> tuple[list[Values], Ints]:
        """Return the columns of the tuples that begin at these offsets, and the offsets of their ends."""
        count = len(self.relation.columns)
        assert (u16(self.buffer, at) == count).all(), "a tuple has the columns of its relation"
        at = at + 2
        columns = []
        for _ in range(count):
            kind = self.buffer[at]
            bare = (kind == _NULL) | (kind == _UNCHANGED)
            length = np.where(bare, 0, u32(self.buffer, at + 1).astype(np.int64))
            columns.append(Values(kind, at + 5, length))
            at = at + np.where(bare, 1, 5 + length)
        return columns, at


def u16(buffer: Bytes, at: Ints) -> Ints:
    return (buffer[at].astype(np.int64) << 8) | buffer[at + 1]


def u32(buffer: Bytes, at: Ints) -> Ints:
    return (u16(buffer, at) << 16) | u16(buffer, at + 2)


def _strings(data: bytes, values: Values) -> StringArray:
    """Return slices of the buffer as an Arrow array.

    The slices aren't adjacent. So this makes an array of all slices and gaps, and takes every second element.
    """
    import pyarrow as pa

    count = len(values.start)
    present = (values.kind != _NULL) & (values.kind != _UNCHANGED)
    # The slice of a NULL is empty and begins at the end of the previous slice, so that offsets increase.
    start = np.where(present, values.start, 0)
    end = np.where(present, values.start + values.length, 0)
    end = np.maximum.accumulate(end)
    start = np.where(present, start, end)
    offsets = np.zeros(2 * count + 1, np.int32)
    offsets[0 : 2 * count : 2] = start
    offsets[1 : 2 * count : 2] = end
    offsets[2 * count] = end[-1] if count else 0
    every = pa.Array.from_buffers(pa.string(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    pick = pa.py_buffer(np.arange(0, 2 * count, 2, dtype=np.int64))
    slices = every.take(pa.Array.from_buffers(pa.int64(), count, [None, pick]))
    if present.all():
        return slices
    bits = pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), count, [bits, *slices.buffers()[1:]], int((~present).sum()))
