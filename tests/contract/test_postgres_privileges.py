"""The privileges of a sink's role, without Spark. All missing privileges are found at once, and the printed
script is sufficient to write."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from mzplan.connectors.api.outputs import outputs_without_spark
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.postgres.sink.batches import Batches
from mzplan.connectors.postgres.sink.connector import PostgresSink
from mzplan.connectors.postgres.sink.writer import writer_of
from mzplan.model.diagnostics import MzplanError
from tests.contract.postgres_sinks import SinkDatabase, probed, write

FORMER, ROLE = "former_role", "next_role"
KEYED: dict[str, Any] = {"mode": "upsert", "key": ["id"]}
TABLE = """\
CREATE SCHEMA shop; CREATE SCHEMA kinds;
CREATE TYPE kinds.state AS ENUM ('open', 'paid');
CREATE TABLE shop.orders (id bigint PRIMARY KEY, state kinds.state, n serial);
"""


@pytest.fixture
def server(sinks: Callable[..., SinkDatabase]) -> SinkDatabase:
    made = sinks("id BIGINT NOT NULL, state STRING", "shop.orders", FORMER, ROLE)
    made.run(TABLE)
    return made


def allow(server: SinkDatabase, query: ResolvedQuery) -> str:
    """Run the printed script, which must be sufficient, and return it."""
    (found,) = probed(query)
    assert found.code == "MZ054", found.detail
    _, _, script = found.hint.partition("\n")
    server.run(script)
    assert probed(query) == ()
    return script


def test_another_user_needs_each_line_of_the_printed_script_and_no_more(server: SinkDatabase) -> None:
    """The staging table and the ledger belong to the former user."""
    first = allow(server, server.query(FORMER, **KEYED))
    assert "CREATE ON DATABASE" in first and "stage_" not in first
    write(server.query(FORMER, **KEYED), 0, epoch=1)
    query = server.query(ROLE, **KEYED)
    script = allow(server, query)
    of_shop = ("ON SCHEMA shop", "ON SCHEMA kinds", "orders_n_seq", "INSERT, SELECT, UPDATE, DELETE ON shop")
    own = "CREATE ON SCHEMA mzplan", "UPDATE ON mzplan.writers", "UPDATE, DELETE ON mzplan.steps", "OWNER TO"
    assert [part for part in (*of_shop, *own) if part not in script] == []
    write(server.query(FORMER, **KEYED), 1, epoch=1)  # the former sink writes until the change is applied
    write(query, 2, epoch=2, rows=6000)  # so many that the staging table is truncated
    assert server.rows("SELECT count(*) FROM shop.orders") == [(6002,)]
    # Each line is necessary.
    lines = [line for line in script.splitlines() if f"TO {ROLE}" in line]
    assert len(lines) == 8
    for left_out in lines:
        if "OWNER TO" in left_out:
            continue  # only for other columns
        server.run(f"ALTER TABLE mzplan.{writer_of(query).stage} OWNER TO {FORMER}; DROP OWNED BY {ROLE}")
        for line in lines:
            if line != left_out and not ("OWNER TO" in line and "SCHEMA mzplan" in left_out):
                server.run(line)
        with pytest.raises(psycopg.Error, match="permission denied"):
            write(query, 3, epoch=3)
    for line in lines:
        server.run(line)
    write(query, 3, epoch=3)


def test_missing_privileges_on_objects_created_since_the_probe_are_explained(server: SinkDatabase) -> None:
    """At validation, both roles may create schema mzplan. One creates it, and the other then needs grants."""
    allow(server, server.query(FORMER))
    query = server.query(ROLE)
    allow(server, query)
    write(server.query(FORMER), 0, epoch=1)
    with pytest.raises(psycopg.errors.InsufficientPrivilege) as denied:
        write(query, 1, epoch=2)
    outputs = outputs_without_spark(query)
    run: Any = SimpleNamespace(query=query, epoch=2, outputs=outputs, interrupt=lambda hang_up: None)
    explained = Batches(run).explain(denied.value)
    assert isinstance(explained, MzplanError) and explained.diagnostics == probed(query)
    assert "USAGE, CREATE ON SCHEMA mzplan" in allow(server, query)
    write(query, 1, epoch=2)


def test_append_needs_only_insert_and_a_read_only_role_is_reported(server: SinkDatabase) -> None:
    server.run("DROP TABLE shop.orders; CREATE TABLE shop.orders (id bigint, state text)")
    query = server.query(ROLE, keyed=False, mode="append")
    script = allow(server, query)
    assert "GRANT INSERT ON shop.orders" in script and "SELECT" not in script
    write(query, 0, epoch=1)
    server.run("VACUUM FULL shop.orders")  # another file: is it empty?
    write(query, 1, epoch=1)
    # To empty it is another privilege, and only for the first run of a generation.
    anew = server.query(ROLE, keyed=False, generation=2, mode="append", on_replace="truncate")
    assert "GRANT DELETE ON shop.orders" in allow(server, anew)
    write(anew, 0, epoch=1)
    server.run(f"REVOKE DELETE ON shop.orders FROM {ROLE}")
    assert probed(anew) == ()
    # A role that may only read.
    server.run(f"ALTER ROLE {ROLE} SET default_transaction_read_only = on")
    (found,) = probed(anew)
    assert found.code == "MZ159"
    server.run(found.hint.rpartition(": ")[2])
    assert probed(anew) == ()


def test_tables_are_not_searched_in_the_staging_schema_first(server: SinkDatabase) -> None:
    """A user with the schema's name has the schema in the search path."""
    body: dict[str, Any] = {"keyed": False, "mode": "append", "staging_schema": ROLE}
    server.run("CREATE TABLE public.steps (id bigint, state text)")
    query = server.query(ROLE, table="steps", **body)
    allow(server, query)
    write(query, 0, epoch=1)
    assert server.rows(f"SELECT to_regclass('{ROLE}.steps')") != [(None,)]
    write(query, 1, epoch=1)  # into public.steps
    assert server.rows("SELECT count(*) FROM public.steps") == [(2,)]
    for name in ("writers", writer_of(query).stage):
        (found,) = probed(server.query(ROLE, table=name, **body))
        assert found.code == "MZ052" and f"CREATE TABLE public.{name} (" in found.hint
    # What was created without a schema has gone into it.
    server.run(f"SET ROLE {ROLE}; CREATE TABLE captured (id bigint, state text); RESET ROLE")
    (found,) = probed(server.query(ROLE, table="captured", **body))
    assert (found.code, found.severity) == ("MZ158", "warning")
    server.run(found.hint)
    assert probed(server.query(ROLE, table="captured", **body)) == ()


