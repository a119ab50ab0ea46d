"""Checks whether a source can read from a PostgreSQL server, and reports all problems at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mzplan.connectors.api.queries import Probe, ResolvedQuery
from mzplan.connectors.postgres.identity import Check, identify
from mzplan.connectors.postgres.source.slots import (
    NO_TABLE,
    Limits,
    Names,
    Slot,
    find_slot,
    own_columns,
    published,
)
from mzplan.connectors.postgres.source.table_probe import TableCheck
from mzplan.connectors.postgres.source.upstream_problems import NO_SLOT_LEFT, NO_WALSENDER, WAL_LEVEL
from mzplan.connectors.postgres.statements import allow_replication, create_publication, table_sql
from mzplan.connectors.postgres.tables import Connection, Table, find_table
from mzplan.connectors.postgres.types import quoted, split_name
from mzplan.model.diagnostics import Diagnostic

_OLDEST = 140000
_NAME_BYTES = 63  # the server truncates longer application names
_SERVER = """
SELECT current_setting('server_version_num')::int, current_setting('server_version'),
       current_setting('wal_level'), current_setting('max_replication_slots')::int,
       (SELECT count(*) FROM pg_replication_slots)::int, current_setting('max_wal_senders')::int,
       (SELECT count(*) FROM pg_stat_replication)::int,
       (SELECT rolsuper OR rolreplication FROM pg_roles WHERE rolname = current_user)
       OR EXISTS (SELECT 1 FROM pg_roles r WHERE r.rolname IN ('rds_replication', 'cloudsqlsuperuser',
                  'azure_pg_admin') AND pg_has_role(current_user, r.oid, 'MEMBER')),
       has_database_privilege(current_database(), 'CREATE')
"""
_ACTIVE = "SELECT application_name FROM pg_stat_activity WHERE pid = %s"
_PUBLICATION = """
SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot
FROM pg_publication WHERE pubname = %s
"""
_PUBLISHED_PARTS = """
SELECT EXISTS (SELECT FROM pg_publication_tables p JOIN pg_namespace n ON n.nspname = p.schemaname
               JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
               JOIN pg_partition_tree(%(oid)s) t ON t.relid = c.oid
               WHERE p.pubname = %(name)s AND c.oid <> %(oid)s)
