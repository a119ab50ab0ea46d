"""From the staging table into the sink's: the statements, and emptying it afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psycopg

from mzplan.connectors.interface import Output
from mzplan.connectors.postgres_target import Connection, Table
from mzplan.connectors.postgres_types import TargetColumn, quoted, staged_type

# Up to so many staged rows are deleted one by one; emptying the table costs as much as some thousands.
_TRUNCATE_FROM = 5_000
# Sorting a batch by key, for upsert.
_WORK_MEM = "64MB"
_OURS = "_attempt = ANY(%(attempts)s)"

Position = tuple[tuple[str, str], ...]
"""Fields of `_position` with the staging column's type, in the order in which they order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """How staged rows get into a table. `targets` are the table's columns in the order of the outputs, staged
    as `c0, c1, …`; `keys` are empty for append; with keys, the position is staged as `p0, p1, …`. `there` is
    the field of the position that says whether the row is to be in the table (1) or not (0)."""

    stage: str
    table: Table
    targets: tuple[TargetColumn, ...]
    keys: tuple[TargetColumn, ...]
    position: Position
    there: str | None = None

    def move(self, connection: Connection, attempts: Mapping[int, int]) -> bool:
        """Move the rows that these attempts staged, and empty the staging table. False (and then the
        transaction must be undone) when there are not as many as were staged."""
        expected = sum(attempts.values())
        ours = {"attempts": list(attempts)}
        if self.keys:
            connection.execute(f"SET LOCAL work_mem = '{_WORK_MEM}'")
            counted = connection.execute(f"SELECT count(*) FROM {self.stage} WHERE {_OURS}", ours).fetchone()
            moved = int(counted[0]) if counted else 0
            if self.there is not None:
                # First: what is unique beside the key may come back with another row.
                connection.execute(self._delete(), ours)
            connection.execute(self._upsert(), ours)
        else:
            moved = connection.execute(self._append(), ours).rowcount
        if moved != expected:
            return False
        _empty(connection, self.stage, expected)
        return True

    def _append(self) -> str:
        columns = ", ".join(quoted(target.name) for target in self.targets)
        return (
            f"INSERT INTO {self.table.sql} ({columns}) "
            f"SELECT {', '.join(_casts(self.targets))} FROM {self.stage} WHERE {_OURS}"
        )

    def _upsert(self) -> str:
        """Into the table the latest row of each key, or of a keyed collection those that are there."""
        keys = ", ".join(quoted(key.name) for key in self.keys)
        listed = ", ".join(quoted(target.name) for target in self.targets)
        updates = ", ".join(
            f"{quoted(target.name)} = EXCLUDED.{quoted(target.name)}"
            for target in self.targets
            if target not in self.keys
        )
        rows = self._latest()
        if self.there is not None:
            rows = f"SELECT {listed} FROM ({rows}) AS l WHERE {self._there} = 1"
        return (
            f"INSERT INTO {self.table.sql} ({listed}) {rows} "
            f"ON CONFLICT ({keys}) DO {'UPDATE SET ' + updates if updates else 'NOTHING'}"
        )

    def _delete(self) -> str:
        """From the table the rows of the keys of which the latest is not there."""
        same = " AND ".join(f"t.{quoted(key.name)} = l.{quoted(key.name)}" for key in self.keys)
        return (
            f"DELETE FROM {self.table.sql} AS t USING ({self._latest()}) AS l "
            f"WHERE l.{self._there} = 0 AND {same}"
        )

    def _latest(self) -> str:
        """The latest row of each key, by position. Keys are compared as the table's type, hence the inner
        SELECT: two texts may be one uuid."""
        keys = ", ".join(quoted(key.name) for key in self.keys)
        columns = [quoted(target.name) for target in self.targets]
        listed = ", ".join([*columns, self._there] if self.there is not None else columns)
        named = ", ".join(f"{cast} AS {c}" for cast, c in zip(_casts(self.targets), columns, strict=True))
        positions = "".join(f", p{i} AS {_position(i)}" for i in range(len(self.position)))
        order = ", ".join(_descending(i, type_) for i, (_, type_) in enumerate(self.position))
        return (
            f"SELECT DISTINCT ON ({keys}) {listed} "
            f"FROM (SELECT {named}{positions} FROM {self.stage} WHERE {_OURS}) AS s ORDER BY {keys}, {order}"
        )

    @property
    def _there(self) -> str:
        return _position([name for name, _ in self.position].index(self.there or ""))


def staging_shape(
    outputs: Sequence[Output], targets: Sequence[TargetColumn], position: Position
) -> list[tuple[str, str]]:
    """Names and types of the staging columns: `c0, c1, …` for the outputs, `p0, …` for the position."""
    columns = [
        (f"c{i}", staged_type(output.type or "STRING", target))
        for i, (output, target) in enumerate(zip(outputs, targets, strict=True))
    ]
    return columns + [(f"p{i}", type_) for i, (_, type_) in enumerate(position)]


def _casts(targets: Sequence[TargetColumn]) -> list[str]:
    # To the type without its length: the length is left to the assignment, which fails for a text that is
    # too long, where a cast would cut it.
    return [f"c{i}::{quoted(target.type_schema)}.{quoted(target.type)}" for i, target in enumerate(targets)]


def _descending(i: int, type_: str) -> str:
    # Text in byte order, as Spark compares it, whatever the database's collation.
    collation = ' COLLATE "C"' if type_ == "text" else ""
    return f"{_position(i)}{collation} DESC NULLS LAST"


def _position(i: int) -> str:
    """A name beside the table's own."""
    return f'"mzplan p{i}"'


def _empty(connection: Connection, stage: str, rows: int) -> None:
    """Empty the staging table, of what killed attempts left there, too."""
    if rows < _TRUNCATE_FROM:
        connection.execute(f"DELETE FROM {stage}")
        return
    try:
        with connection.transaction():  # a savepoint: the rows stay moved, whatever happens here
            connection.execute(f"LOCK TABLE {stage} IN ACCESS EXCLUSIVE MODE NOWAIT")
            connection.execute(f"TRUNCATE {stage}")
    except psycopg.errors.LockNotAvailable:  # an attempt that nobody waits for still copies into it
        connection.execute(f"DELETE FROM {stage}")