def own_objects(server: SinkDatabase) -> set[str]:
    found = server.rows(
        "SELECT n.nspname || coalesce('.' || c.relname, '') FROM pg_namespace n LEFT JOIN pg_class c "
        "ON c.relnamespace = n.oid AND c.relkind = 'r' WHERE n.nspname = 'mzplan'"
    )
    return {name for (name,) in found}


def test_removing_the_last_sink_drops_the_schema(server: SinkDatabase) -> None:
    first, second, again = (server.query(FORMER, generation=one, **KEYED) for one in (1, 2, 3))
    allow(server, first)
    write(first, 0, epoch=1)
    write(second, 0, epoch=2)
    PostgresSink().forget(first)
    assert own_objects(server) == {"mzplan.writers", "mzplan.steps", f"mzplan.{writer_of(second).stage}"}
    write(second, 1, epoch=2)
    PostgresSink().forget(second)
    assert own_objects(server) == set()
    PostgresSink().forget(second)  # again, after a crash
    write(again, 0, epoch=3)
    # What somebody else has put there stays, and the schema with it.
    server.run("CREATE TABLE mzplan.notes (text text)")
    PostgresSink().forget(again)
    assert own_objects(server) == {"mzplan.notes"}


def test_a_schema_that_may_not_be_dropped_stays(server: SinkDatabase) -> None:
    server.run(f"CREATE SCHEMA mzplan AUTHORIZATION {FORMER}")  # a role that could not make it anew
    of_former = server.query(FORMER, **KEYED)
    allow(server, of_former)
    write(of_former, 0, epoch=1)
    PostgresSink().forget(of_former)
    assert own_objects(server) == {"mzplan"}
    write(of_former, 0, epoch=1)
    another = server.query(ROLE, generation=2, **KEYED)
    allow(server, another)
    write(another, 0, epoch=2)
    kept = own_objects(server)
    with pytest.raises(MzplanError, match="couldn't be removed") as refused:
        PostgresSink().forget(another)
    assert own_objects(server) == kept
    server.run(refused.value.diagnostics[0].hint)
    assert server.rows("SELECT count(*) FROM mzplan.writers") == [(0,)]
