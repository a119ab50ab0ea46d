"""Whether a PostgreSQL server lets a source read: all that stands in the way, at once."""

from __future__ import annotations

from collections.abc import Iterator

from mzplan.connectors.api.protocols import Probe, ResolvedQuery
from mzplan.connectors.postgres.identity import identify
from mzplan.connectors.postgres.probe import Check, ServerProbe
from mzplan.connectors.postgres.source.problems import NO_WALSENDER, WAL_LEVEL, explained
from mzplan.connectors.postgres.source.publication_probe import PublicationCheck
from mzplan.connectors.postgres.source.slots import NO_TABLE, Names, find_slot
from mzplan.connectors.postgres.source.table_probe import TableCheck
from mzplan.connectors.postgres.tables import Connection, Table, find_table
from mzplan.model.diagnostics import Diagnostic

_OLDEST = 140000
_NAME_BYTES = 63  # of an application's name: the server cuts off more
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


class PostgresSourceProbe:
    """Probes sources. A server that was just found dead or closed is left alone for a moment."""

    def __init__(self) -> None:
        self._servers = ServerProbe(explained)

    def probe(self, query: ResolvedQuery) -> Probe:
        """What stands in the way of this source; nothing is changed. Never raises for what a server did."""

        def look(connection: Connection) -> Probe:
            found = tuple(ServerCheck(connection, query).problems())
            identity = identify(connection)
            # Without the timeline: a server that was promoted is the same upstream, if it has the slot.
            upstream = {k: v for k, v in identity.items() if k != "timeline"} if identity else None
            return Probe(diagnostics=found, upstream=upstream)

        return self._servers.look(query, look)


class ServerCheck(Check):
    """What stands in the way of a source, on the server and of each of its tables."""

    def __init__(self, connection: Connection, query: ResolvedQuery):
        super().__init__(connection, query)
        self._names = Names.of(query)

    def problems(self) -> Iterator[Diagnostic]:
        """All of them. Raises psycopg.Error."""
        version, called, level, most, taken, senders, sending, replicates, creates = self._row(_SERVER)
        if version < _OLDEST:
            yield self._problem(
                "MZ235",
                f"PostgreSQL {called} is too old for a source",
                "ranges of a table and its partitions are read as PostgreSQL 14 can.",
                "upgrade the server.",
            )
            return
        if level != "logical":
            yield WAL_LEVEL.diagnostic(self._query, what=f"wal_level is {level}")
        if not replicates:
            yield self._problem(
                "MZ221",
                f"Role {self._query.link.body['user']} may not replicate",
                "a logical slot needs the attribute REPLICATION.",
                f"ALTER ROLE {self._role} REPLICATION; (on Amazon RDS: GRANT rds_replication TO "
                f"{self._role};)",
            )
        yield from self._slot(most - taken, most)
        yield from self._walsender(senders - sending, senders)
        tables: list[Table] = []
        for name in self._query.body["tables"]:
            table = find_table(self._connection, name)
            if table is None:
                yield NO_TABLE.diagnostic(self._query, table=name)
                continue
            tables.append(table)
            yield from TableCheck(self._connection, self._query).problems(name, table)
        yield from PublicationCheck(self._connection, self._query).problems(tables, creates)

    # ── slot

    def _slot(self, free: int, most: int) -> Iterator[Diagnostic]:
        slot = find_slot(self._connection, self._names.slot)
        if slot is None:
            if free < 1:
                yield self._problem(
                    "MZ222",
                    "The PostgreSQL server has no replication slot left",
                    f"all {most} are taken.",
                    "raise max_replication_slots (the server must be restarted), or drop those that nobody "
                    "uses: SELECT slot_name, active FROM pg_replication_slots; While a snapshot is read, a "
                    "source may need two.",
                )
            return
        database = self._query.link.body["database"]
        # One of mzplan's own in another database: `compare` decides whether that is another upstream.
        if not self._names.own_slot and (slot.plugin != "pgoutput" or slot.database != database):
            what = (
                f"is of plug-in {slot.plugin or '(none: a physical one)'} and database {slot.database or '-'}"
            )
            yield self._problem(
                "MZ226",
                f"Slot {self._names.slot} can't be used",
                f"it {what}; a source needs pgoutput, in its own database {database}.",
                "name another slot, or leave `slot` out: then mzplan makes one.",
            )
        if slot.active_pid is not None and not self._is_ours(slot.active_pid):
            yield self._problem(
                "MZ225",
                f"Slot {self._names.slot} is read by somebody else",
                f"by the server's process {slot.active_pid}; one at a time can have it.",
                f"see who it is: SELECT * FROM pg_stat_activity WHERE pid = {slot.active_pid};",
            )

    def _walsender(self, free: int, most: int) -> Iterator[Diagnostic]:
        slot = find_slot(self._connection, self._names.slot)
        # The source that runs has one.
        if free < 1 and (slot is None or slot.active_pid is None):
            yield NO_WALSENDER.diagnostic(self._query, what=f"all {most} (max_wal_senders) are taken")

    def _is_ours(self, pid: int) -> bool:
        found = self._connection.execute(_ACTIVE, (pid,)).fetchone()
        own = f"mzplan {self._query.address}".encode()[:_NAME_BYTES]
        return found is None or str(found[0]).encode() == own
