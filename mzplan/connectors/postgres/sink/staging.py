"""Moves rows from the staging table into the sink's table, and empties the staging table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg

from mzplan.connectors.api.queries import Output
from mzplan.connectors.formats.written import to_json
from mzplan.connectors.frames.types import quoted as spark_quoted
from mzplan.connectors.frames.types import type_of_ddl
from mzplan.connectors.postgres.tables import Connection, Table, fetch_row
from mzplan.connectors.postgres.types import (
    TargetColumn,
    copies_straight,
    quoted,
    staged_as_json,
    staged_type,
)
from mzplan.schema.columns import POSITION

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame

# TRUNCATE costs as much as deleting some thousand rows, so fewer rows are deleted.
_TRUNCATE_FROM = 5_000
# To sort a batch by key, for upsert.
_WORK_MEM = "64MB"
ATTEMPTS = "_attempt = ANY(%(attempts)s)"
# The table's unique indexes, also partial indexes, except indexes on exactly the key.
_OTHER_UNIQUE = """
WITH found AS (
  SELECT i.indpred IS NULL AND i.indexprs IS NULL AS plain, ARRAY(
    SELECT a.attname::text FROM unnest(i.indkey[0:i.indnkeyatts - 1]) AS k(attnum)
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum) AS names
  FROM pg_index i WHERE i.indrelid = %(table)s AND i.indisunique AND i.indisvalid)
SELECT count(*) FROM found
WHERE NOT (plain AND names @> %(keys)s::text[] AND names <@ %(keys)s::text[])
"""
# Objects that are affected if a row is deleted and inserted instead of updated.
_DEPENDENTS = """
SELECT 'another table refers to it (' || conname || ')' FROM pg_constraint
  WHERE confrelid = %(table)s AND contype = 'f'
UNION ALL SELECT 'it has a trigger (' || tgname || ')' FROM pg_trigger
  WHERE tgrelid = %(table)s AND NOT tgisinternal
