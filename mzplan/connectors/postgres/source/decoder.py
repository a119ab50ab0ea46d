"""pgoutput's messages, decoded in columns: a Python loop sees each message once, and never a value of it.

The messages of many rows are laid end to end; then each column of all rows is found at once, for where a
column begins is known from where the one before it ended. The values are pieces of that one buffer, which
Arrow takes in bulk.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mzplan.connectors.postgres.source.replication import HEADER, Lsn

if TYPE_CHECKING:
    from pyarrow import StringArray

Ints = np.ndarray[Any, np.dtype[np.int64]]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_FLUSH_BYTES = 8 << 20
_FLUSH_ROWS = 50_000
_INSERT, _UPDATE, _DELETE = b"IUD"
_ROWS = frozenset(b"IUD")
_BEGIN, _COMMIT, _RELATION, _TRUNCATE = b"BCRT"
_OLD_KEY, _OLD_ROW, _NEW = b"KON"
_NULL, _UNCHANGED = b"nu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A table, as the stream describes it before its first row. `types`: the oids of the columns' types;
    `identity`: the columns that are sent of a row that is deleted; `full`: that is all of them."""

    id: int
    schema: str
    name: str
    columns: tuple[str, ...]
    types: tuple[int, ...]
    identity: frozenset[str]
    full: bool


@dataclass(slots=True)
class Values:
    """One column of some rows: pieces of a buffer. `kind` is n (NULL), u (a value that did not change and is
    not sent), t (text)."""

    kind: Bytes
    start: Ints
    length: Ints

    def at(self, rows: Any) -> Values:
        return Values(self.kind[rows], self.start[rows], self.length[rows])

    def unchanged_from(self, old: Values) -> Values:
        """Where a value was not sent, the old one. That is never NULL: NULL is always sent. So an old row
        that has NULL there is none but its key (as of a partition whose replica identity is not FULL)."""
        same = (self.kind == _UNCHANGED) & (old.kind != _NULL)
        if not same.any():
            return self
        return Values(
            np.where(same, old.kind, self.kind),
            np.where(same, old.start, self.start),
            np.where(same, old.length, self.length),
        )

    def lacks(self) -> bool:
        """Whether there is a value that was not sent."""
        return bool((self.kind == _UNCHANGED).any())


@dataclass(slots=True)
class Rows:
    """Changes of one table, all upserts or all deletes. `lsn` and `sequence` order them: where the commit of
    the transaction is, and which of its changes it is. A delete has the columns of the key."""

    relation: Relation
    deleted: bool
    data: bytes
    lsn: Ints
    sequence: Ints
    columns: dict[str, Values]

    def text(self, column: str) -> StringArray:
        """A column as Arrow strings."""
        return _strings(self.data, self.columns[column])


class TruncateError(ValueError):
    """A table was truncated."""

    def __init__(self, tables: Sequence[str]):
        super().__init__(f"{', '.join(tables)} was truncated")
        self.tables = tuple(tables)


class IdentityError(ValueError):
    """A row was updated or deleted, and its key is not in the replica identity of its table."""

    def __init__(self, table: str):
        super().__init__(f"the key is not in the replica identity of {table}")
        self.table = table


@dataclass(slots=True)
class _Pending:
    """Messages that are not decoded yet, and which transaction each belongs to."""

    messages: list[memoryview | bytes] = field(default_factory=list)
    size: int = 0
    # (index of its first message here, its commit's LSN, how many of its changes came before)
    transactions: list[tuple[int, Lsn, int]] = field(default_factory=list)

    def begin(self, lsn: Lsn) -> None:
        """Another transaction. Before PostgreSQL 15 those without changes of ours are sent, too, and there
        may be millions of them: of these only the last one is kept."""
        first = len(self.messages)
        if self.transactions and self.transactions[-1][0] == first:
            self.transactions.pop()
        self.transactions.append((first, lsn, 0))


