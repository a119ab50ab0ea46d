"""`create: true`: a sink makes its table, and the columns that a source gains; nothing else, never twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from mzplan.connectors.api.outputs import outputs_without_spark
from mzplan.connectors.api.protocols import Output, Probe, ResolvedQuery
from mzplan.connectors.postgres.sink.connector import PostgresSink
from mzplan.model.diagnostics import MzplanError
from tests.contract.test_postgres_privileges import ROLE, Server

if TYPE_CHECKING:
    from examples.servers import PostgresServer

COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = 'new."Orders"'::regclass AND attnum > 0 ORDER BY attnum
"""


@pytest.fixture
def server(postgres: PostgresServer, database: Callable[..., str]) -> Iterator[Server]:
    made = Server(postgres, database("making"))
    made.run(f"CREATE ROLE {ROLE} LOGIN PASSWORD 'pw'; CREATE SCHEMA mzplan AUTHORIZATION {ROLE}")
    yield made
    made.run(f"DROP OWNED BY {ROLE} CASCADE; DROP ROLE {ROLE}")
    made.admin.close()


def asked(server: Server, **body: Any) -> tuple[ResolvedQuery, tuple[Output, ...]]:
    query = server.query(ROLE, mode="upsert", key=["id"], create=True, **body)
    return query, outputs_without_spark(query)


def codes(probe: Probe) -> list[tuple[str, str]]:
    return [(one.severity, one.code) for one in probe.diagnostics]


def test_a_table_and_then_a_column_are_made(server: Server) -> None:
    sink = PostgresSink()
    query, outputs = asked(server, table="new.Orders", select=["id", "state"])
    before = sink.probe(query, outputs)
    assert codes(before) == [("error", "MZ054")], before.diagnostics
    server.run(before.diagnostics[0].hint.partition("\n")[2])  # the schema, as it is printed
    found = sink.probe(query, outputs)
    assert codes(found) == [("notice", "MZ268")] and found.makes
    assert server.admin.execute("SELECT to_regclass('new.\"Orders\"')").fetchone() == (None,)  # looked only

    with ThreadPoolExecutor(4) as pool:  # as runs that know nothing of each other
        list(pool.map(lambda _: PostgresSink().prepare(query, outputs), range(8)))
    assert sink.probe(query, outputs) == Probe(upstream=found.upstream)
    sink.prepare(query, outputs)
    assert rows(server) == [("id", "bigint"), ("state", "text")]

    wider, more = asked(
        server, table="new.Orders", select=["id", "state", 'CAST(id AS DECIMAL(5,1)) AS `the "n`']
    )
    assert codes(sink.probe(wider, more)) == [("notice", "MZ268")]
    sink.prepare(wider, more)
    assert rows(server) == [("id", "bigint"), ("state", "text"), ('the "n', "numeric(5,1)")]
    assert codes(sink.probe(wider, more)) == []
    sink.prepare(query, outputs)  # what is not written any more stays
    assert len(rows(server)) == 3


def rows(server: Server) -> list[Any]:
    return server.admin.execute(COLUMNS).fetchall()


def test_what_is_there_and_differs_is_left_alone(server: Server) -> None:
    sink = PostgresSink()
    server.run(f"CREATE SCHEMA new; GRANT ALL ON SCHEMA new TO {ROLE}")
    server.run('CREATE TABLE new."Orders" (id bigint PRIMARY KEY, state boolean)')
    server.run(f'GRANT ALL ON new."Orders" TO {ROLE}')
    # Of another type: the error that it is without create, and the column that is missing is not made.
    query, outputs = asked(server, table="new.Orders", select=["id", "state", "id AS more"])
    found = sink.probe(query, outputs)
    assert codes(found) == [("error", "MZ053")] and not found.makes
    sink.prepare(query, outputs)
    assert len(rows(server)) == 2
    # Another role's: it may write there, and not add a column.
    query, outputs = asked(server, table="new.Orders", select=["id", "id AS more"])
    (refused,) = sink.probe(query, outputs).diagnostics
    assert refused.code == "MZ054" and "ownership of table Orders, to add columns" in refused.detail
    with pytest.raises(MzplanError) as problem:  # whose privileges went after the check
        sink.prepare(query, outputs)
    assert problem.value.diagnostics[0].code == "MZ269" and "must be owner" in str(
        problem.value.diagnostics[0]
    )
    server.run(refused.hint.partition("\n")[2])
    assert codes(sink.probe(query, outputs)) == []


def test_a_type_that_only_spark_knows_is_left_to_the_runner(server: Server) -> None:
    sink = PostgresSink()
    server.run(f"CREATE SCHEMA new; GRANT ALL ON SCHEMA new TO {ROLE}")
    query, outputs = asked(server, table="new.Orders", select=["id", "id * 2 AS twice"])
    found = sink.probe(query, outputs)
    assert codes(found) == [("notice", "MZ268")] and "twice ..." in found.diagnostics[0].hint
    sink.prepare(query, outputs)
    assert codes(sink.probe(query, outputs)) == [("notice", "MZ268")]
    sink.prepare(query, (outputs[0], Output(name="twice", type="BIGINT")))
    assert rows(server) == [("id", "bigint"), ("twice", "bigint")]


def test_the_alter_that_is_printed_does(server: Server) -> None:
    sink = PostgresSink()
    server.run(f"CREATE SCHEMA new; GRANT ALL ON SCHEMA new TO {ROLE}")
    server.run('CREATE TABLE new."Orders" (id int PRIMARY KEY, d real, n numeric(4,1))')
    server.run(f'GRANT ALL ON new."Orders" TO {ROLE}')
    query = server.query(ROLE, mode="upsert", key=["id"], table="new.Orders")
    outputs = [Output(name="id", type="BIGINT"), Output(name="n", type="DECIMAL(9,2)")]
    outputs += [Output(name="d", type="DOUBLE"), Output(name="s", type="STRING")]
    error, warning = sink.probe(query, outputs).diagnostics
    assert (error.code, warning.code, warning.severity) == ("MZ053", "MZ053", "warning")
    for one in (error, warning):
        server.run(one.hint.partition("\n")[2])
    assert codes(sink.probe(query, outputs)) == []
    assert [type_ for _, type_ in rows(server)] == ["bigint", "double precision", "numeric(9,2)", "text"]