ORDER BY 1 LIMIT 1
"""

_POSITION_TYPES = {
    "string": "text",
    "int": "integer",
    "bigint": "bigint",
    "timestamp": "timestamp with time zone",
}

Position = tuple[tuple[str, str], ...]
"""Fields of `_position` with their staging column types, most significant first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Moves staged rows into a table.

    `targets`: the table's columns in the order of the outputs, staged as `c0, c1, …`.
    `keys`: key columns; empty for append. With keys, the position is staged as `p0, p1, …`.
    `exists_field`: the position's field that is 1 if the row exists, and 0 if it was deleted.
    `replaces`: the staged rows are all that the table should have. Delete rows of other keys, and write only
      rows that are new or differ.
    """

    stage: str
    table: Table
    targets: tuple[TargetColumn, ...]
    keys: tuple[TargetColumn, ...]
    position: Position
    exists_field: str | None = None
    replaces: bool = False

    def move(self, connection: Connection, attempts: Mapping[int, int]) -> bool:
        """Move the rows that these attempts staged, and empty the staging table.

        Returns False if rows are missing. The caller must then roll back the transaction.
        """
        expected = sum(attempts.values())
        parameters = {"attempts": list(attempts)}
        if self.keys:
            connection.execute(f"SET LOCAL work_mem = '{_WORK_MEM}'")
            statement = f"SELECT count(*) FROM {self.stage} WHERE {ATTEMPTS}"
            (moved_rows,) = fetch_row(connection, statement, parameters)
            self.write(connection, parameters)
        else:
            moved_rows = connection.execute(self._append(), parameters).rowcount
        if moved_rows != expected:
            return False
        _empty(connection, self.stage, expected)
        return True

    def write(self, connection: Connection, parameters: Mapping[str, object]) -> None:
        """Write the staged rows of a sink with a key."""
        if self.replaces:
            connection.execute(self._delete_others(), parameters)
        elif self.exists_field is not None:
            # Delete first, because another row may get the deleted row's unique value.
            connection.execute(self._delete(), parameters)
        self._put(connection, parameters)

    def _put(self, connection: Connection, parameters: Mapping[str, object]) -> None:
        """Upsert the rows.

        In a keyed collection or a new generation, two rows may have swapped their values in another unique
        index. No order of updates works then, so this deletes all keys of the batch and inserts their rows
        again.
        """
        if self.exists_field is None and not self.replaces:
            connection.execute(self._upsert(), parameters)
            return
        try:
            with connection.transaction():  # a savepoint
                connection.execute(self._upsert(), parameters)
        except psycopg.errors.UniqueViolation:
            if not has_other_unique(connection, self.table, self.keys) or why_not_replaceable(
                connection, self.table, self.targets
            ):
                raise
            connection.execute(self._delete(all_keys=True), parameters)
            connection.execute(self._upsert(), parameters)

    def _append(self) -> str:
        columns = ", ".join(quoted(target.name) for target in self.targets)
        return (
            f"INSERT INTO {self.table.sql} ({columns}) "
            f"SELECT {', '.join(casts(self.targets))} FROM {self.stage} WHERE {ATTEMPTS}"
        )

    def _upsert(self) -> str:
        """Return the statement that upserts the latest row of each key, except deleted rows."""
        keys = ", ".join(quoted(key.name) for key in self.keys)
        listed = ", ".join(quoted(target.name) for target in self.targets)
        updates = ", ".join(
            f"{quoted(target.name)} = EXCLUDED.{quoted(target.name)}"
            for target in self.targets
            if target not in self.keys
        )
        rows = self._existing()
        if self.replaces:
            # Compare binary forms: every type has one, also json, and citext 'A' differs from 'a' in it.
            found = ", ".join(f"t.{quoted(target.name)}" for target in self.targets)
            staged = ", ".join(as_assigned(f"l.{quoted(target.name)}", target) for target in self.targets)
            is_same = f"ROW({found})::record OPERATOR(pg_catalog.*=) ROW({staged})::record"
            is_equal = f"{self.same_key} AND ({is_same})"
            rows = (
                f"SELECT {listed} FROM ({rows}) AS l "
                f"WHERE NOT EXISTS (SELECT 1 FROM {self.table.sql} AS t WHERE {is_equal})"
            )
        return (
            f"INSERT INTO {self.table.sql} ({listed}) {rows} "
            f"ON CONFLICT ({keys}) DO {'UPDATE SET ' + updates if updates else 'NOTHING'}"
        )

    def _delete(self, *, all_keys: bool = False) -> str:
        """Return the statement that deletes the keys whose latest row is deleted, or all staged keys."""
        is_deleted = "" if all_keys else f"l.{self._exists_column} = 0 AND "
        return (
            f"DELETE FROM {self.table.sql} AS t USING ({self._latest()}) AS l "
            f"WHERE {is_deleted}{self.same_key}"
        )

    def _delete_others(self) -> str:
        """Return the statement that deletes the rows whose keys no staged row has."""
        return (
            f"DELETE FROM {self.table.sql} AS t "
            f"WHERE NOT EXISTS (SELECT 1 FROM ({self._existing()}) AS l WHERE {self.same_key})"
        )

    def _existing(self) -> str:
        """Return the query for the latest row of each key, except deleted rows."""
        if self.exists_field is None:
            return self._latest()
        listed = ", ".join(quoted(target.name) for target in self.targets)
        return f"SELECT {listed} FROM ({self._latest()}) AS l WHERE {self._exists_column} = 1"

    def _latest(self) -> str:
        """Return the query for the latest row of each key, by position.

        The inner SELECT casts keys to the table's types before comparing them, because two texts may be the
        same uuid.
        """
        keys = ", ".join(quoted(key.name) for key in self.keys)
        columns = [quoted(target.name) for target in self.targets]
        listed = ", ".join([*columns, self._exists_column] if self.exists_field is not None else columns)
        named = ", ".join(f"{cast} AS {c}" for cast, c in zip(casts(self.targets), columns, strict=True))
        positions = "".join(f", p{i} AS {position_column(i)}" for i in range(len(self.position)))
        order = ", ".join(descending(i, type_) for i, (_, type_) in enumerate(self.position))
        return (
            f"SELECT DISTINCT ON ({keys}) {listed} "
            f"FROM (SELECT {named}{positions} FROM {self.stage} WHERE {ATTEMPTS}) AS s "
            f"ORDER BY {keys}, {order}"
        )

    @property
    def same_key(self) -> str:
        return " AND ".join(f"t.{quoted(key.name)} = l.{quoted(key.name)}" for key in self.keys)

    @property
    def _exists_column(self) -> str:
        return position_column([name for name, _ in self.position].index(self.exists_field or ""))


def can_copy_straight(
    table: Table, outputs: Sequence[Output], targets: Sequence[TargetColumn], keys: Sequence[object]
) -> bool:
    """Return whether rows can be copied into the table itself, without staging."""
    types = [output.type or "STRING" for output in outputs]
    return not keys and table.takes_copy and copies_straight(types, targets)


def has_other_unique(connection: Connection, table: Table, keys: Sequence[TargetColumn]) -> bool:
    """Return whether the table has a unique index on columns other than the key."""
    names = [key.name for key in keys]
    return bool(fetch_row(connection, _OTHER_UNIQUE, {"table": table.oid, "keys": names})[0])


def why_not_replaceable(connection: Connection, table: Table, written: Sequence[TargetColumn]) -> str:
    """Return why a row can't be deleted and inserted again instead of updated; "" if it can."""
    names = {column.name for column in written}
    if other := next((column.name for column in table.columns if column.name not in names), None):
        return f"its column {other} is not written by the sink, and would be lost"
    row = connection.execute(_DEPENDENTS, {"table": table.oid}).fetchone()
    return str(row[0]) if row else ""