class Decoder:
    """Of one stream. `keys` gives the key's columns of a table, as they are called there; None for one that
    does not matter, whose rows are left out."""

    def __init__(self, keys: Callable[[Relation], Sequence[str] | None]):
        self._keys = keys
        self._relations: dict[int, Relation] = {}
        self._key_of: dict[int, tuple[str, ...] | None] = {}

    def changes(
        self, messages: Iterable[tuple[Lsn | None, memoryview | bytes]], after: Lsn, to: Lsn
    ) -> Iterator[Rows]:
        """The rows of all transactions whose commits lie in (after, to], both of which are ends of records of
        the log. Raises TruncateError, IdentityError."""
        pending, lsn, count, skip = _Pending(), 0, 0, False
        for end, data in messages:
            if end is not None:
                if end >= to:
                    break
                continue
            kind = data[HEADER]
            if kind in _ROWS:
                if skip:
                    continue
                pending.messages.append(data)
                pending.size += len(data)
                count += 1
                if len(pending.messages) >= _FLUSH_ROWS or pending.size >= _FLUSH_BYTES:
                    yield from self._decoded(pending)
                    pending = _Pending(transactions=[(0, lsn, count)])
            elif kind == _BEGIN:
                (lsn,) = struct.unpack_from(">Q", data, HEADER + 1)
                if lsn >= to:
                    break
                skip, count = lsn < after, 0
                pending.begin(lsn)
            elif kind == _COMMIT:
                (commit_end,) = struct.unpack_from(">Q", data, HEADER + 10)
                if commit_end >= to:
                    break
            elif kind == _RELATION:
                # The same table may have other columns from here on.
                yield from self._decoded(pending)
                pending = _Pending(transactions=[(0, lsn, count)])
                self._learn(_relation(data))
            elif kind == _TRUNCATE and not skip:
                self._refuse_truncate(data)
        yield from self._decoded(pending)

    def _learn(self, relation: Relation) -> None:
        self._relations[relation.id] = relation
        self._key_of.pop(relation.id, None)

    def _key(self, table: int) -> tuple[str, ...] | None:
        """Looked up with the first row that matters: tables whose changes are skipped, because they were read
        before, may have been of another shape then."""
        if table not in self._key_of:
            key = self._keys(self._relations[table])
            self._key_of[table] = tuple(key) if key is not None else None
        return self._key_of[table]

    def _refuse_truncate(self, data: memoryview | bytes) -> None:
        found = [self._relations[one] for one in _truncated(data) if self._key(one) is not None]
        if found:
            raise TruncateError([f"{one.schema}.{one.name}" for one in found])

    def _decoded(self, pending: _Pending) -> Iterator[Rows]:
        if not pending.messages:
            return
        lengths = np.fromiter(map(len, pending.messages), np.int64, len(pending.messages))
        # Behind the last one is room, for what is read without looking.
        data = b"".join([*pending.messages, b"\0" * 8])
        buffer = np.frombuffer(data, np.uint8)
        starts = np.cumsum(lengths) - lengths + HEADER
        lsn, sequence = _places(pending, len(starts))
        kinds, tables = buffer[starts], _u32(buffer, starts + 1)
        for table in np.unique(tables):
            relation, key = self._relations[int(table)], self._key(int(table))
            if key is None:
                continue
            for kind in (_INSERT, _UPDATE, _DELETE):
                rows = np.flatnonzero((tables == table) & (kinds == kind))
                if len(rows):
                    # An update without the old key may have changed it: nobody would know.
                    if kind != _INSERT and not (relation.full or relation.identity.issuperset(key)):
                        raise IdentityError(f"{relation.schema}.{relation.name}")
                    block = _Block(relation, key, data, buffer, starts[rows] + 5, lsn[rows], sequence[rows])
                    yield from block.rows(kind)


@dataclass(slots=True)
class _Block:
    """Messages of one kind and table. `at` is where the first tuple of each begins: its letter."""

    relation: Relation
    key: tuple[str, ...]
    data: bytes
    buffer: Bytes
    at: Ints
    lsn: Ints
    sequence: Ints

    def rows(self, kind: int) -> Iterator[Rows]:
        if kind == _INSERT:
            columns, _ = self._tuples(self.at + 1)
            yield self.made(columns, deleted=False)
        elif kind == _DELETE:
            columns, _ = self._tuples(self.at + 1)
            yield self.made(columns, deleted=True)
        else:
            new = self.buffer[self.at] == _NEW
            if new.any():
                yield from self._picked(new)._updates(old=False)
            if not new.all():
                yield from self._picked(~new)._updates(old=True)

    def _updates(self, *, old: bool) -> Iterator[Rows]:
        if not old:
            columns, _ = self._tuples(self.at + 1)
            yield self.made(columns, deleted=False)
            return
        before, after_old = self._tuples(self.at + 1)
        now, _ = self._tuples(after_old + 1)
        if self.relation.full:
            now = [new.unchanged_from(was) for new, was in zip(now, before, strict=True)]
        moved = self._key_changed(before, now)
        if moved.any():
            # Before the row comes back under its new key, which may be the same, written in another way.
            gone = self._picked(moved)
            gone.sequence = gone.sequence - 1
            yield gone.made([one.at(moved) for one in before], deleted=True)
        yield self.made(now, deleted=False)

    def _key_changed(self, before: list[Values], now: list[Values]) -> Any:
        """Of which rows the key is another one now."""
        from pyarrow import compute as pc

        changed = np.zeros(len(self.at), bool)
        for name, was, new in zip(self.relation.columns, before, now, strict=True):
            if name in self.key and not new.lacks():
                same = pc.equal(_strings(self.data, was), _strings(self.data, new))
                changed |= ~same.fill_null(False).to_numpy(zero_copy_only=False)
        return changed

    def _picked(self, rows: Any) -> _Block:
        return _Block(
            self.relation,
            self.key,
            self.data,
            self.buffer,
            self.at[rows],
            self.lsn[rows],
            self.sequence[rows],
        )

    def made(self, columns: list[Values], *, deleted: bool) -> Rows:
        named = zip(self.relation.columns, columns, strict=True)
        found = {name: values for name, values in named if not deleted or name in self.key}
        return Rows(self.relation, deleted, self.data, self.lsn, self.sequence, found)

    def _tuples(self, at: Ints) -> tuple[list[Values], Ints]:
        """The columns of the tuples that begin there, and where they end."""
        count = len(self.relation.columns)
        assert (_u16(self.buffer, at) == count).all(), "a tuple has the columns of its relation"
        at = at + 2
        columns = []
        for _ in range(count):
            kind = self.buffer[at]
            bare = (kind == _NULL) | (kind == _UNCHANGED)
            length = np.where(bare, 0, _u32(self.buffer, at + 1).astype(np.int64))
            columns.append(Values(kind, at + 5, length))
            at = at + np.where(bare, 1, 5 + length)
        return columns, at


