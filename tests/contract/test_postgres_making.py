"""`create: true`: a sink creates its table and added columns, each once, and changes nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mzplan.connectors.api.outputs import outputs_without_spark
from mzplan.connectors.api.queries import Output, Probe, ResolvedQuery
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.checks import check_description, prepare_target
from mzplan.connectors.postgres.sink.connector import PostgresSink
from mzplan.controller.executor import CheckResult
from mzplan.controller.memory import InMemoryExecutor
from mzplan.model.address import Address
from mzplan.model.codec import encode
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.observed import Observation
from mzplan.model.resources import Instance
from mzplan.model.state import ResourceState, State
from mzplan.schema.description import Description, describe, digest_of
from mzplan.secrets.references import Secrets
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store, digest_of_state
from tests.contract.test_postgres_privileges import ROLE, Server
from tests.runners import runner_in_memory
from tests.support import eventually

if TYPE_CHECKING:
    from examples.servers import PostgresServer

SINK = Address("sink", "k")
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


def test_create_makes_a_table_and_later_a_column(server: Server) -> None:
    sink = PostgresSink()
    query, outputs = asked(server, table="new.Orders", select=["id", "state"])
    before = sink.probe(query, outputs)
    assert codes(before) == [("error", "MZ054")], before.diagnostics
    server.run(before.diagnostics[0].hint.partition("\n")[2])  # the schema, as it is printed
    found = sink.probe(query, outputs)
    assert codes(found) == [("notice", "MZ045")] and found.must_create
    assert server.admin.execute("SELECT to_regclass('new.\"Orders\"')").fetchone() == (None,)  # looked only

    with ThreadPoolExecutor(4) as pool:  # as runs that know nothing of each other
        list(pool.map(lambda _: PostgresSink().prepare(query, outputs), range(8)))
    assert sink.probe(query, outputs) == Probe(upstream=found.upstream)
    sink.prepare(query, outputs)
    assert rows(server) == [("id", "bigint"), ("state", "text")]

    wider, more = asked(
        server, table="new.Orders", select=["id", "state", 'CAST(id AS DECIMAL(5,1)) AS `the "n`']
    )
    assert codes(sink.probe(wider, more)) == [("notice", "MZ045")]
    sink.prepare(wider, more)
    assert rows(server) == [("id", "bigint"), ("state", "text"), ('the "n', "numeric(5,1)")]
    assert codes(sink.probe(wider, more)) == []
    sink.prepare(query, outputs)  # what is not written any more stays
    assert len(rows(server)) == 3


def rows(server: Server) -> list[Any]:
    return server.admin.execute(COLUMNS).fetchall()


def test_existing_columns_that_differ_are_not_changed(server: Server) -> None:
    sink = PostgresSink()
    server.run(f"CREATE SCHEMA new; GRANT ALL ON SCHEMA new TO {ROLE}")
    server.run('CREATE TABLE new."Orders" (id bigint PRIMARY KEY, state boolean)')
    server.run(f'GRANT ALL ON new."Orders" TO {ROLE}')
    # Of another type: the error that it is without create, and the column that is missing is not made.
    query, outputs = asked(server, table="new.Orders", select=["id", "state", "id AS more"])
    found = sink.probe(query, outputs)
    assert codes(found) == [("error", "MZ053")] and not found.must_create
    sink.prepare(query, outputs)
    assert len(rows(server)) == 2
    # Another role's: it may write there, and not add a column.
    query, outputs = asked(server, table="new.Orders", select=["id", "id AS more"])
    (refused,) = sink.probe(query, outputs).diagnostics
    assert refused.code == "MZ054" and "ownership of table Orders, to add columns" in refused.detail
    with pytest.raises(MzplanError) as problem:  # whose privileges went after the check
        sink.prepare(query, outputs)
    assert problem.value.diagnostics[0].code == "MZ059" and "must be owner" in str(
        problem.value.diagnostics[0]
    )
    server.run(refused.hint.partition("\n")[2])
    assert codes(sink.probe(query, outputs)) == []


def test_the_runner_creates_columns_of_unknown_type(server: Server) -> None:
    sink = PostgresSink()
    server.run(f"CREATE SCHEMA new; GRANT ALL ON SCHEMA new TO {ROLE}")
    query, outputs = asked(server, table="new.Orders", select=["id", "id * '2' AS twice"])
    found = sink.probe(query, outputs)
    assert codes(found) == [("notice", "MZ045")] and "twice ..." in found.diagnostics[0].hint
    sink.prepare(query, outputs)
    assert codes(sink.probe(query, outputs)) == [("notice", "MZ045")]
    sink.prepare(query, (outputs[0], Output(name="twice", type="BIGINT")))
    assert rows(server) == [("id", "bigint"), ("twice", "bigint")]


def test_the_printed_alter_fixes_every_difference(server: Server) -> None:
    """An existing table gets an ALTER TABLE, which says if it converts values."""
    sink = PostgresSink()
    server.run(f"CREATE SCHEMA new; GRANT ALL ON SCHEMA new TO {ROLE}")
    server.run(
        'CREATE TABLE new."Orders" (id int PRIMARY KEY, a text, b numeric(5,2), c double precision, e date,'
        " f numeric(6,4), g int, h boolean, k timestamptz(3), l int NOT NULL)"
    )
    server.run(f'GRANT ALL ON new."Orders" TO {ROLE}')
    server.run(
        'INSERT INTO new."Orders"'
        " VALUES (1, '7', 1.25, 0.1, '2024-01-01', 12.3456, 2147483647, true, now(), 1)"
    )
    query = server.query(ROLE, mode="upsert", key=["id"], table="new.Orders")
    types = {"id": "INT", "a": "BIGINT", "b": "BIGINT", "c": "DECIMAL(10,2)", "e": "TIMESTAMP_NTZ"}
    types |= {
        "f": "DECIMAL(10,2)",
        "g": "DECIMAL(10,2)",
        "h": "STRING",
        "k": "TIMESTAMP",
        "m": "MAP<STRING,INT>",
    }
    outputs = [Output(name=name, type=type_) for name, type_ in types.items()]
    (found,) = sink.probe(query, outputs).diagnostics
    assert (found.severity, found.code) == ("error", "MZ053")
    assert "or the table (this converts its values):\nALTER TABLE" in found.hint
    assert "CREATE" not in found.hint
    server.run(found.hint.partition("\n")[2])
    assert codes(sink.probe(query, outputs)) == []
    kept = server.admin.execute('SELECT a, b, c, f, g, h FROM new."Orders"').fetchone()
    assert list(map(str, kept or ())) == ["7", "1.25", "0.1", "12.3456", "2147483647.00", "true"]


def test_differences_that_only_the_sink_can_fix(server: Server) -> None:
    sink = PostgresSink()
    server.run(f"CREATE SCHEMA new; GRANT ALL ON SCHEMA new TO {ROLE}")
    server.run('CREATE TABLE new."Orders" (id int, n int GENERATED ALWAYS AS (id) STORED, PRIMARY KEY (id))')
    server.run(f'GRANT ALL ON new."Orders" TO {ROLE}')
    query = server.query(ROLE, mode="append", table="new.Orders")
    outputs = [Output(name="n", type="INT"), Output(name="twice", type=None)]
    (found,) = sink.probe(query, outputs).diagnostics
    assert found.code == "MZ053" and "column id is NOT NULL" in found.detail and "ALTER" not in found.hint
    assert "(only Spark knows the type of twice, so declare it: CAST(… AS …) AS twice)" in found.hint
    missing = server.query(ROLE, mode="append", table="new.none")
    (found,) = (one for one in sink.probe(missing, outputs).diagnostics if one.code == "MZ052")
    assert "create it (replace `...` with a type; only Spark knows it):\nCREATE TABLE" in found.hint


def test_the_printed_alter_works(server: Server) -> None:
    sink = PostgresSink()
    server.run(f"CREATE SCHEMA new; GRANT ALL ON SCHEMA new TO {ROLE}")
    server.run('CREATE TABLE new."Orders" (id int PRIMARY KEY, d real, n numeric(4,1))')
    server.run(f'GRANT ALL ON new."Orders" TO {ROLE}')
    query = server.query(ROLE, mode="upsert", key=["id"], table="new.Orders")
    outputs = [Output(name="id", type="BIGINT"), Output(name="n", type="DECIMAL(9,2)")]
    outputs += [Output(name="d", type="DOUBLE"), Output(name="s", type="STRING")]
    (found,) = sink.probe(query, outputs).diagnostics
    assert (found.code, found.severity) == ("MZ053", "error")
    server.run(found.hint.partition("\n")[2])
    assert codes(sink.probe(query, outputs)) == []
    assert [type_ for _, type_ in rows(server)] == ["bigint", "double precision", "numeric(9,2)", "text"]


def test_a_narrow_column_is_refused_and_create_widens_it(server: Server) -> None:
    sink = PostgresSink()
    server.run(f"CREATE SCHEMA new; GRANT ALL ON SCHEMA new TO {ROLE}")
    server.run(f'SET ROLE {ROLE}; CREATE TABLE new."Orders" (id int PRIMARY KEY, n numeric(4,2)); RESET ROLE')
    outputs = [Output(name="id", type="BIGINT"), Output(name="n", type="DECIMAL(9,2)")]
    body = {"mode": "upsert", "key": ["id"], "table": "new.Orders"}
    (found,) = sink.probe(server.query(ROLE, **body), outputs).diagnostics
    assert (found.severity, found.code) == ("error", "MZ053")
    assert "its column id is integer, and the sink writes BIGINT" in found.detail
    query = server.query(ROLE, **body, create=True)
    (notice,) = sink.probe(query, outputs).diagnostics
    assert (notice.severity, notice.code) == (
        "notice",
        "MZ045",
    ) and "ALTER COLUMN id TYPE bigint" in notice.hint
    sink.prepare(query, outputs)
    assert sink.probe(query, outputs).diagnostics == ()
    assert [type_ for _, type_ in rows(server)] == ["bigint", "numeric(9,2)"]


class Checking(InMemoryExecutor):
    """Probes and creates targets like Spark's executor, but runs no queries."""

    def check(self, description: Description, secrets: Secrets) -> CheckResult:
        return check_description(description, secrets, Connectors())

    def prepare(self, description: Description, secrets: Secrets) -> tuple[Diagnostic, ...]:
        return prepare_target(description, secrets, Connectors(), outputs_without_spark, ".", ".")