def staging_shape(
    outputs: Sequence[Output], targets: Sequence[TargetColumn], position: Position
) -> list[tuple[str, str]]:
    """Return names and types of the staging columns: `c0, c1, …` for the outputs, `p0, …` for the
    position."""
    columns = [
        (f"c{i}", staged_type(output.type or "STRING", target))
        for i, (output, target) in enumerate(zip(outputs, targets, strict=True))
    ]
    return columns + [(f"p{i}", type_) for i, (_, type_) in enumerate(position)]


def staged_columns(outputs: Sequence[Output], move: Move) -> list[Expression]:
    """Return the columns that Spark's tasks stage, with the names of `staging_shape`."""
    from pyspark.sql import functions as f

    staged: list[Expression] = []
    for i, (output, target) in enumerate(zip(outputs, move.targets, strict=True)):
        value = f.col(spark_quoted(output.name))
        if staged_as_json(output.type or "STRING", target):
            value = to_json(value, type_of_ddl(output.type or "STRING"))
        staged.append(value.alias(f"c{i}"))
    names = [f.col(f"{POSITION}.{spark_quoted(name)}") for name, _ in move.position]
    return staged + [name.alias(f"p{i}") for i, name in enumerate(names)]


def position_of(batch: DataFrame) -> Position:
    """Return the fields of a batch's `_position`, with their staging types."""
    struct: Any = batch.schema[POSITION].dataType
    return tuple((field.name, _POSITION_TYPES[field.dataType.simpleString()]) for field in struct.fields)


def casts(targets: Sequence[TargetColumn]) -> list[str]:
    # Cast to the type without its length, because such a cast would truncate a long text. The assignment then
    # fails instead.
    return [f"c{i}::{quoted(target.type_schema)}.{quoted(target.type)}" for i, target in enumerate(targets)]


def as_assigned(value: str, target: TargetColumn) -> str:
    """Return the value as the column stores it, if that is another binary form: a rounded number or time."""
    return f"{value}::{target.shown}" if target.category in ("N", "D") and target.typmod >= 0 else value


def descending(i: int, type_: str) -> str:
    # Compare text in byte order, as Spark does, whatever the database's collation.
    collation = ' COLLATE "C"' if type_ == "text" else ""
    return f"{position_column(i)}{collation} DESC NULLS LAST"


def position_column(i: int) -> str:
    """Return a column name that can't collide with the table's own."""
    return f'"mzplan p{i}"'


def _empty(connection: Connection, stage: str, rows: int) -> None:
    """Empty the staging table, including the rows of killed attempts."""
    if rows < _TRUNCATE_FROM:
        connection.execute(f"DELETE FROM {stage}")
        return
    try:
        with connection.transaction():  # a savepoint, so that a failure here doesn't undo the move
            connection.execute(f"LOCK TABLE {stage} IN ACCESS EXCLUSIVE MODE NOWAIT")
            connection.execute(f"TRUNCATE {stage}")
    except psycopg.errors.LockNotAvailable:  # an abandoned attempt is still copying into it
        connection.execute(f"DELETE FROM {stage}")
