"""Whether a publication has all that a PostgreSQL source reads, or can be made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mzplan.connectors.postgres.probe import Check
from mzplan.connectors.postgres.source.slots import PUBLISHED, Names, own_columns
from mzplan.connectors.postgres.tables import Table
from mzplan.connectors.postgres.types import quoted
from mzplan.model.diagnostics import Diagnostic

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
_OWNED = "pg_has_role(current_user, relowner, 'MEMBER') FROM pg_class WHERE oid = %s"


class PublicationCheck(Check):
    """What stands in the way of following the tables of a source."""

    def problems(self, tables: Sequence[Table], creates: bool) -> Iterator[Diagnostic]:
        """All of them; `creates`: whether the role may make one. Raises psycopg.Error."""
        names = Names.of(self._query)
        name, listed = names.publication, ", ".join(table.sql for table in tables)
        found = self._connection.execute(_PUBLICATION, (name,)).fetchone()
        published = self._published(name)
        lacking = [t for t in tables if (t.schema, t.name) not in published]
        yield from self._filtered(name, tables)
        if names.own_publication:
            foreign = [t for t in lacking if not self._may(_OWNED, t.oid)]
            if foreign or (found is None and not creates):
                why = [f"{t.schema}.{t.name} is owned by another role" for t in foreign]
                why += ["it lacks CREATE on the database"] if found is None and not creates else []
                yield self._problem(
                    "MZ234",
                    f"Role {self._query.link.body['user']} can't make the publication",
                    f"{'; '.join(why)}.",
                    f"let the owner do it: CREATE PUBLICATION mzplan FOR TABLE {listed} WITH "
                    "(publish_via_partition_root); and name it in the source: publication: mzplan.",
                )
            return
        if found is None:
            yield self._problem(
                "MZ227",
                f"Publication {name} does not exist",
                "it has no publication of that name.",
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
            yield self._problem(
                "MZ227",
                f"Publication {name} does not publish what {self._query.address} reads",
                f"{'; '.join(wrong)}.",
                " ".join(f"ALTER PUBLICATION {quoted(name)} {action};" for action in actions),
            )

    def _is_published_in_parts(self, name: str, table: Table) -> bool:
        """Whether changes of a partitioned table come as those of its partitions."""
        return bool(self._row(_PUBLISHED_PARTS, {"oid": table.oid, "name": name})[0])

    def _filtered(self, name: str, tables: Sequence[Table]) -> Iterator[Diagnostic]:
        """Row filters and column lists, which there are since PostgreSQL 15: a snapshot knows none."""
        if self._connection.info.server_version < 150000:
            return
        found = self._rows(_FILTERED, (name,))
        limits = {(schema, table): (set(columns or ()), rows) for schema, table, columns, rows in found}
        wrong, mended = [], []
        for table in tables:
            if (table.schema, table.name) not in limits:
                continue
            columns, rows = limits[table.schema, table.name]
            own = [one for c in own_columns(self._query) if (one := table.column(c.name)) is not None]
            left_out = [one.name for one in own if one.writable and one.name not in columns]
            if rows:
                wrong.append(f"only rows of {table.schema}.{table.name} WHERE {rows}")
            if left_out:
                wrong.append(f"{table.schema}.{table.name} without {', '.join(left_out)}")
            if rows or left_out:
                mended.append(table.sql)
        if wrong:
            publication, listed = quoted(name), ", ".join(mended)
            yield self._problem(
                "MZ227",
                f"Publication {name} does not publish all that {self._query.address} reads",
                f"it publishes {'; '.join(wrong)}. The snapshot has the others too, and no "
                "change of them would come.",
                f"BEGIN; ALTER PUBLICATION {publication} DROP TABLE {listed}; "
                f"ALTER PUBLICATION {publication} ADD TABLE {listed}; COMMIT;",
            )

    def _published(self, name: str) -> set[tuple[str, str]]:
        rows = self._rows(PUBLISHED, (name,))
        return {(schema, table) for schema, table in rows}
