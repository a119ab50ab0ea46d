"""Migrates rows: a new generation of a source starts with the rows of the former collection and continues at
the same place of the upstream (`lifecycle: {replace: from-collection}`).

If the runner is killed, the next start finishes the same migration:

    check the rows → record which rows to migrate and where to continue → commit the rows as step 0 →
    advance the checkpoint past that step → record that the migration is done

Until the record is written, the former generation may run instead; afterwards it may not (see
require_not_migrated). The migration only reads it. It is dropped after the new generation has run.

The rows are cast to the columns of the next generation, without changing any value. The plan has compared the
declared columns. This module inspects the table, which has the real columns. Only its rows show whether each
of them has a value for a new key.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

from mzplan.connectors.api.connector import SourceConnector
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.merges import append, latest_rows, writing_as
from mzplan.connectors.frames.types import ddl_of, quoted
from mzplan.connectors.releases import transfer_release
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.resources import Body
from mzplan.model.state import Predecessor
from mzplan.schema.columns import POSITION, Column, canonical_type, spark_type
from mzplan.schema.migration import is_exact
from mzplan.schema.source_columns import columns_of, keys_of
from mzplan.spark.collections import Collections, read_table
from mzplan.warehouse.checkpoints import Checkpoint, MigratedRows, collection_path
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.generation_move import newest_begun
from mzplan.warehouse.storage import remember_collection, table_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructField


def cast_rows(rows: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Return the rows with these columns, matched by name in any case, and `_position`.

    A column missing in the rows becomes NULL: it was added after the generation was planned. Other columns
    are dropped.
    """
    fields = _fields(rows)
    casts = []
    for column in columns:
        field = fields.get(column.name.lower())
        value = f"CAST({quoted(field.name) if field is not None else 'NULL'} AS {spark_type(column.type)})"
        casts.append(f.expr(value).alias(column.name))
    return rows.select(*casts, f.col(POSITION))


def find_uncastable(
    rows: DataFrame, address: Address, columns: Sequence[Column], keys: Sequence[str]
) -> Diagnostic | None:
    """Return MZ294 for the first column or row that can't be migrated unchanged; None if all can.

    `keys`: columns in which each row must have a value. Raises Spark's errors.
    """
    fields = _fields(rows)
    for column in columns:
        field, after = fields.get(column.name.lower()), spark_type(column.type)
        if field is None:
            continue
        before = canonical_type(ddl_of(field.dataType))
        if before is None or not is_exact(spark_type(before), after):
            held = before or field.dataType.simpleString()
            return _diagnostic(address, f"Column {column.name} has values of type {held}, not {column.type}")
    if not keys:
        return None
    key_values = [quoted(fields[key.lower()].name) if key.lower() in fields else "NULL" for key in keys]
    is_null = reduce(lambda one, other: one | other, (f.expr(f"{value} IS NULL") for value in key_values))
    failing = rows.where(is_null).select(POSITION).orderBy(POSITION).limit(1).collect()
    if not failing:
        return None
    position = failing[0][POSITION].asDict() if failing[0][POSITION] is not None else {}
    place = ", ".join(f"{name} {value}" for name, value in position.items()) or "an unknown place"
    return _diagnostic(address, f"The row at {place} has no value for the key ({', '.join(keys)})")


def _diagnostic(address: Address, why: str) -> Diagnostic:
    return Diagnostic.of("MZ294.unusable-rows", address=address, why=why)


def _fields(rows: DataFrame) -> dict[str, StructField]:
    return {field.name.lower(): field for field in rows.schema.fields}


log = logging.getLogger("mzplan.spark")

_IDS = uuid.UUID("5b2a3d0e-6d0c-4b5e-9d35-1f0c4f1f6d1a")
_CHECKED = 30.0  # seconds for which rows are checked before anything is committed