def tables_changed(data: memoryview | bytes) -> tuple[int, ...]:
    """The ids of the tables in which a message changes something."""
    kind = data[HEADER]
    if kind in _ROWS:
        return struct.unpack_from(">I", data, HEADER + 1)
    return _truncated(data) if kind == _TRUNCATE else ()


def commit_of(data: memoryview | bytes) -> Lsn | None:
    """Where the commit of the transaction is that a message begins."""
    return int(struct.unpack_from(">Q", data, HEADER + 1)[0]) if data[HEADER] == _BEGIN else None


def _places(pending: _Pending, count: int) -> tuple[Ints, Ints]:
    firsts = np.array([first for first, _, _ in pending.transactions], np.int64)
    lsns = np.array([lsn for _, lsn, _ in pending.transactions], np.int64)
    befores = np.array([before for _, _, before in pending.transactions], np.int64)
    sizes = np.diff(np.append(firsts, count))
    index = np.arange(count, dtype=np.int64)
    return np.repeat(lsns, sizes), (index - np.repeat(firsts - befores, sizes) + 1) * 2


def _truncated(data: memoryview | bytes) -> tuple[int, ...]:
    (count,) = struct.unpack_from(">I", data, HEADER + 1)
    return struct.unpack_from(f">{count}I", data, HEADER + 6)


def _relation(data: memoryview | bytes) -> Relation:
    text = bytes(data[HEADER + 1 :])
    (id_,) = struct.unpack_from(">I", text)
    schema, name, rest = text[4:].split(b"\0", 2)
    identity, count = struct.unpack_from(">cH", rest)
    rest = rest[3:]
    columns: list[str] = []
    types: list[int] = []
    keys: set[str] = set()
    for _ in range(count):
        column, _, rest = rest[1:].partition(b"\0") if not rest[0] & 1 else _key(rest, keys)
        columns.append(column.decode())
        types.append(struct.unpack_from(">I", rest)[0])
        rest = rest[8:]
    return Relation(
        id=id_,
        schema=schema.decode() or "pg_catalog",
        name=name.decode(),
        columns=tuple(columns),
        types=tuple(types),
        identity=frozenset(keys),
        full=identity == b"f",
    )


def _key(rest: bytes, keys: set[str]) -> tuple[bytes, bytes, bytes]:
    parts = rest[1:].partition(b"\0")
    keys.add(parts[0].decode())
    return parts


def _u16(buffer: Bytes, at: Ints) -> Ints:
    return (buffer[at].astype(np.int64) << 8) | buffer[at + 1]


def _u32(buffer: Bytes, at: Ints) -> Ints:
    return (_u16(buffer, at) << 16) | _u16(buffer, at + 2)


def _strings(data: bytes, values: Values) -> StringArray:
    """From pieces of the buffer: an array of all pieces and what lies between them, of which every other one
    is taken."""
    import pyarrow as pa

    count = len(values.start)
    present = (values.kind != _NULL) & (values.kind != _UNCHANGED)
    # Pieces of NULLs are empty, and lie where the one before ended, so that offsets grow.
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
    taken = every.take(pa.Array.from_buffers(pa.int64(), count, [None, pick]))
    if present.all():
        return taken
    bits = pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), count, [bits, *taken.buffers()[1:]], int((~present).sum()))
