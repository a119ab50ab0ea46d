"""`create: true`: a sink creates its table and added columns, each once, and changes nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mzplan.connectors.api.outputs import outputs_without_spark
from mzplan.connectors.api.queries import Output, Probe, ResolvedQuery
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.checks import check_description, prepare_target
from mzplan.connectors.postgres.sink.connector import PostgresSink
from mzplan.model.codec import encode
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.observed import Observation
from mzplan.model.state import State
from mzplan.schema.description import Description, describe, digest_of
from mzplan.secrets.references import Secrets
from mzplan.store.store import digest_of_state
from tests.contract.postgres_sinks import SINK, SinkDatabase
from tests.contract.postgres_sources import connection_of
from tests.unit import small_projects as small
from tests.unit.runner.test_runner import World

CONNECTOR = PostgresSink()
ROLE = "maker_role"
SCHEMA = "id BIGINT NOT NULL, state STRING"
UPSERT: dict[str, Any] = {"mode": "upsert", "key": ["id"]}
COLUMNS = """
SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = 'new."Orders"'::regclass AND attnum > 0 ORDER BY attnum
"""
TABLES = """
SELECT c.oid::regclass::text, a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped AND c.relnamespace = 'new'::regnamespace
ORDER BY 1, a.attnum
"""


@pytest.fixture
def server(sinks: Callable[..., SinkDatabase]) -> SinkDatabase:
    """A database whose role may create tables in schema `new`."""
    made = sinks(SCHEMA, "new.Orders", ROLE)
    made.run(f"CREATE SCHEMA mzplan AUTHORIZATION {ROLE}")
    made.run(f"CREATE SCHEMA new; GRANT ALL ON SCHEMA new TO {ROLE}")
    return made


def creating(server: SinkDatabase, *select: str) -> tuple[ResolvedQuery, tuple[Output, ...]]:
    query = server.query(ROLE, **UPSERT, create=True, select=["id", *select])
    return query, outputs_without_spark(query)


def create_table(server: SinkDatabase, columns: str) -> None:
    server.run(f'CREATE TABLE new."Orders" ({columns}); GRANT ALL ON new."Orders" TO {ROLE}')


def codes(probe: Probe) -> list[tuple[str, str]]:
    return [(one.severity, one.code) for one in probe.diagnostics]


def run_fix(server: SinkDatabase, found: Diagnostic) -> None:
    server.run(found.hint.partition("\n")[2])


def test_create_makes_a_table_and_later_a_column(server: SinkDatabase) -> None:
    server.run("DROP SCHEMA new")
    query, outputs = creating(server, "state")
    before = CONNECTOR.probe(query, outputs)
    assert codes(before) == [("error", "MZ054")], before.diagnostics
    run_fix(server, before.diagnostics[0])
    found = CONNECTOR.probe(query, outputs)
    assert codes(found) == [("notice", "MZ045")] and found.must_create
    assert server.rows("SELECT to_regclass('new.\"Orders\"')") == [(None,)]  # a probe creates nothing

    with ThreadPoolExecutor(4) as pool:  # like runners that know nothing of each other
        list(pool.map(lambda _: PostgresSink().prepare(query, outputs), range(8)))
    assert CONNECTOR.probe(query, outputs) == Probe(upstream=found.upstream)
    CONNECTOR.prepare(query, outputs)
    columns = [("id", "bigint"), ("state", "text")]
    assert server.rows(COLUMNS) == columns

    wider, more = creating(server, "state", 'CAST(id AS DECIMAL(5,1)) AS `the "n`')
    assert codes(CONNECTOR.probe(wider, more)) == [("notice", "MZ045")]
    CONNECTOR.prepare(wider, more)
    columns.append(('the "n', "numeric(5,1)"))
    assert server.rows(COLUMNS) == columns
    assert codes(CONNECTOR.probe(wider, more)) == []
    CONNECTOR.prepare(query, outputs)  # a column that is no longer written stays
    assert server.rows(COLUMNS) == columns


def test_existing_columns_that_differ_are_not_changed(server: SinkDatabase) -> None:
    create_table(server, "id bigint PRIMARY KEY, state boolean")
    # A column of another type is an error, as without `create`, and no missing column is created.
    query, outputs = creating(server, "state", "id AS more")
    found = CONNECTOR.probe(query, outputs)
    assert codes(found) == [("error", "MZ053")] and not found.must_create
    CONNECTOR.prepare(query, outputs)
    assert len(server.rows(COLUMNS)) == 2
    # The role may write into another role's table, but not add a column.
    query, outputs = creating(server, "id AS more")
    (refused,) = CONNECTOR.probe(query, outputs).diagnostics
    assert refused.code == "MZ054" and "ownership of table Orders, to add columns" in refused.detail
    with pytest.raises(MzplanError, match="MZ059") as problem:  # it lost the privilege after the check
        CONNECTOR.prepare(query, outputs)
    assert "must be owner" in str(problem.value.diagnostics[0])
    run_fix(server, refused)
    assert codes(CONNECTOR.probe(query, outputs)) == []


def test_the_runner_creates_columns_of_unknown_type(server: SinkDatabase) -> None:
    query, outputs = creating(server, "id * '2' AS twice")
    found = CONNECTOR.probe(query, outputs)
    assert codes(found) == [("notice", "MZ045")] and "twice ..." in found.diagnostics[0].hint
    CONNECTOR.prepare(query, outputs)
    assert codes(CONNECTOR.probe(query, outputs)) == [("notice", "MZ045")]
    CONNECTOR.prepare(query, (outputs[0], Output(name="twice", type="BIGINT")))
    assert server.rows(COLUMNS) == [("id", "bigint"), ("twice", "bigint")]


# By column: its type, its value, what the sink writes, and the value after the printed ALTER TABLE.
DIFFERENCES = {
    "id": ("int PRIMARY KEY", "1", "BIGINT", "1"),
    "a": ("text", "'7'", "BIGINT", "7"),
    "b": ("numeric(5,2)", "1.25", "BIGINT", "1.25"),
    "c": ("double precision", "0.1", "DECIMAL(10,2)", "0.1"),
    "d": ("real", "0.5", "DOUBLE", "0.5"),
    "e": ("date", "'2024-01-01'", "TIMESTAMP_NTZ", "2024-01-01 00:00:00"),
    "f": ("numeric(6,4)", "12.3456", "DECIMAL(10,2)", "12.3456"),
    "g": ("int", "2147483647", "DECIMAL(10,2)", "2147483647.00"),
    "h": ("boolean", "true", "STRING", "true"),
    "k": ("timestamptz(3)", "NULL", "TIMESTAMP", "None"),
    "n": ("numeric(4,1)", "1.5", "DECIMAL(9,2)", "1.50"),
}


def test_the_printed_alter_fixes_every_difference_and_keeps_the_values(server: SinkDatabase) -> None:
    """An existing table gets an ALTER TABLE, which says if it converts values."""
    columns = [f"{name} {type_}" for name, (type_, *_) in DIFFERENCES.items()]
    create_table(server, ", ".join([*columns, "l int NOT NULL"]))
    values = [value for _, value, _, _ in DIFFERENCES.values()]
    server.run(f"""INSERT INTO new."Orders" VALUES ({", ".join([*values, "1"])})""")
    outputs = [Output(name=name, type=type_) for name, (_, _, type_, _) in DIFFERENCES.items()]
    outputs.append(Output(name="m", type="MAP<STRING,INT>"))
    query = server.query(ROLE, **UPSERT)
    (found,) = CONNECTOR.probe(query, outputs).diagnostics
    assert (found.severity, found.code) == ("error", "MZ053")
    assert "or the table (this converts its values):\nALTER TABLE" in found.hint
    assert "CREATE" not in found.hint
    run_fix(server, found)
    assert codes(CONNECTOR.probe(query, outputs)) == []
    (row,) = server.rows(f'SELECT {", ".join(DIFFERENCES)} FROM new."Orders"')
    assert list(map(str, row)) == [after for *_, after in DIFFERENCES.values()]
    types = dict(server.rows(COLUMNS))
    assert [types[name] for name in ("id", "d", "n")] == ["bigint", "double precision", "numeric(9,2)"]


def test_differences_that_only_the_sink_can_fix(server: SinkDatabase) -> None:
    create_table(server, "id int PRIMARY KEY, n int GENERATED ALWAYS AS (id) STORED")
    outputs = [Output(name="n", type="INT"), Output(name="twice", type=None)]
    (found,) = CONNECTOR.probe(server.query(ROLE, mode="append"), outputs).diagnostics
    assert found.code == "MZ053" and "column id is NOT NULL" in found.detail and "ALTER" not in found.hint
    assert "(only Spark knows the type of twice, so declare it: CAST(… AS …) AS twice)" in found.hint
    missing = server.query(ROLE, mode="append", table="new.none")
    (found,) = (one for one in CONNECTOR.probe(missing, outputs).diagnostics if one.code == "MZ052")
    assert "create it (replace `...` with a type; only Spark knows it):\nCREATE TABLE" in found.hint


def test_create_widens_a_narrow_column(server: SinkDatabase) -> None:
    create_table(server, "id int PRIMARY KEY, n numeric(4,2)")
    server.run(f'ALTER TABLE new."Orders" OWNER TO {ROLE}')
    outputs = [Output(name="id", type="BIGINT"), Output(name="n", type="DECIMAL(9,2)")]
    query = server.query(ROLE, **UPSERT, create=True)
    (notice,) = CONNECTOR.probe(query, outputs).diagnostics
    assert (notice.severity, notice.code) == ("notice", "MZ045")
    assert "ALTER COLUMN id TYPE bigint" in notice.hint
    CONNECTOR.prepare(query, outputs)
    assert CONNECTOR.probe(query, outputs).diagnostics == ()
    assert server.rows(COLUMNS) == [("id", "bigint"), ("n", "numeric(9,2)")]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A runner whose executor probes and creates targets like Spark's, but runs no queries."""
    monkeypatch.setenv("PW", "pw")
    made, secrets = World(tmp_path), Secrets(".")

    def prepare(sink: Description, _: Secrets) -> tuple[Diagnostic, ...]:
        return prepare_target(sink, secrets, Connectors(), outputs_without_spark, ".", ".")

    made.executor.check_result = lambda query: check_description(query, secrets, Connectors())
    made.executor.prepare = prepare  # type: ignore[method-assign]
    yield made
    made.jobs.shutdown()