TABLES = """
SELECT c.oid::regclass::text, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped AND c.relnamespace = 'new'::regnamespace
ORDER BY 1, a.attnum
"""


def test_a_proposal_changes_no_table(server: Server, tmp_path: Path) -> None:
    """The author of a proposal may not be allowed to commit, so only committed sinks create anything."""
    server.run(f"CREATE SCHEMA new; GRANT ALL ON SCHEMA new TO {ROLE}")
    server.run(f"CREATE TABLE new.payroll (id bigint PRIMARY KEY); ALTER TABLE new.payroll OWNER TO {ROLE}")
    store = Store(LocalBackend(tmp_path / "state"), "shop")
    lease = store.leases.acquire("local", "test")
    assert lease is not None
    with ThreadPoolExecutor(4) as pool:
        secrets, executor = Secrets(".", {"PW": "pw"}), Checking("shop")
        runner = runner_in_memory(store, executor, lease, pool, secrets=secrets)

        def settle() -> None:
            for _ in range(400):
                if not runner.tick():
                    break
                time.sleep(0.01)

        def committed(serial: int, table: str, *select: str) -> State:
            query = server.query(
                ROLE, mode="upsert", key=["id"], create=True, table=table, select=["id", *select]
            )
            return state_of(query.description, serial)

        def proposed(state: State, **claims: Any) -> list[tuple[str, str]]:
            proposal = store.proposals.make("local", (describe(state.resources[SINK], state.resources),))
            forged = {**encode(proposal), "prepares": True, **claims}
            store.backend.write(f"proposals/{proposal.id}.json", json.dumps(forged).encode())
            settle()
            answer = store.proposals.read_answer(proposal)
            assert answer is not None
            store.proposals.withdraw(proposal.id)
            return [(one.severity, one.code) for one in answer.diagnostics]

        def tables() -> list[Any]:
            return server.admin.execute(TABLES).fetchall()

        wanted = committed(1, "new.made", "state")
        payroll = [("new.payroll", "id")]
        # What is about to be committed, and another table: the one that is there, and one that is not.
        for forged in (wanted, committed(1, "new.payroll", "state"), committed(1, "new.other")):
            assert proposed(forged) == [("notice", "MZ045")] and tables() == payroll
        store.commit(wanted, State(project="shop"))
        settle()
        made = [("new.made", "id"), ("new.made", "state")]
        assert tables() == [*made, *payroll]
        # A copy of the true one, its digest and its serial included, of which only the table is another.
        for name in ("new.payroll", "new.other"):
            copy = committed(1, name, "state")
            resource = replace(copy.resources[SINK], digest=wanted.resources[SINK].digest)
            forged = replace(copy, resources={**copy.resources, SINK: resource})
            claims = {"digest": digest_of_state(wanted), "serial": 1, "lineage": wanted.lineage}
            assert proposed(forged, **claims) == [("notice", "MZ045")]
            assert tables() == [*made, *payroll]
        # An earlier commit's, once again: that table was dropped meanwhile, and another is committed.
        later = committed(2, "new.later")
        store.commit(later, wanted)
        settle()
        server.run("DROP TABLE new.made")
        assert proposed(wanted, digest=store.serial_digest(1)) == [("notice", "MZ045")]
        assert tables() == [("new.later", "id"), *payroll]


