"""Asking a PostgreSQL server whether a source could read it: all that stands in the way, at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from mzplan.columns_of import included_columns
from mzplan.connectors.interface import PROBE_TIMEOUT_S, Probe, ResolvedQuery
from mzplan.connectors.memo import Memo, fingerprint
from mzplan.connectors.postgres_client import bounded, connect, connect_problem, patience, place, reached
from mzplan.connectors.postgres_identity import identify
from mzplan.connectors.postgres_problems import explained, hidden_rows, no_walsender, wal_level
from mzplan.connectors.postgres_slots import Names, find_slot
from mzplan.connectors.postgres_target import Connection, Table, find_table
from mzplan.connectors.postgres_types import TargetColumn, quoted, shown
from mzplan.connectors.postgres_values import is_readable, wanted_types
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
_TABLE = """
SELECT c.relkind::text, c.relpersistence::text, c.relreplident::text,
       EXISTS (SELECT 1 FROM pg_class l LEFT JOIN pg_partition_tree(c.oid) t ON t.relid = l.oid
               WHERE (l.oid = c.oid OR t.relid IS NOT NULL) AND l.reltoastrelid <> 0),
       pg_has_role(current_user, c.relowner, 'MEMBER'), has_schema_privilege(c.relnamespace, 'USAGE'),
       array(SELECT p.oid::regclass::text
             FROM pg_class p LEFT JOIN pg_partition_tree(c.oid) t ON t.relid = p.oid
             WHERE (p.oid = c.oid OR t.isleaf) AND p.relkind = 'r' AND row_security_active(p.oid) ORDER BY 1)
FROM pg_class c WHERE c.oid = %s
"""
_LEAVES = """
SELECT c.oid, quote_ident(n.nspname) || '.' || quote_ident(c.relname), c.relreplident::text,
       has_table_privilege(c.oid, 'SELECT'), has_schema_privilege(n.oid, 'USAGE'), quote_ident(n.nspname)
FROM pg_partition_tree(%(oid)s) t JOIN pg_class c ON c.oid = t.relid
JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE t.isleaf AND c.oid <> %(oid)s ORDER BY 2
"""
_CHILDREN = """
SELECT array(SELECT i.inhrelid::regclass::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhparent
             WHERE i.inhparent = %s AND c.relkind = 'r' ORDER BY 1)
"""
_INDEXES = """
SELECT array_agg(a.attname::text), i.indisprimary, i.indisreplident
FROM pg_index i CROSS JOIN LATERAL unnest(i.indkey[0:i.indnkeyatts - 1]) AS k(attnum)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL
  AND i.indexprs IS NULL
GROUP BY i.indexrelid, i.indisprimary, i.indisreplident
"""
_LARGE = """
SELECT attname::text FROM pg_attribute
WHERE attrelid = ANY(%s) AND attnum > 0 AND NOT attisdropped AND attlen = -1 AND attstorage <> 'p'
"""
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
_FILTERED = """
SELECT schemaname, tablename, attnames::text[], rowfilter FROM pg_publication_tables WHERE pubname = %s
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


