"""Decodes pgoutput's messages by column. The Python loop visits each message once, but no single value.

The messages of many rows are concatenated. Then each column of all rows is decoded at once (see `columns`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from mzplan.connectors.postgres.source.columns import (
    DELETE,
    INSERT,
    UPDATE,
    Ints,
    MessageBlock,
    Relation,
    TableChanges,
    u32,
)
from mzplan.connectors.postgres.source.replication import HEADER, Lsn

_FLUSH_BYTES = 8 << 20
_FLUSH_ROWS = 50_000
_ROWS = frozenset((INSERT, UPDATE, DELETE))
_BEGIN, _COMMIT, _RELATION, _TRUNCATE = b"BCRT"


class TruncateError(ValueError):
    """A table was truncated."""

    def __init__(self, tables: Sequence[str]):
        super().__init__(f"{', '.join(tables)} was truncated")
        self.tables = tuple(tables)


class IdentityError(ValueError):
    """A row was updated or deleted, but the table's replica identity doesn't have the source's key."""

    def __init__(self, table: str):
        super().__init__(f"the key is not in the replica identity of {table}")
        self.table = table


@dataclass(slots=True)
class _Pending:
    """Messages that aren't decoded yet, and their transactions."""

    messages: list[memoryview | bytes] = field(default_factory=list)
    size: int = 0
    # Each as: index of its first message here, LSN of its commit, number of its changes in earlier buffers.
    transactions: list[tuple[int, Lsn, int]] = field(default_factory=list)

    def begin(self, lsn: Lsn) -> None:
        """Begin another transaction.

        PostgreSQL 14 also sends transactions without changes of published tables, possibly millions in a row.
        Only the last of them is kept.
        """
        first = len(self.messages)
        if self.transactions and self.transactions[-1][0] == first:
            self.transactions.pop()
        self.transactions.append((first, lsn, 0))


class Decoder:
    """Decodes one stream.

    `keys`: returns the names of the key's columns in a table.
    `tables`: ids of the tables to decode; rows of other tables are skipped.
    """

    def __init__(self, keys: Callable[[Relation], Sequence[str]], tables: Container[int]):
        self._keys = keys
        self._tables = tables
        self._relations: dict[int, Relation] = {}
        self._key_of: dict[int, tuple[str, ...]] = {}

    def changes(
        self, messages: Iterable[tuple[Lsn | None, memoryview | bytes]], after: Lsn, to: Lsn
    ) -> Iterator[TableChanges]:
        """Yield the changes of all transactions that commit in (after, to].

        Both bounds are ends of log records. Raises TruncateError, IdentityError.
        """
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
                    yield from self._decode(pending)
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
                # The table may have other columns from here on.
                yield from self._decode(pending)
                pending = _Pending(transactions=[(0, lsn, count)])
                self._add_relation(data)
            elif kind == _TRUNCATE and not skip:
                self._refuse_truncate(data)
        yield from self._decode(pending)

    def _add_relation(self, data: memoryview | bytes) -> None:
        (table,) = struct.unpack_from(">I", data, HEADER + 1)
        if table in self._tables:
            self._relations[table] = _relation(data)
            self._key_of.pop(table, None)

    def _key(self, table: int) -> tuple[str, ...]:
        """Return the key's columns in a table, looked up at its first row that isn't skipped.

        During the skipped changes, which were read before, the table may have had other columns.
        """
        if table not in self._key_of:
            self._key_of[table] = tuple(self._keys(self._relations[table]))
        return self._key_of[table]

    def _refuse_truncate(self, data: memoryview | bytes) -> None:
        truncated = [self._relations[oid] for oid in _truncated(data) if oid in self._tables]
        if truncated:
            raise TruncateError([f"{relation.schema}.{relation.name}" for relation in truncated])

    def _decode(self, pending: _Pending) -> Iterator[TableChanges]:
        if not pending.messages:
            return
        lengths = np.fromiter(map(len, pending.messages), np.int64, len(pending.messages))
        # Pad the buffer, because numbers at the end of the last message are read without a bounds check.
        data = b"".join([*pending.messages, b"\0" * 8])
        buffer = np.frombuffer(data, np.uint8)
        starts = np.cumsum(lengths) - lengths + HEADER
        lsn, sequence = _places(pending, len(starts))
        kinds, tables = buffer[starts], u32(buffer, starts + 1)
        for table in np.unique(tables):
            if int(table) not in self._tables:
                continue
            relation, key = self._relations[int(table)], self._key(int(table))
            for kind in (INSERT, UPDATE, DELETE):
                rows = np.flatnonzero((tables == table) & (kinds == kind))
                if len(rows):
                    # Without the old key, a change of the key in an update can't be detected.
                    if kind != INSERT and not (relation.full or relation.identity.issuperset(key)):
                        raise IdentityError(f"{relation.schema}.{relation.name}")
                    block = MessageBlock(
                        relation, key, data, buffer, starts[rows] + 5, lsn[rows], sequence[rows]
                    )
                    yield from block.rows(kind)


def tables_changed(data: memoryview | bytes) -> tuple[int, ...]:
    """Return the ids of the tables that a message changes."""
    kind = data[HEADER]
    if kind in _ROWS:
        return struct.unpack_from(">I", data, HEADER + 1)
    return _truncated(data) if kind == _TRUNCATE else ()


def commit_of(data: memoryview | bytes) -> Lsn | None:
    """Return the commit's LSN if the message begins a transaction, otherwise None."""
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
