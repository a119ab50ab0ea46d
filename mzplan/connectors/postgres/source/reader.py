"""Reads a part of a PostgreSQL source's step into Arrow batches. Each task reads one part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import psycopg

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.postgres.client import open_conninfo
from mzplan.connectors.postgres.source.columns import Relation, TableChanges
from mzplan.connectors.postgres.source.continuity import streaming
from mzplan.connectors.postgres.source.decoder import Decoder, IdentityError, TruncateError
from mzplan.connectors.postgres.source.replication import SESSION, Lsn
from mzplan.connectors.postgres.source.slots import (
    Names,
    own_columns,
    own_key,
    session,
    table_column,
    tables_of,
)
from mzplan.connectors.postgres.source.snapshot import join_snapshot
from mzplan.connectors.postgres.source.upstream_problems import (
    COLUMN_GONE,
    KEY_NOT_SENT,
    NOT_SENT,
    TRUNCATED,
    UNFIT,
)
from mzplan.connectors.postgres.source.values import UnfitValueError, convert, is_single, selected
from mzplan.connectors.postgres.tables import Table
from mzplan.connectors.postgres.types import quoted
from mzplan.endpoints.arrow import FitError, arrow_schema, arrow_type, fit
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.columns import CHANGE, POSITION, Column

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch, RecordBatchReader

_POSITION = ("lsn", "sequence")
_REAL, _REALS = 700, 1021  # the oids of real and real[]
_FIRST_USER_OID = 16384
_DOMAINS_OF_REALS = (
    "SELECT oid::bigint FROM pg_type WHERE oid = ANY(%s) AND typtype = 'd' AND typbasetype IN (700, 1021)"
)


class PartReader:
    """Reads changes and snapshot chunks.

    Raises MzplanError for rows that don't fit the source, psycopg.Error, and ADBC's errors.
    """

    def __init__(self, query: ResolvedQuery, names: Names):
        self._query = query
        self._names = names
        self._table_column = table_column(query)
        self._own_columns, self._key = own_columns(query), own_key(query)
        self._singles: dict[int, set[str]] = {}

    # ── changes

    def changes(
        self,
        after: Lsn,
        to: Lsn,
        oids: Mapping[str, int],
        idle_until: Lsn,
        added: Mapping[str, Sequence[str]],
    ) -> Iterator[RecordBatch]:
        """Yield all transactions that commit in (after, to], for the tables with these oids.

        The tables may have other names now. There are no changes up to `idle_until`, so the slot may begin
        at that position. `added`: by table, columns that older rows don't have; they are NULL in these rows.
        """
        names = {oid: name for name, oid in oids.items()}

        def key_of(relation: Relation) -> Sequence[str]:
            self._check_columns(relation, added.get(names[relation.id], ()))
            self._singles[relation.id] = self._real_columns(relation)
            wanted = (_find_column(relation.columns, name) for name in self._key)
            return [name for name in wanted if name is not None]

        with streaming(self._query, self._names, max(after, idle_until)) as link:
            try:
                for rows in Decoder(key_of, names).changes(link.messages(), after, to):
                    yield self._batch(rows, names[rows.relation.id])
            except TruncateError as problem:
                raise TRUNCATED.error(self._query, tables=", ".join(problem.tables)) from None
            except IdentityError as problem:
                key = ", ".join(self._key)
                raise KEY_NOT_SENT.error(self._query, table=problem.table, key=key) from None

    def _check_columns(self, relation: Relation, added: Sequence[str]) -> None:
        """Raise MzplanError MZ230 for a column that was dropped or renamed."""
        table = f"{relation.schema}.{relation.name}"
        missing = [c.name for c in self._own_columns if _find_column(relation.columns, c.name) is None]
        dropped = [name for name in missing if name not in added]
        if dropped:
            raise COLUMN_GONE.error(self._query, table=table, columns=", ".join(dropped))

    def _real_columns(self, relation: Relation) -> set[str]:
        """Return the columns of type real, arrays of real, and domains over these."""
        types = dict(zip(relation.columns, relation.types, strict=True))
        reals = {_REAL, _REALS}
        domains = [type_ for type_ in types.values() if type_ >= _FIRST_USER_OID]
        if domains and any("DOUBLE" in column.type for column in self._own_columns):
            with session(self._query) as (_, connection):
                reals.update(row[0] for row in connection.execute(_DOMAINS_OF_REALS, (domains,)))
        return {name for name, type_ in types.items() if type_ in reals}

    def _batch(self, rows: TableChanges, table: str) -> RecordBatch:
        where = f"{rows.relation.schema}.{rows.relation.name}"
        arrays: list[Array] = []
        for column in self._query.columns:
            name = _find_column(rows.relation.columns, column.name)
            if column.name == self._table_column:
                arrays.append(_repeat(table, len(rows.lsn)))
                continue
            # The column was added later (see `_check_columns`), or the row is deleted and has only its key.
            if name is None or name not in rows.columns:
                arrays.append(_nulls(arrow_type(column.type), len(rows.lsn)))
                continue
            if rows.columns[name].has_unsent():
                raise NOT_SENT.error(self._query, table=where, column=column.name)
            single = name in self._singles[rows.relation.id]
            arrays.append(self._convert(column, rows.text(name), where, single=single))
        return self._with_position(arrays, rows.lsn, rows.sequence, where, deleted=rows.deleted)

    # ── the snapshot

    def chunk(
        self, table: str, relation: tuple[str, str], first: int, end: int, snapshot: str, lsn: Lsn
    ) -> Iterator[RecordBatch]:
        """Yield the rows in blocks `first` to `end` (excluded) of a relation, as of a snapshot."""
        import numpy as np
        from adbc_driver_postgresql import dbapi

        with session(self._query) as (_, connection):
            current = tables_of(connection, self._query)[table]
        where = f"{relation[0]}.{relation[1]}"
        own = ((column.name, current.column(column.name)) for column in self._own_columns)
        singles = {name for name, column in own if column is not None and is_single(column)}
        statement = (
            f"SELECT {self._selected(current)} FROM ONLY {quoted(relation[0])}.{quoted(relation[1])} "
            f"WHERE ctid >= '({first},0)' AND ctid < '({end},0)'"
        )
        with (
            open_conninfo(self._query, f"mzplan {self._query.address}") as info,
            dbapi.connect(info, autocommit=True) as connection_,
            connection_.cursor() as cursor,
        ):
            # Execute one command at a time, because ADBC prepares each.
            for command in (SESSION, *join_snapshot(snapshot)):
                cursor.execute(command)
            cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(8 << 20)})
            cursor.execute(statement)
            for batch in _translate_errors(cursor.fetch_record_batch()):
                count = batch.num_rows
                arrays = iter(batch.columns)
                columns = [
                    _repeat(table, count)
                    if column.name == self._table_column
                    else self._convert(column, next(arrays), where, single=column.name in singles)
                    for column in self._query.columns
                ]
                zeros = np.zeros(count, np.int64)
                yield self._with_position(columns, zeros + lsn, zeros, where, deleted=False)

    def _selected(self, table: Table) -> str:
        items = []
        for column in self._own_columns:
            current = table.column(column.name)
            if current is None:
                name = f"{table.schema}.{table.name}"
                raise COLUMN_GONE.error(self._query, table=name, columns=column.name)
            items.append(selected(quoted(current.name), column.type, current))
        return ", ".join(items)

    # ── both

    def _convert(self, column: Column, values: Array, where: str, *, single: bool) -> Array:
        try:
            return convert(column.type, values, single=single)
        except UnfitValueError as problem:
            raise self._unfit(where, column, problem) from None

    def _unfit(self, where: str, column: Column, why: object) -> MzplanError:
        return UNFIT.error(self._query, table=where, column=column.name, type=column.type, why=why)

    def _with_position(
        self, arrays: list[Array], lsn: Any, sequence: Any, where: str, *, deleted: bool
    ) -> RecordBatch:
        """Return a batch of the columns, `_position` and `_change`."""
        import pyarrow as pa

        columns = self._query.columns
        batch = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))
        if not deleted:
            try:
                batch = fit(batch, columns)
            except FitError as problem:
                column = next(c for c in columns if c.name == problem.column)
                raise self._unfit(where, column, problem) from None
        for column in columns:
            if column.name in self._query.body["key"] and batch.column(column.name).null_count:
                raise self._unfit(where, column, "it is NULL, and part of the key")
        numbers = [
            pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])
            for values in (lsn, sequence)
        ]
        position = pa.StructArray.from_arrays(numbers, list(_POSITION))
        batch = batch.append_column(POSITION, position)
        return batch.append_column(CHANGE, _repeat("delete" if deleted else "upsert", len(lsn)))


def _translate_errors(batches: RecordBatchReader) -> Iterator[RecordBatch]:
    """Yield batches. Raises psycopg.Error for a server's errors, which ADBC reports as Arrow's errors."""
    import pyarrow as pa

    try:
        yield from batches
    except (OSError, pa.ArrowException) as problem:
        _, refused, text = str(problem).partition("ERROR:")
        if refused or not isinstance(problem, OSError):
            raise psycopg.DatabaseError(text.strip() or str(problem)) from None
        raise psycopg.OperationalError(str(problem).rpartition("FATAL:")[2].strip()) from None


def _find_column(columns: Sequence[str], name: str) -> str | None:
    """Return the column of that name, otherwise the only column whose name differs only in case."""
    if name in columns:
        return name
    candidates = [column for column in columns if column.lower() == name.lower()]
    return candidates[0] if len(candidates) == 1 else None


def _repeat(text: str, count: int) -> Array:
    import pyarrow as pa

    return pa.repeat(pa.scalar(text, pa.string()), count)


def _nulls(type_: Any, count: int) -> Array:
    import pyarrow as pa

    return pa.nulls(count, type_)