class _Check:
    def __init__(self, connection: Connection, query: ResolvedQuery):
        self._connection = connection
        self._query = query
        self._names = Names.of(query)
        self._where = place(query.link)
        included = included_columns(query.description.type, query.body)
        own = included["table"].name if "table" in included else None
        self._columns = [column for column in query.columns if column.name != own]
        self._key = [name for name in query.body["key"] if name != own]
        self._role = shown(query.link.body["user"])

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
            yield from self._table(name, table)
        yield from self._publication(tables, creates)

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

    # ── tables

    def _table(self, name: str, table: Table) -> Iterator[Diagnostic]:
        kind, persistence, identity, toasted, _, usable, hidden = self._row(_TABLE, (table.oid,))
        if kind not in ("r", "p") or persistence != "p":
            what = {"v": "a view", "m": "a materialised view", "f": "a foreign table"}.get(kind, "not logged")
            yield self._told(
                "MZ233",
                f"{name} can't be replicated",
                f"{self._where}: it is {what}; the server's log has changes of ordinary tables only.",
                "name the tables that it is made of; or ALTER TABLE … SET LOGGED.",
            )
            return
        leaves = self._leaves(table)
        yield from self._readable(name, table, usable, leaves)
        if hidden:
            yield hidden_rows(self._query, f"{', '.join(hidden)} has row-level security")
        yield from self._children(name, table)
        yield from self._types(name, table)
        yield from self._identity(name, table, identity, leaves)
        if toasted:
            yield from self._large(name, table, identity, leaves)

    def _children(self, name: str, table: Table) -> Iterator[Diagnostic]:
        found = self._row(_CHILDREN, (table.oid,))[0]
        if found:
            yield Diagnostic(
                severity="warning",
                code="MZ233",
                summary=f"Rows of the tables that inherit from {name} are not read",
                detail=f"{self._where}: {', '.join(found)}. SELECT FROM {name} shows their rows, too; the "
                "server's log has them as rows of their own tables.",
                hint="name those tables in the source, too, if their rows are wanted.",
                address=self._query.address,
            )

    def _leaves(self, table: Table) -> Sequence[_Leaf]:
        """The partitions that hold the rows: PostgreSQL writes of each what that one's own replica identity
        says, and a snapshot reads each by itself."""
        found = self._connection.execute(_LEAVES.encode(), {"oid": table.oid}).fetchall()
        return [_Leaf(*row) for row in found]

    def _readable(
        self, name: str, table: Table, usable: bool, leaves: Sequence[_Leaf]
    ) -> Iterator[Diagnostic]:
        grants = []
        if not usable:
            grants.append(f"GRANT USAGE ON SCHEMA {shown(table.schema)} TO {self._role};")
        if not self._row("SELECT has_table_privilege(%s, 'SELECT')", (table.oid,))[0]:
            grants.append(f"GRANT SELECT ON {shown(table.schema)}.{shown(table.name)} TO {self._role};")
        for schema in sorted({leaf.schema for leaf in leaves if not leaf.usable} - {quoted(table.schema)}):
            grants.append(f"GRANT USAGE ON SCHEMA {schema} TO {self._role};")
        closed = [leaf.sql for leaf in leaves if not leaf.readable]
        if closed:
            grants.append(f"GRANT SELECT ON {', '.join(closed)} TO {self._role};")
        if grants:
            parts = f" (of its partitions {', '.join(closed)})" if closed else ""
            yield self._told(
                "MZ054",
                f"Table {name} may not be read",
                f"{self._where} does not allow {self._query.link.body['user']} to read it{parts}.",
                " ".join(grants),
            )

    def _types(self, name: str, table: Table) -> Iterator[Diagnostic]:
        wrong = []
        for column in self._columns:
            found = table.column(column.name)
            if found is None:
                wrong.append(f"it has no column {column.name}")
            elif not found.writable and _is_generated(self._connection, table, found):
                wrong.append(f"{column.name} is generated, and not in the log")
            elif not is_readable(column.type, found):
                wrong.append(
                    f"{column.name} is {found.shown}, which is no {column.type} (but {wanted_types(found)})"
                )
        if wrong:
            yield self._told(
                "MZ230",
                f"Table {name} does not have the columns of {self._query.address}",
                f"{self._where}: {'; '.join(wrong)}.",
                "correct schema of the source; STRING takes values of every type, as PostgreSQL writes them.",
            )

    def _identity(
        self, name: str, table: Table, identity: str, leaves: Sequence[_Leaf]
    ) -> Iterator[Diagnostic]:
        key = {found.name for one in self._key if (found := table.column(one)) is not None}
        indexes = self._connection.execute(_INDEXES, (table.oid,)).fetchall()
        sql = f"{shown(table.schema)}.{shown(table.name)}"
        if not any(set(columns) <= key for columns, _, _ in indexes):
            yield self._told(
                "MZ228",
                f"The key of {self._query.address} does not identify the rows of {name}",
                f"{self._where}: no unique index is of ({', '.join(self._key)}) alone: rows would replace "
                "each other.",
                f"correct key; or ALTER TABLE {sql} ADD PRIMARY KEY ({', '.join(map(shown, sorted(key)))});",
            )
            return
        lacking = [] if _sends(identity, indexes, key) else [sql]
        lacking += [leaf.sql for leaf in leaves if not self._leaf_sends(leaf, key)]
        if lacking:
            which = f" ({', '.join(lacking)})" if lacking != [sql] else ""
            yield self._told(
                "MZ228",
                f"The key of {name} is not in the log",
                f"{self._where}: of a row that is deleted, the server notes down its replica identity, which "
                f"does not have the columns ({', '.join(self._key)}){which}.",
                f"{_in_full(lacking)} or make the key that of the primary key.",
            )

    def _leaf_sends(self, leaf: _Leaf, key: set[str]) -> bool:
        return leaf.identity == "f" or _sends(
            leaf.identity, self._connection.execute(_INDEXES, (leaf.oid,)).fetchall(), key
        )

    def _large(self, name: str, table: Table, identity: str, leaves: Sequence[_Leaf]) -> Iterator[Diagnostic]:
        oids = [table.oid, *(leaf.oid for leaf in leaves)]
        found = {row[0] for row in self._connection.execute(_LARGE, (oids,)).fetchall()}
        own = [one.name for c in self._columns if (one := table.column(c.name)) and one.name in found]
        lacking = [f"{shown(table.schema)}.{shown(table.name)}"] if identity != "f" else []
        # ALTER TABLE of a partitioned table does not reach its partitions.
        lacking += [leaf.sql for leaf in leaves if leaf.identity != "f"]
        if own and lacking:
            which = f" ({len(leaves)} partitions; each has a replica identity of its own)" if leaves else ""
            yield self._told(
                "MZ229",
                f"Large values of {name} would be missing from updates",
                f"{self._where}: {', '.join(own)} may be stored out of line (TOAST), and then an update of "
                f"another column does not have the value in the log{which}.",
                _in_full(lacking),
            )

    # ── publication

    def _publication(self, tables: Sequence[Table], creates: bool) -> Iterator[Diagnostic]:
        name, listed = self._names.publication, ", ".join(table.sql for table in tables)
        found = self._connection.execute(_PUBLICATION, (name,)).fetchone()
        published = self._published(name)
        lacking = [t for t in tables if (t.schema, t.name) not in published]
        yield from self._filtered(name, tables)
        if self._names.own_publication:
            foreign = [t for t in lacking if not self._row(_TABLE, (t.oid,))[4]]
            if foreign or (found is None and not creates):
                why = [f"{t.schema}.{t.name} is owned by another role" for t in foreign]
                why += ["it lacks CREATE on the database"] if found is None and not creates else []
                yield self._told(
                    "MZ234",
                    f"Role {self._query.link.body['user']} can't make the publication",
                    f"{self._where}: {'; '.join(why)}.",
                    f"let the owner do it: CREATE PUBLICATION mzplan FOR TABLE {listed} WITH "
                    "(publish_via_partition_root); and name it in the source: publication: mzplan.",
                )
            return
        if found is None:
            yield self._told(
                "MZ227",
                f"Publication {name} does not exist",
                f"{self._where} has no publication of that name.",
                f"CREATE PUBLICATION {quoted(name)} FOR TABLE {listed} WITH (publish_via_partition_root); or "
                "leave `publication` out: then mzplan makes one.",
            )
            return
        in_parts = [] if found[1] else [t for t in lacking if self._is_published_in_parts(name, t)]
        added = [t for t in lacking if t not in in_parts]
        wrong = [f"it lacks {t.schema}.{t.name}" for t in added]
        wrong += [f"it publishes the partitions of {t.schema}.{t.name} as tables" for t in in_parts]
        options = ["publish_via_partition_root = true"] if in_parts else []
        if not found[0]:
            wrong.append("it does not publish inserts, updates, deletes and truncates")
            options.append("publish = 'insert, update, delete, truncate'")
        if wrong:
            actions = [f"ADD TABLE {', '.join(t.sql for t in added)}"] if added else []
            actions += [f"SET ({', '.join(options)})"] if options else []
            yield self._told(
                "MZ227",
                f"Publication {name} does not publish what {self._query.address} reads",
                f"{self._where}: {'; '.join(wrong)}.",
                " ".join(f"ALTER PUBLICATION {quoted(name)} {action};" for action in actions),
            )

    def _is_published_in_parts(self, name: str, table: Table) -> bool:
        """Whether changes of a partitioned table come as those of its partitions."""
        found: bool = self._row(_PUBLISHED_PARTS, {"oid": table.oid, "name": name})[0]
        return found

    def _filtered(self, name: str, tables: Sequence[Table]) -> Iterator[Diagnostic]:
        """Row filters and column lists, which there are since PostgreSQL 15: a snapshot knows none."""
        if self._connection.info.server_version < 150000:
            return
        found = self._connection.execute(_FILTERED.encode(), (name,)).fetchall()
        limits = {(schema, table): (set(columns or ()), rows) for schema, table, columns, rows in found}
        wrong, mended = [], []
        for table in tables:
            if (table.schema, table.name) not in limits:
                continue
            columns, rows = limits[table.schema, table.name]
            own = [one for c in self._columns if (one := table.column(c.name)) is not None]
            left_out = [one.name for one in own if one.writable and one.name not in columns]
            if rows:
                wrong.append(f"only rows of {table.schema}.{table.name} WHERE {rows}")
            if left_out:
                wrong.append(f"{table.schema}.{table.name} without {', '.join(left_out)}")
            if rows or left_out:
                mended.append(table.sql)
        if wrong:
            publication, listed = quoted(name), ", ".join(mended)
            yield self._told(
                "MZ227",
                f"Publication {name} does not publish all that {self._query.address} reads",
                f"{self._where}: it publishes {'; '.join(wrong)}. The snapshot has the others too, and no "
                "change of them would come.",
                f"BEGIN; ALTER PUBLICATION {publication} DROP TABLE {listed}; "
                f"ALTER PUBLICATION {publication} ADD TABLE {listed}; COMMIT;",
            )

    def _published(self, name: str) -> set[tuple[str, str]]:
        rows = self._connection.execute(
            "SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", (name,)
        )
        return {(schema, table) for schema, table in rows.fetchall()}

    def _row(self, statement: str, values: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
        found = self._connection.execute(statement.encode(), values).fetchone()
        assert found is not None
        return found

    def _told(self, code: str, summary: str, detail: str, hint: str) -> Diagnostic:
        return Diagnostic(code=code, summary=summary, detail=detail, hint=hint, address=self._query.address)


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A partition that holds rows. `sql`, `schema`: as a statement names it; `identity`: as in `_TABLE`."""

    oid: int
    sql: str
    identity: str
    readable: bool
    usable: bool
    schema: str


def _sends(identity: str, indexes: Sequence[Any], key: set[str]) -> bool:
    """Whether the log has a key of a row that was."""
    return identity == "f" or any(
        key <= set(columns)
        for columns, primary, chosen in indexes
        if (identity == "d" and primary) or (identity == "i" and chosen)
    )


def _in_full(tables: Sequence[str]) -> str:
    return " ".join(f"ALTER TABLE {table} REPLICA IDENTITY FULL;" for table in tables)


def _is_generated(connection: Connection, table: Table, column: TargetColumn) -> bool:
    found = connection.execute(
        "SELECT attgenerated <> '' FROM pg_attribute WHERE attrelid = %s AND attname = %s",
        (table.oid, column.name),
    ).fetchone()
    return bool(found and found[0])