def settle(world: World) -> None:
    world.until(lambda: not world.runner.tick())


def eventually_has(world: World, **fields: Any) -> Observation:
    """Do rounds until the sink's observation has these fields."""

    def seen() -> Observation | None:
        world.now += 0.1
        status = world.store.read_status("local")
        found = status.observations.get(SINK) if status is not None else None
        return found if all(getattr(found, name, None) == value for name, value in fields.items()) else None

    world.until(seen)
    found = seen()
    assert found is not None
    return found


def state_of(server: SinkDatabase, serial: int, table: str, *select: str) -> State:
    """Return a state with a sink that creates this table. Its source is paused."""
    link = connection_of(server.dsn, user=ROLE, password="${env:PW}")
    upsert = {"type": "upsert", "key": ["id"]}
    more = {"from": "s", "table": table, "create": True, "select": ["id", *select]}
    made = small.commit(
        small.project(
            small.kafka(),
            small.postgres(**link),
            small.source("s", SCHEMA, envelope=upsert, paused=True),
            small.sink("k", **more),
        )
    )
    return replace(made, serial=serial)


def test_a_proposal_changes_no_table(server: SinkDatabase, world: World) -> None:
    """The author of a proposal may not be allowed to commit, so only committed sinks create anything."""
    server.run(f"CREATE TABLE new.payroll (id bigint PRIMARY KEY); ALTER TABLE new.payroll OWNER TO {ROLE}")
    store = world.store

    def proposed(state: State, **claims: Any) -> list[tuple[str, str]]:
        proposal = store.proposals.make("local", (describe(state.resources[SINK], state.resources),))
        forged = {**encode(proposal), "prepares": True, **claims}
        store.backend.write(f"proposals/{proposal.id}.json", json.dumps(forged).encode())
        settle(world)
        answer = store.proposals.read_answer(proposal)
        assert answer is not None
        store.proposals.withdraw(proposal.id)
        return [(one.severity, one.code) for one in answer.diagnostics]

    wanted = state_of(server, 1, "new.made", "state")
    payroll = [("new.payroll", "id")]
    # The sink that is about to be committed, and others, with an existing and a missing table.
    for forged in (wanted, state_of(server, 1, "new.payroll", "state"), state_of(server, 1, "new.other")):
        assert proposed(forged) == [("notice", "MZ045")] and server.rows(TABLES) == payroll
    world.commit(wanted)
    settle(world)
    made = [("new.made", "id"), ("new.made", "state")]
    assert server.rows(TABLES) == [*made, *payroll]
    # A copy of the committed sink, also of its digest and serial, with another table.
    for name in ("new.payroll", "new.other"):
        copy = state_of(server, 1, name, "state")
        resource = replace(copy.resources[SINK], digest=wanted.resources[SINK].digest)
        forged = replace(copy, resources={**copy.resources, SINK: resource})
        claims = {"digest": digest_of_state(wanted), "serial": 1, "lineage": wanted.lineage}
        assert proposed(forged, **claims) == [("notice", "MZ045")]
        assert server.rows(TABLES) == [*made, *payroll]
    # A sink of an earlier commit, whose table was dropped.
    world.commit(state_of(server, 2, "new.later"))
    settle(world)
    server.run("DROP TABLE new.made")
    assert proposed(wanted, digest=store.serial_digest(1)) == [("notice", "MZ045")]
    assert server.rows(TABLES) == [("new.later", "id"), *payroll]


def test_a_column_dropped_by_hand_is_recreated_only_by_a_planned_restart(
    server: SinkDatabase, world: World
) -> None:
    state = state_of(server, 1, "new.made", "state")
    wanted = state.resources[SINK]
    world.commit(state)
    eventually_has(world, condition="running", digest=wanted.digest)
    server.run("ALTER TABLE new.made DROP COLUMN state")
    found = world.runner.controller.inspect(describe(wanted, state.resources))
    assert [(one.severity, one.code) for one in found] == [("notice", "MZ045"), ("error", "MZ053")]
    world.fail(SINK, "the column is gone")
    seen = eventually_has(world, condition="failed", error_code="MZ053")
    assert "ADD COLUMN" in str(seen.error) and "mzplan restart sink." in str(seen.error)
    assert server.rows(TABLES) == [("new.made", "id")]

    again = replace(wanted, restart_token=1)
    again = replace(again, digest=digest_of(again, {**state.resources, SINK: again}))
    world.commit(replace(state, serial=2, resources={**state.resources, SINK: again}))
    eventually_has(world, condition="running", digest=again.digest)
    assert server.rows(TABLES) == [("new.made", "id"), ("new.made", "state")]
