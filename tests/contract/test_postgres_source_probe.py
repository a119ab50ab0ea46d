"""The probe of a PostgreSQL source on a real server: each problem comes with a statement that fixes it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mzplan.connectors.postgres.source.connector import PostgresSource
from mzplan.connectors.postgres.source.replication import ReplicationLink
from mzplan.connectors.postgres.statements import table_sql
from mzplan.connectors.postgres.types import split_name
from mzplan.model.diagnostics import Diagnostic, MzplanError
from tests.contract.postgres_sources import Tables

if TYPE_CHECKING:
    from examples.servers import PostgresServer

T = "CREATE TABLE t (id bigint PRIMARY KEY, name"
GOOD = f"{T} varchar(40))"
PARTED = f"{GOOD} PARTITION BY RANGE (id); CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (9)"
FULL = "ALTER TABLE t REPLICA IDENTITY FULL"
HALF, FEW = {"publication": "half"}, {"publication": "few"}
# By code and case: the statements, the source's properties, and what the problem says.
WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "MZ052": ("", {}, "has no table public.t"),
    "MZ233": ("CREATE VIEW t AS SELECT 1::bigint AS id, 'x'::varchar(9) AS name", {}, "it is a view"),
    "MZ233 unlogged": (GOOD.replace("TABLE", "UNLOGGED TABLE"), {}, "not logged"),
    "MZ233 children": (
        f"{GOOD}; CREATE TABLE child (PRIMARY KEY (id)) INHERITS (t)",
        {},
        "child. SELECT FROM public.t also returns their rows",
    ),
    "MZ230": (
        f"{T} numeric(5,1))",
        {"schema": "id BIGINT, name INT, gone STRING"},
        r"name is numeric\(5,1\), not INT; declare it as DECIMAL\(5,1\); it has no column gone",
    ),
    "MZ230 generated": (
        f"{T} bigint GENERATED ALWAYS AS (id * 2) STORED)",
        {"schema": "id BIGINT, name BIGINT"},
        "name is generated",
    ),
    "MZ230 delimiters": (f"{T} box[]); {FULL}", {"schema": "id BIGINT, name ARRAY<STRING>"}, "as STRING"),
    "MZ228": ("CREATE TABLE t (id bigint, name varchar(40))", {}, "no unique index"),
    "MZ228 identity": (
        "CREATE TABLE t (id bigint UNIQUE, name varchar(40) PRIMARY KEY)",
        {},
        "replica identity",
    ),
    "MZ228 large": (f"{T} text)", {}, "name may be stored out of line"),
    "MZ228 large partition": (
        f"{PARTED.replace('varchar(40)', 'text')}; {FULL}",
        {},
        "1 partitions; each has a replica identity of its own",
    ),
    "MZ228 partition": (
        f"{PARTED}; ALTER TABLE low REPLICA IDENTITY NOTHING",
        {},
        r"doesn't have the columns \(id\) \(public.low\)",
    ),
    "MZ227": (GOOD, {"publication": "nothing"}, "has no publication of that name"),
    "MZ227 lacks": (
        f"{GOOD}; CREATE PUBLICATION half WITH (publish = 'insert')",
        HALF,
        "it is missing public.t; it does not publish",
    ),
    "MZ227 rows": (
        f"{GOOD}; CREATE PUBLICATION few FOR TABLE t WHERE (id > 10)",
        FEW,
        r"only rows of public.t WHERE \(id > 10\)",
    ),
    "MZ227 columns": (f"{GOOD}; CREATE PUBLICATION few FOR TABLE t (id)", FEW, "public.t without name"),
}
FIXED = ("MZ227 rows", "MZ227 columns", "MZ228 large partition", "MZ228 large")


def found(shop: Tables, **body: Any) -> Sequence[Diagnostic]:
    return PostgresSource().probe(shop.query(**body)).diagnostics


@contextmanager
def as_role(shop: Tables, server: PostgresServer, rights: str) -> Iterator[tuple[str, Tables]]:
    """Yield a new role, and the same database as it sees it."""
    role = f"role_{shop.folder.name[-12:]}".lower()
    shop.run(f"CREATE ROLE {role} LOGIN {rights} PASSWORD 'pw'")
    seen = Tables(shop.dsn.replace(f"{server.user}:{server.password}", f"{role}:pw"), shop.folder)
    try:
        yield role, seen
    finally:
        seen.close()
        shop.run(f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


def test_problems_of_tables_and_publications_are_reported(shop: Tables, postgres: PostgresServer) -> None:
    for name, (statements, body, why) in WRONG.items():
        shop.run("DROP SCHEMA public CASCADE; DROP PUBLICATION IF EXISTS half, few; CREATE SCHEMA public")
        shop.run(statements)
        (one,) = found(shop, **body)
        assert one.code == name[:5] and re.search(why, one.detail), name
        assert one.hint and postgres.password not in str(one)
        if name in FIXED:  # by the statement that it prints
            shop.run(one.hint)
            assert found(shop, **body) == (), name


@pytest.mark.parametrize("table", ["t", 'public."order ""x"".v1"'])
def test_the_printed_publication_works(shop: Tables, postgres: PostgresServer, table: str) -> None:
    """The statement also names a table that is missing, and works once the table exists."""
    shop.run("CREATE TABLE u (id bigint PRIMARY KEY)")
    tables = {"tables": [table, "u"], "schema": "id BIGINT"}
    quoted = table_sql(*split_name(table))
    with as_role(shop, postgres, "REPLICATION") as (role, seen):
        for code, body in (("MZ054", {}), ("MZ227", {"publication": "mzplan"})):
            problems = {one.code: one for one in found(seen, **tables, **body)}
            hint = problems[code].hint
            assert "MZ052" in problems and hint.startswith(f"create {table}; then "), hint
            shop.run(f"CREATE TABLE {quoted} (id bigint PRIMARY KEY)", hint.partition("\n")[2])
            shop.run(f"GRANT SELECT ON {quoted}, u TO {role}")
            assert found(seen, **tables, publication="mzplan") == ()
            shop.run("DROP PUBLICATION mzplan", f"DROP TABLE {quoted}")


def test_missing_privileges_of_a_role_are_reported(shop: Tables, postgres: PostgresServer) -> None:
    shop.run(GOOD)
    with as_role(shop, postgres, "") as (role, seen):
        assert [one.code for one in found(seen)] == ["MZ054", "MZ054", "MZ054"]
        shop.run(
            f"ALTER ROLE {role} REPLICATION",
            f"GRANT SELECT ON t TO {role}",
            "CREATE PUBLICATION theirs FOR TABLE t",
            "CREATE TABLE p (id bigint PRIMARY KEY, name varchar(40)) PARTITION BY RANGE (id)",
            "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9)",
            "CREATE PUBLICATION rooted FOR TABLE p WITH (publish_via_partition_root)",
            f"GRANT SELECT ON p TO {role}",
        )
        assert found(seen, publication="theirs") == ()
        parts = {"tables": ["public.p"], "publication": "rooted"}
        (one,) = found(seen, **parts)
        assert one.code == "MZ054" and "on the partitions public.p1" in one.detail
        shop.run(one.hint)
        assert found(seen, **parts) == ()


def test_row_level_security_is_reported_by_the_probe_and_by_the_source(
    shop: Tables, postgres: PostgresServer
) -> None:
    shop.run(GOOD, "CREATE PUBLICATION theirs FOR TABLE t", "INSERT INTO t VALUES (1, 'a')")
    with as_role(shop, postgres, "REPLICATION") as (role, seen):
        shop.run(f"GRANT SELECT ON t TO {role}")
        orders = seen.read(publication="theirs")
        orders.follow()
        assert found(seen, publication="theirs") == ()  # its own slot is no obstacle while it runs
        orders.input.close()
        shop.run("ALTER TABLE t ENABLE ROW LEVEL SECURITY", "CREATE POLICY later ON t USING (id > 1)")
        (hidden,) = found(seen, publication="theirs")
        assert hidden.code == "MZ054" and "t has row-level security" in hidden.detail
        again = seen.read("cd34", publication="theirs")
        with pytest.raises(MzplanError, match="MZ054") as stopped:
            again.follow()
        again.input.close()
        assert f"ALTER ROLE {role} BYPASSRLS" in str(stopped.value.diagnostics[0].hint)
        for id_ in ("ab12", "cd34"):
            shop.run(f"SELECT pg_drop_replication_slot('mzplan_{id_}_g1')")


def restart(server: PostgresServer, **settings: str) -> None:
    server.stop()
    server.settings.update(settings)
    server.start()


def test_a_server_with_a_low_wal_level_or_without_slots(own_postgres: PostgresServer, tmp_path: Path) -> None:
    own_postgres.create_database("small")
    shop = Tables(own_postgres.dsn("small"), tmp_path)
    shop.run(GOOD)
    orders = shop.read()
    probe = PostgresSource().probe(orders.query)
    assert probe.diagnostics == () and probe.upstream is not None
    assert set(probe.upstream) == {"type", "system_identifier", "database", "database_oid"}
    assert PostgresSource().compare(orders.query, probe.upstream, probe.upstream) is None
    for changed in ({"system_identifier": "1"}, {"database_oid": "1"}):
        refused = PostgresSource().compare(orders.query, probe.upstream, {**probe.upstream, **changed})
        assert refused is not None and refused.code == "MZ043" and "is 1 instead of" in refused.detail
    restart(own_postgres, wal_level="replica", max_replication_slots="0")
    assert [one.code for one in found(shop)] == ["MZ220", "MZ220"]
    restart(own_postgres, wal_level="logical", max_replication_slots="4", max_wal_senders="1")
    standby = ReplicationLink(shop.dsn)
    (full,) = found(shop)
    assert full.code == "MZ220" and "all 1 (max_wal_senders) are in use" in full.detail
    with pytest.raises(MzplanError, match="MZ220") as stopped:
        orders.input.offers(0)
    assert "max_wal_senders" in stopped.value.diagnostics[0].detail
    standby.close()
    orders.input.offers(0)
    orders.input.commit(0)
    assert not orders.input.offers(1)
    shop.run("INSERT INTO t VALUES (1, 'a')", "CREATE TABLE other (x int)")
    assert orders.offers()
    assert found(shop) == ()
    shop.close()


def test_the_printed_fix_for_a_publication_of_partitions(shop: Tables) -> None:
    shop.run(PARTED)
    for what in ("FOR TABLE t", "FOR ALL TABLES", "FOR TABLE t WITH (publish = 'insert')"):
        shop.run(f"CREATE PUBLICATION theirs {what}")
        (one,) = found(shop, publication="theirs")
        assert one.code == "MZ227" and "the partitions of public.t as tables" in one.detail
        shop.run(*filter(None, str(one.hint).split(";")))
        assert found(shop, publication="theirs") == ()
        shop.run("DROP PUBLICATION theirs")
