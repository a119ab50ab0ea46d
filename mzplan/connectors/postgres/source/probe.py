"""Asking a PostgreSQL server whether a source could read it: all that stands in the way, at once."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg

from mzplan.connectors.api.deadline import bounded
from mzplan.connectors.api.probe_memo import Memo, fingerprint
from mzplan.connectors.api.protocols import PROBE_TIMEOUT_S, Probe, ResolvedQuery
from mzplan.connectors.postgres.client import connect, connect_problem, patience, reached
from mzplan.connectors.postgres.identity import identify
from mzplan.connectors.postgres.source.probe_base import ServerCheck
from mzplan.connectors.postgres.source.problems import explained, no_walsender, wal_level
from mzplan.connectors.postgres.source.publication_probe import PublicationCheck
from mzplan.connectors.postgres.source.slots import find_slot
from mzplan.connectors.postgres.source.table_probe import TableCheck
from mzplan.connectors.postgres.tables import Table, find_table
from mzplan.model.diagnostics import Diagnostic, MzplanError

_KEEP_FAILURE_S = 3.0
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
    """Probes sources. A server that was just found dead or closed isn't asked again for a moment."""

    def __init__(self) -> None:
        self._failures: Memo[Exception | None] = Memo(_KEEP_FAILURE_S)

    def probe(self, query: ResolvedQuery) -> Probe:
        """What stands in the way of this source; nothing is changed. Never raises for what a server did."""
        try:
            with reached(query) as info:
                return self._ask(info, query)
        except MzplanError as problem:  # of its tunnel
            return Probe(diagnostics=problem.diagnostics)

    def _ask(self, info: str, query: ResolvedQuery) -> Probe:
        def reach() -> Exception | None:
            try:
                bounded(lambda: connect(info, PROBE_TIMEOUT_S).close(), patience(query))
            except (psycopg.Error, TimeoutError, OSError) as problem:
                return problem
            return None

        failed = self._failures.get(fingerprint({"conninfo": info}), reach)
        if failed is not None:
            return Probe(diagnostics=(connect_problem(query, failed),))
        try:
            return bounded(lambda: _ask(info, query), patience(query))
        except psycopg.Error as problem:
            return Probe(diagnostics=explained(query, problem).diagnostics)
        except (TimeoutError, OSError) as problem:
            return Probe(diagnostics=(connect_problem(query, problem),))


def _ask(info: str, query: ResolvedQuery) -> Probe:
    with connect(info, PROBE_TIMEOUT_S) as connection:
        check = _Check(connection, query)
        found = tuple(check.problems())
        identity = identify(connection)
        # Without the timeline: a server that was promoted is the same upstream, if it has the slot.
        upstream = {k: v for k, v in identity.items() if k != "timeline"} if identity else None
        return Probe(diagnostics=found, upstream=upstream)


class _Check(ServerCheck):
    def problems(self) -> Iterator[Diagnostic]:
        version, called, level, most, taken, senders, sending, replicates, creates = self._row(_SERVER)
        if version < _OLDEST:
            yield self._told(
                "MZ235",
                f"PostgreSQL {called} is too old for a source",
                f"{self._where}: ranges of a table and its partitions are read as PostgreSQL 14 can.",
                "upgrade the server.",
            )
            return
        if level != "logical":
            yield from wal_level(self._query, f"wal_level is {level}").diagnostics
        if not replicates:
            yield self._told(
                "MZ221",
                f"Role {self._query.link.body['user']} may not replicate",
                f"{self._where}: a logical slot needs the attribute REPLICATION.",
                f"ALTER ROLE {self._role} REPLICATION; (on Amazon RDS: GRANT rds_replication TO "
                f"{self._role};)",
            )
        yield from self._slot(most - taken, most)
        yield from self._walsender(senders - sending, senders)
        tables: list[Table] = []
        for name in self._query.body["tables"]:
            table = find_table(self._connection, name)
            if table is None:
                yield self._told(
                    "MZ052",
                    f"Table {name} does not exist",
                    f"{self._where} has no table {name}.",
                    "create it, or correct tables of the source.",
                )
                continue
            tables.append(table)
            yield from TableCheck(self._connection, self._query).problems(name, table)
        yield from PublicationCheck(self._connection, self._query).problems(tables, creates)

    # ── slot

    def _slot(self, free: int, most: int) -> Iterator[Diagnostic]:
        slot = find_slot(self._connection, self._names.slot)
        if slot is None:
            if free < 1:
                yield self._told(
                    "MZ222",
                    "The PostgreSQL server has no replication slot left",
                    f"{self._where}: all {most} are taken.",
                    "raise max_replication_slots (the server must be restarted), or drop those that nobody "
                    "uses: SELECT slot_name, active FROM pg_replication_slots; While a snapshot is read, a "
                    "source may need two.",
                )
            return
        database = self._query.link.body["database"]
        # One of mzplan's own in another database: whether that is another upstream is told by `compare`.
        if not self._names.own_slot and (slot.plugin != "pgoutput" or slot.database != database):
            what = (
                f"is of plug-in {slot.plugin or '(none: a physical one)'} and database {slot.database or '-'}"
            )
            yield self._told(
                "MZ226",
                f"Slot {self._names.slot} can't be used",
                f"{self._where}: it {what}; a source needs pgoutput, in its own database {database}.",
                "name another slot, or leave `slot` out: then mzplan makes one.",
            )
        if slot.active_pid is not None and not self._is_ours(slot.active_pid):
            yield self._told(
                "MZ225",
                f"Slot {self._names.slot} is read by somebody else",
                f"{self._where}: by the server's process {slot.active_pid}; one at a time can have it.",
                f"see who it is: SELECT * FROM pg_stat_activity WHERE pid = {slot.active_pid};",
            )

    def _walsender(self, free: int, most: int) -> Iterator[Diagnostic]:
        slot = find_slot(self._connection, self._names.slot)
        # The source that runs has one.
        if free < 1 and (slot is None or slot.active_pid is None):
            yield no_walsender(self._query, f"all {most} (max_wal_senders) are taken")

    def _is_ours(self, pid: int) -> bool:
        found = self._connection.execute(_ACTIVE, (pid,)).fetchone()
        own = f"mzplan {self._query.address}".encode()[:_NAME_BYTES]
        return found is None or str(found[0]).encode() == own