"""
_OWNED = "pg_has_role(current_user, relowner, 'MEMBER') FROM pg_class WHERE oid = %s"


def probe_source(connection: Connection, query: ResolvedQuery) -> Probe:
    """Return the problems of this source, without changing anything. Raises psycopg.Error."""
    diagnostics = tuple(_ServerCheck(connection, query).problems())
    identity = identify(connection)
    # Leave out the timeline: a promoted server is the same upstream if it has the slot.
    upstream = {k: v for k, v in identity.items() if k != "timeline"} if identity else None
    return Probe(diagnostics=diagnostics, upstream=upstream)


class _ServerCheck(Check):
    """Finds the problems of a source on its server and with each of its tables."""

    def __init__(self, connection: Connection, query: ResolvedQuery):
        super().__init__(connection, query)
        self._names = Names.of(query)

    def problems(self) -> Iterator[Diagnostic]:
        """Yield all problems of the server and the tables. Raises psycopg.Error."""
        (
            version,
            version_name,
            level,
            max_slots,
            slots_used,
            max_senders,
            senders_used,
            can_replicate,
            can_create,
        ) = self._row(_SERVER)
        if version < _OLDEST:
            yield self._problem("MZ220.postgresql-too", version_name=version_name)
            return
        if level != "logical":
            yield WAL_LEVEL.diagnostic(self._query, what=f"wal_level is {level}")
        if not can_replicate:
            yield self._problem(
                "MZ054.role-not",
                user=self._query.link.body["user"],
                allow_replication=allow_replication(self._role),
                role=self._role,
            )
        slot = find_slot(self._connection, self._names.slot)
        if slot is not None:
            yield from self._slot(slot)
        elif slots_used >= max_slots:
            yield NO_SLOT_LEFT.diagnostic(self._query, what=f"all {max_slots} are in use")
        # A running source already has a walsender.
        if senders_used >= max_senders and (slot is None or slot.active_pid is None):
            what = f"all {max_senders} (max_wal_senders) are in use"
            yield NO_WALSENDER.diagnostic(self._query, what=what)
        tables = {name: find_table(self._connection, name) for name in self._query.body["tables"]}
        for name, table in tables.items():
            if table is None:
                yield NO_TABLE.diagnostic(self._query, table=name)
            else:
                yield from TableCheck(self._connection, self._query).problems(name, table)
        yield from self._publication(tables, can_create)

    # ── the slot

    def _slot(self, slot: Slot) -> Iterator[Diagnostic]:
        database = self._query.link.body["database"]
        # For mzplan's own slot in another database, `compare` decides whether this is another upstream.
        if not self._names.own_slot and (slot.plugin != "pgoutput" or slot.database != database):
            misfit = f"has the plug-in {slot.plugin or '-'} and the database {slot.database or '-'}"
            yield self._problem("MZ225.slot-cannot", slot=self._names.slot, misfit=misfit, database=database)
        if slot.active_pid is not None and not self._is_ours(slot.active_pid):
            yield self._problem("MZ225.slot-use", slot=self._names.slot, active_pid=slot.active_pid)

    def _is_ours(self, pid: int) -> bool:
        row = self._connection.execute(_ACTIVE, (pid,)).fetchone()
        own = f"mzplan {self._query.address}".encode()[:_NAME_BYTES]
        return row is None or str(row[0]).encode() == own

    # ── the publication

    def _publication(
        self, tables_by_name: Mapping[str, Table | None], can_create: bool
    ) -> Iterator[Diagnostic]:
        """Yield all problems of the publication.

        `tables_by_name`: the tables by name; None for a missing table.
        `can_create`: the role may create a publication.
        """
        name = self._names.publication
        tables = [table for table in tables_by_name.values() if table is not None]
        listed = [
            t.sql if t is not None else table_sql(*split_name(table_name))
            for table_name, t in tables_by_name.items()
        ]
        missing = ", ".join(table_name for table_name, table in tables_by_name.items() if table is None)
        first = f"create {missing}; then " if missing else ""
        publication = self._connection.execute(_PUBLICATION, (name,)).fetchone()
        limits = published(self._connection, name)
        unpublished = [t for t in tables if (t.schema, t.name) not in limits]
        yield from self._filtered(name, [t for t in tables if t not in unpublished], limits)
        if self._names.own_publication:
            foreign = [t for t in unpublished if not self._is_granted(_OWNED, t.oid)]
            if foreign or (publication is None and not can_create):
                why = [f"{t.schema}.{t.name} is owned by another role" for t in foreign]
                why += ["it may not CREATE in the database"] if publication is None and not can_create else []
                yield self._problem(
                    "MZ054.role-cannot",
                    user=self._query.link.body["user"],
                    why="; ".join(why),
                    first=first,
                    create_publication=create_publication("mzplan", listed),
                )
            return
        if publication is None:
            yield self._problem(
                "MZ227.publication-not",
                name=name,
                first=first,
                create_publication=create_publication(name, listed),
            )
            return
        in_parts = [] if publication[1] else [t for t in unpublished if self._is_published_in_parts(name, t)]
        added = [t for t in unpublished if t not in in_parts]
        wrong = [f"it is missing {t.schema}.{t.name}" for t in added]
        wrong += [f"it publishes the partitions of {t.schema}.{t.name} as tables" for t in in_parts]
        options = ["publish_via_partition_root = true"] if in_parts else []
        if not publication[0]:
            wrong.append("it does not publish inserts, updates, deletes and truncates")
            options.append("publish = 'insert, update, delete, truncate'")
        if wrong:
            actions = [f"ADD TABLE {', '.join(t.sql for t in added)}"] if added else []
            actions += [f"SET ({', '.join(options)})"] if options else []
            yield self._problem(
                "MZ227.publication-not-publish",
                name=name,
                wrong="; ".join(wrong),
                actions=" ".join(f"ALTER PUBLICATION {quoted(name)} {action};" for action in actions),
            )

    def _is_published_in_parts(self, name: str, table: Table) -> bool:
        """Return whether the changes of a partitioned table arrive as changes of its partitions."""
        return bool(self._row(_PUBLISHED_PARTS, {"oid": table.oid, "name": name})[0])

    def _filtered(self, name: str, tables: Sequence[Table], limits: Limits) -> Iterator[Diagnostic]:
        """Report row filters and column lists (since PostgreSQL 15), which a snapshot doesn't apply."""
        wrong, filtered = [], []
        for table in tables:
            columns, rows = limits[table.schema, table.name]
            own = [column for c in own_columns(self._query) if (column := table.column(c.name)) is not None]
            unpublished = [
                column.name
                for column in own
                if columns is not None and column.writable and column.name not in columns
            ]
            if rows:
                wrong.append(f"only rows of {table.schema}.{table.name} WHERE {rows}")
            if unpublished:
                wrong.append(f"{table.schema}.{table.name} without {', '.join(unpublished)}")
            if rows or unpublished:
                filtered.append(table.sql)
        if wrong:
            publication, listed = quoted(name), ", ".join(filtered)
            yield self._problem(
                "MZ227.publication-not-publish-everything",
                name=name,
                wrong="; ".join(wrong),
                publication=publication,
                listed=listed,
            )