class RowMigration:
    """Migrates the rows of a source with a predecessor. Raises MzplanError, OSError, and Spark's errors."""

    def __init__(self, spark: SparkSession, warehouse: str, connector: SourceConnector, query: ResolvedQuery):
        self._spark = spark
        self._warehouse = warehouse
        self._connector = connector
        self._query = query
        self._type = query.description.type

    def begin(self, collections: Collections) -> None:
        """Migrate the rows to the source's generation, unless this was done before."""
        self._begin(self._query, collections)

    def uncastable(self) -> tuple[Diagnostic, ...]:
        """Return why the migration would fail, by a short check; empty if it is already done.

        Changes nothing.
        """
        if self._checkpoint(self._query).migrated_rows() is not None:
            return ()
        context, group = self._spark.sparkContext, f"migration of {self._query.description.id}"
        context.setJobGroup(group, group, interruptOnCancel=True)
        timer = threading.Timer(_CHECKED, context.cancelJobGroup, [group])
        timer.start()
        try:
            diagnostic = self._uncastable(self._query)
        except Exception:
            if timer.is_alive():
                raise
            return (_not_all_checked(self._query),)
        finally:
            timer.cancel()
            context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
        return (diagnostic,) if diagnostic is not None else ()

    def _begin(self, query: ResolvedQuery, collections: Collections) -> None:
        """Migrate the rows to the generation of `query`, which is the source or its earlier generation."""
        later = self._checkpoint(query)
        migrated = later.migrated_rows()
        if migrated is not None and migrated.done:
            return
        if migrated is None:
            if (former := self._former(query)).predecessor is not None:  # finish its migration first
                earlier = replace(
                    query,
                    description=replace(
                        query.description, generation=former.generation, predecessor=former.predecessor
                    ),
                    columns=columns_of(self._type, former.body),
                    keys=keys_of(self._type, former.body),
                )
                self._begin(earlier, collections)
            if (problem := self._uncastable(query)) is not None:
                raise MzplanError(problem)
            migrated = self._plan(former)
            later.record_migrated_rows(migrated)
        failpoint(Failpoint.MIGRATION_JOURNALED)
        if migrated.table is not None:
            migrated = self._migrate(query, migrated, later, collections)
        later.record_migrated_rows(replace(migrated, done=True))
        log.info("%s: generation %d has its rows", query.address, query.description.generation)

    def _checkpoint(self, query: ResolvedQuery) -> Checkpoint:
        return Checkpoint.of(self._warehouse, *query.description.place)

    def _former(self, query: ResolvedQuery) -> Predecessor:
        predecessor = query.description.predecessor
        assert predecessor is not None, f"{query.address} has no rows to migrate"
        return newest_begun(self._warehouse, query.description.id, predecessor)

    def _plan(self, former: Predecessor) -> MigratedRows:
        """Return the rows to migrate: all rows of the former collection, which nothing writes to."""
        number, body, id_ = former.generation, former.body, self._query.description.id
        earlier = Checkpoint.of(self._warehouse, id_, number)
        path = collection_path(self._warehouse, id_, number)
        table = earlier.collection() or table_id(path)
        if table is None:  # the former generation never ran
            return MigratedRows(generation=number, body=body)
        collection = CollectionLog(path)
        position = _position(earlier, collection)
        before = earlier.migrated_rows()
        origin = before.origin if before is not None and before.origin is not None else number
        return MigratedRows(
            generation=number,
            body=body,
            table=table,
            version=max(collection.versions()),
            position=position,
            origin=origin if position is not None else None,
        )

    def _migrate(
        self, query: ResolvedQuery, migrated: MigratedRows, later: Checkpoint, collections: Collections
    ) -> MigratedRows:
        id_, generation = query.description.place
        former = collection_path(self._warehouse, id_, migrated.generation)
        path = collection_path(self._warehouse, id_, generation)
        earlier = Checkpoint.of(self._warehouse, id_, migrated.generation)
        variant = query.description.position_type.partition("+")[2]
        position, keyed = self._connector.position_of(variant), bool(query.keys)
        collections.ensure(self._spark, path, query.columns, position, keyed=keyed)
        remember_collection(later, path)
        query_id = str(uuid.uuid5(_IDS, f"{id_}/g{generation}"))
        if migrated.position is not None and not later.log.has_begun():
            rows = read_table(self._spark, former, migrated.version)
            with writing_as(self._spark, query_id):
                append(self._converted(query, migrated, rows), 0, path)
        failpoint(Failpoint.MIGRATION_WRITTEN)
        if (upstream := earlier.upstream()) is not None:
            later.record_upstream(upstream)
        if migrated.position is not None:
            self._connector.migrate_checkpoint(earlier, later)
            transfer_release(earlier, later, query.description)
            later.log.begin(query_id, earlier.log, migrated.position)
        failpoint(Failpoint.MIGRATION_PLACED)
        return replace(migrated, written=_written_version(path, query_id))

    def _uncastable(self, query: ResolvedQuery) -> Diagnostic | None:
        """Return MZ294 for the first column or row of the former collection that can't be migrated."""
        former = self._former(query)
        path = collection_path(self._warehouse, query.description.id, former.generation)
        version = max(CollectionLog(path).versions(), default=-1)
        if version < 0:
            return None
        new_key = () if self._same_key(query.keys, former.body) else query.keys
        rows = read_table(self._spark, path, version)
        return find_uncastable(rows, query.address, query.columns, new_key)

    def _converted(self, query: ResolvedQuery, migrated: MigratedRows, rows: DataFrame) -> DataFrame:
        """Return the migrated rows.

        For a new key, keep the latest row: different former keys may now be equal.
        """
        new_rows = cast_rows(rows, query.columns)
        if self._same_key(query.keys, migrated.body):
            return new_rows
        return latest_rows(new_rows, query.keys, position=True)

    def _same_key(self, keys: Sequence[str], body: Body) -> bool:
        return {key.lower() for key in keys} == {key.lower() for key in keys_of(self._type, body)}


def _position(earlier: Checkpoint, collection: CollectionLog) -> str | None:
    """Return the position after a generation's last step; None if it has read nothing.

    Raises OSError if the position is unknown.
    """
    log_, query_id = earlier.log, earlier.log.query_id()
    step = log_.committed()
    unfinished = log_.unfinished()
    if unfinished is not None and query_id is not None:
        step = unfinished if collection.last_transaction(query_id) == unfinished else step
    if step < 0:
        return None
    position = log_.entry(step)
    if position is None:
        raise OSError(f"{earlier.spark} does not say where step {step} has ended")
    return position


def _written_version(path: str, query_id: str) -> int:
    """Return the table version whose commit wrote the rows; 0 if no commit did."""
    collection = CollectionLog(path)
    for version in collection.versions():
        commit = collection.commit(version)
        if commit is not None and commit.transaction == (query_id, 0):
            return version
    return 0


def _not_all_checked(query: ResolvedQuery) -> Diagnostic:
    return Diagnostic.of("MZ290.key-unchecked", address=query.address, seconds=_CHECKED)