def test_a_column_dropped_by_hand_is_recreated_only_if_planned(server: Server, tmp_path: Path) -> None:
    server.run(f"CREATE SCHEMA new; GRANT ALL ON SCHEMA new TO {ROLE}")
    store = Store(LocalBackend(tmp_path / "state"), "shop")
    lease = store.leases.acquire("local", "test")
    assert lease is not None
    query = server.query(
        ROLE, mode="upsert", key=["id"], create=True, table="new.made", select=["id", "state"]
    )
    state = state_of(query.description, 1)
    with ThreadPoolExecutor(4) as pool:
        secrets, executor = Secrets(".", {"PW": "pw"}), Checking("shop")
        runner = runner_in_memory(store, executor, lease, pool, secrets=secrets)

        def seen() -> Observation | None:
            runner.tick()
            status = store.read_status("local")
            return status.observations.get(SINK) if status is not None else None

        def columns() -> list[str]:
            return [column for _, column in server.admin.execute(TABLES).fetchall()]

        def runs() -> bool:
            one = seen()
            return one is not None and one.condition == "running" and one.digest == wanted.digest

        wanted = state.resources[SINK]
        store.commit(state, State(project="shop"))
        eventually("it runs", runs)
        server.run("ALTER TABLE new.made DROP COLUMN state")
        found = runner.controller.inspect(query.description)
        assert [(one.severity, one.code) for one in found] == [("notice", "MZ045"), ("error", "MZ053")]
        (name,) = (one.name for one in executor.reports() if one.name.address == SINK)
        executor.fail_query(name, "the column is gone")
        eventually("it says what is gone", lambda: (one := seen()) is not None and one.error_code == "MZ053")
        one = seen()
        assert one is not None and one.condition == "failed" and columns() == ["id"]
        assert "ADD COLUMN" in str(one.error) and "mzplan restart sink." in str(one.error)

        # A restart is a change that plans it.
        again = replace(wanted, restart_token=1)
        wanted = replace(again, digest=digest_of(again, {**state.resources, SINK: again}))
        store.commit(replace(state, serial=2, resources={**state.resources, SINK: wanted}), state)
        eventually("it runs again", runs)
        assert columns() == ["id", "state"]


def state_of(sink: Description, serial: int) -> State:
    """Return a state with this sink."""
    link = sink.connections["connection"]
    source = sink.rows_of
    elsewhere = Address("connection", source.body["connection"])
    resources = [
        ResourceState(address=link.address, id="pg", type="postgres", body=link.body),
        ResourceState(address=elsewhere, id="c", type="kafka", body={"type": "kafka", "brokers": ["a:1"]}),
        ResourceState(
            address=source.address,
            id=source.id,
            type=source.type,
            body=source.body,
            references={"connection": elsewhere},
            dependencies=(elsewhere,),
            override="paused",
        ),
        ResourceState(
            address=SINK,
            id=sink.id,
            type=sink.type,
            body=sink.body,
            references={"from": source.address, "connection": link.address},
            dependencies=(link.address, source.address),
        ),
    ]
    found = {resource.address: resource for resource in resources}
    for address in (source.address, SINK):
        found[address] = replace(found[address], digest=digest_of(found[address], found))
    instances = {"local": Instance(name="local", type="embedded")}
    return State(
        project="shop", lineage="l", serial=serial, warehouse="w", instances=instances, resources=found
    )
