"""The probe of a PostgreSQL source on a real server: each problem comes with a statement that fixes it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from mzplan.connectors.postgres.source.connector import PostgresSource
from mzplan.connectors.postgres.source.replication import ReplicationLink
from mzplan.connectors.postgres.statements import table_sql
from mzplan.connectors.postgres.types import split_name
from mzplan.model.diagnostics import Diagnostic, MzplanError
from tests.contract.postgres_sources import Collection, endpoint, offered, source

if TYPE_CHECKING:
    from examples.servers import PostgresServer

Database = Callable[..., str]

GOOD = ["CREATE TABLE t (id bigint PRIMARY KEY, name varchar(40))"]
WRONG = {
    "MZ052": ([], {}, "has no table public.t"),
    "MZ233": (["CREATE VIEW t AS SELECT 1::bigint AS id, 'x'::varchar(9) AS name"], {}, "it is a view"),
    "MZ233 unlogged": (
        ["CREATE UNLOGGED TABLE t (id bigint PRIMARY KEY, name varchar(40))"],
        {},
        "not logged",
    ),
    "MZ230": (
        ["CREATE TABLE t (id bigint PRIMARY KEY, name numeric(5,1))"],
        {"schema": "id BIGINT, name INT, gone STRING"},
        r"name is numeric\(5,1\), not INT; declare it as DECIMAL\(5,1\); it has no column gone",
    ),
    "MZ230 generated": (
        ["CREATE TABLE t (id bigint PRIMARY KEY, name bigint GENERATED ALWAYS AS (id * 2) STORED)"],
        {"schema": "id BIGINT, name BIGINT"},
        "name is generated",
    ),
    "MZ230 delimiters and sizes": (
        [
            "CREATE TABLE t (id bigint PRIMARY KEY, name box[], n numeric(5,-2), m numeric(50,10))",
            "ALTER TABLE t REPLICA IDENTITY FULL",
        ],
        {"schema": "id BIGINT, name ARRAY<STRING>, n INT, m INT"},
        r"not ARRAY<STRING>; declare it as STRING.* not INT; .* DECIMAL\(7,0\).* not INT; .* STRING",
    ),
    "MZ233 children": (
        [*GOOD, "CREATE TABLE child (PRIMARY KEY (id)) INHERITS (t)"],
        {},
        "child. SELECT FROM public.t also returns their rows",
    ),
    "MZ228": (["CREATE TABLE t (id bigint, name varchar(40))"], {}, "no unique index"),
    "MZ228 identity": (
        ["CREATE TABLE t (id bigint UNIQUE, name varchar(40) PRIMARY KEY)"],
        {},
        "replica identity",
    ),
    "MZ228 large": (
        ["CREATE TABLE t (id bigint PRIMARY KEY, name text)"],
        {},
        "name may be stored out of line",
    ),
    "MZ227": (GOOD, {"publication": "nothing"}, "has no publication of that name"),
    "MZ227 lacks": (
        [*GOOD, "CREATE PUBLICATION half WITH (publish = 'insert')"],
        {"publication": "half"},
        "it is missing public.t; it does not publish",
    ),
    "MZ227 rows": (
        [*GOOD, "CREATE PUBLICATION few FOR TABLE t WHERE (id > 10)"],
        {"publication": "few"},
        r"only rows of public.t WHERE \(id > 10\)",
    ),
    "MZ227 columns": (
        [*GOOD, "CREATE PUBLICATION few FOR TABLE t (id)"],
        {"publication": "few"},
        "public.t without name",
    ),
    "MZ228 large partition": (
        [
            "CREATE TABLE t (id bigint PRIMARY KEY, name text) PARTITION BY RANGE (id)",
            "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (9)",
            "ALTER TABLE t REPLICA IDENTITY FULL",
        ],
        {},
        "1 partitions; each has a replica identity of its own",
    ),
    "MZ228 partition": (
        [
            "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(40)) PARTITION BY RANGE (id)",
            "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (9)",
            "ALTER TABLE low REPLICA IDENTITY NOTHING",
        ],
        {},
        r"doesn't have the columns \(id\) \(public.low\)",
    ),
}
FIXED = ("MZ227 rows", "MZ227 columns", "MZ228 large partition", "MZ228 large")


def found(dsn: str, folder: Path, **body: object) -> Sequence[Diagnostic]:
    return PostgresSource().probe(source(dsn, folder, **body)).diagnostics


def run(dsn: str, *statements: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def test_problems_of_tables_and_publications(
    database: Database, postgres: PostgresServer, tmp_path: Path
) -> None:
    for number, (name, (statements, body, said)) in enumerate(WRONG.items()):
        dsn = postgres.dsn(database(f"wrong{number}"))
        run(dsn, *statements)
        (one,) = found(dsn, tmp_path, **body)
        assert one.code == name[:5], (name, one)
        with pytest.raises(AssertionError, match=said):
            raise AssertionError(one.detail)
        assert one.hint and postgres.password not in str(one)
        if name in FIXED:  # by the statement that it prints
            run(dsn, one.hint)
            assert found(dsn, tmp_path, **body) == ()


@pytest.mark.parametrize("table", ["t", 'public.order "x"'])
def test_the_printed_publication_works(
    database: Database, postgres: PostgresServer, tmp_path: Path, table: str
) -> None:
    """The statement also names a table that is missing, and works once the table exists."""
    dsn = postgres.dsn(database())
    role = f"maker_{tmp_path.name[-12:]}".lower()
    run(
        dsn,
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'maker'",
        "CREATE TABLE u (id bigint PRIMARY KEY)",
    )
    other = dsn.replace(f"{postgres.user}:{postgres.password}", f"{role}:maker")
    tables = {"tables": [table, "u"], "schema": "id BIGINT"}
    quoted = table_sql(*split_name(table))
    try:
        for lacking, body in (("MZ054", {}), ("MZ227", {"publication": "mzplan"})):
            problems = {one.code: one for one in found(other, tmp_path, **tables, **body)}
            hint = problems[lacking].hint
            assert "MZ052" in problems and hint.startswith(f"create {table}; then "), hint
            run(dsn, f"CREATE TABLE {quoted} (id bigint PRIMARY KEY)", hint.partition("\n")[2])
            run(dsn, f"GRANT SELECT ON {quoted}, u TO {role}")
            assert found(other, tmp_path, **tables, publication="mzplan") == ()
            run(dsn, "DROP PUBLICATION mzplan", f"DROP TABLE {quoted}")
    finally:
        run(dsn, f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}")


def test_missing_privileges_of_a_role(database: Database, postgres: PostgresServer, tmp_path: Path) -> None:
    dsn = postgres.dsn(database())
    role = f"reader_{tmp_path.name[-12:]}".lower()
    run(dsn, *GOOD, f"CREATE ROLE {role} LOGIN PASSWORD 'reader'")
    try:
        other = dsn.replace(f"{postgres.user}:{postgres.password}", f"{role}:reader")
        assert [one.code for one in found(other, tmp_path)] == ["MZ054", "MZ054", "MZ054"]
        run(
            dsn,
            f"ALTER ROLE {role} REPLICATION",
            f"GRANT SELECT ON t TO {role}",
            "CREATE PUBLICATION theirs FOR TABLE t",
        )
        assert found(other, tmp_path, publication="theirs") == ()
        run(
            dsn,
            "CREATE TABLE p (id bigint PRIMARY KEY, name varchar(40)) PARTITION BY RANGE (id)",
            "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (9)",
            "CREATE PUBLICATION rooted FOR TABLE p WITH (publish_via_partition_root)",
            f"GRANT SELECT ON p TO {role}",
        )
        parts = {"tables": ["public.p"], "publication": "rooted"}
        (one,) = found(other, tmp_path, **parts)
        assert one.code == "MZ054" and "on the partitions public.p1" in one.detail
        run(dsn, one.hint)
        assert found(other, tmp_path, **parts) == ()
        query = source(other, tmp_path, publication="theirs")
        input_, collection = endpoint(query), Collection("id")
        run(dsn, "INSERT INTO t VALUES (1, 'a')")
        collection.follow(input_)
        # While it runs, its own slot is no obstacle; for another it is.
        assert PostgresSource().probe(query).diagnostics == ()
        input_.close()
        run(dsn, "ALTER TABLE t ENABLE ROW LEVEL SECURITY", "CREATE POLICY later ON t USING (id > 1)")
        (hidden,) = found(other, tmp_path, publication="theirs")
        assert hidden.code == "MZ054" and "t has row-level security" in hidden.detail
        again = endpoint(source(other, tmp_path, generation=2, publication="theirs"))
        with pytest.raises(MzplanError, match="MZ054") as told:
            collection.follow(again)
        again.close()
        assert f"ALTER ROLE {role} BYPASSRLS" in str(told.value.diagnostics[0].hint)
        run(dsn, f"SELECT pg_drop_replication_slot('mzplan_{query.description.id}_g2')")
        run(dsn, f"SELECT pg_drop_replication_slot('mzplan_{query.description.id}_g1')")
    finally:
        run(dsn, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_server_with_a_low_wal_level_or_without_slots(own_postgres: PostgresServer, tmp_path: Path) -> None:
    own_postgres.create_database("small")
    dsn = own_postgres.dsn("small")
    run(dsn, *GOOD)
    probe = PostgresSource().probe(source(dsn, tmp_path))
    assert probe.diagnostics == () and probe.upstream is not None
    assert set(probe.upstream) == {"type", "system_identifier", "database", "database_oid"}
    own_postgres.stop()
    own_postgres.settings.update({"wal_level": "replica", "max_replication_slots": "0"})
    own_postgres.start()
    codes = [one.code for one in found(dsn, tmp_path)]
    assert codes == ["MZ220", "MZ220"]
    own_postgres.stop()
    own_postgres.settings.update(
        {"wal_level": "logical", "max_replication_slots": "4", "max_wal_senders": "1"}
    )
    own_postgres.start()
    query = source(dsn, tmp_path)
    standby = ReplicationLink(dsn)
    (full,) = PostgresSource().probe(query).diagnostics
    assert full.code == "MZ220" and "all 1 (max_wal_senders) are in use" in full.detail
    input_ = endpoint(query)
    with pytest.raises(MzplanError, match="MZ220") as told:
        input_.offers(0)
    assert "max_wal_senders" in told.value.diagnostics[0].detail
    standby.close()
    input_.offers(0)
    input_.commit(0)
    assert not input_.offers(1)
    run(dsn, "INSERT INTO t VALUES (1, 'a')", "CREATE TABLE other (x int)")
    assert offered(input_, 1)
    assert PostgresSource().probe(query).diagnostics == ()
    input_.close()


def test_another_database_is_refused(database: Database, postgres: PostgresServer, tmp_path: Path) -> None:
    dsns = [postgres.dsn(database(name)) for name in ("one", "two")]
    for dsn in dsns:
        run(dsn, *GOOD)
    connector = PostgresSource()
    queries = [source(dsn, tmp_path) for dsn in dsns]
    one, two = (connector.probe(query).upstream for query in queries)
    assert one is not None and two is not None
    assert connector.compare(queries[0], one, one) is None
    refused = connector.compare(queries[1], one, two)
    assert refused is not None and refused.code == "MZ043" and "instead of" in refused.detail
    moved = connector.compare(queries[1], one, {**one, "system_identifier": "1"})
    assert moved is not None and "system identifier is 1" in moved.detail


def test_the_printed_fix_for_a_publication_of_partitions(
    database: Database, postgres: PostgresServer, tmp_path: Path
) -> None:
    parted = [
        "CREATE TABLE t (id bigint PRIMARY KEY, name varchar(40)) PARTITION BY RANGE (id)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (100)",
    ]
    for number, what in enumerate(("FOR TABLE t", "FOR ALL TABLES", "FOR TABLE t WITH (publish = 'insert')")):
        dsn = postgres.dsn(database(f"parts{number}"))
        run(dsn, *parted, f"CREATE PUBLICATION theirs {what}")
        (one,) = found(dsn, tmp_path, publication="theirs")
        assert one.code == "MZ227" and "the partitions of public.t as tables" in one.detail
        run(dsn, *filter(None, str(one.hint).split(";")))
        assert found(dsn, tmp_path, publication="theirs") == ()
