"""`mzplan ddl`, without Spark: an administrator runs its script with psql. Then a role without any other
privileges passes validation."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.servers.pgbinaries import find_programs
from tests.support import execute, rows_of
from tests.unit.cli_runs import PROJECT, mzplan

if TYPE_CHECKING:
    from examples.servers import PostgresServer

ROLE = "Ddl \"r'ole"
FILES = """\
connections:
  pg: &pg
    type: postgres
    host: 127.0.0.1
    port: PORT
    database: "DATABASE"
    user: "ROLE"
    password: "${env:DDL_PW}"
  more: {<<: *pg, database: "OTHER"}
sources:
  orders: {type: local, schema: "id BIGINT, Order STRING, amount DECIMAL(10,2), tags MAP<STRING,INT>"}
  kept: {type: local, schema: "id BIGINT NOT NULL, name STRING", key: [id]}
  people:
    connection: pg
    tables: ["crm.peo'ple"]
    publication: "a\\"b$mzplan$'c"
    schema: "id BIGINT"
    key: [id]
sinks:
  all: {from: orders, connection: pg, table: shop.Orders}
  latest:
    from: orders
    connection: pg
    table: latest
    mode: upsert
    key: [id]
    select: [id, "CAST(amount AS DOUBLE) AS x"]
  kept_there:
    from: kept
    connection: more
    table: 'public."ke""pt.v1"'
    mode: upsert
    key: [id]
    staging_schema: "own one"
"""


@pytest.fixture
def folder(
    tmp_path: Path, postgres: PostgresServer, database: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    one, other = database("ddl"), database("ddl_o'ther")
    quoted = ROLE.replace('"', '""')
    execute(postgres.dsn(one), f"CREATE ROLE \"{quoted}\" LOGIN PASSWORD 'pw'")
    execute(postgres.dsn(one), "CREATE SCHEMA crm")
    execute(postgres.dsn(one), 'CREATE TABLE crm."peo\'ple" (id bigint PRIMARY KEY)')
    monkeypatch.setenv("DDL_PW", "pw")
    text = FILES.replace("PORT", str(postgres.port)).replace("DATABASE", one).replace("OTHER", other)
    (tmp_path / "mzplan.yaml").write_text(PROJECT % "cluster")
    (tmp_path / "all.yaml").write_text(text.replace("ROLE", ROLE.replace('"', '\\"')))
    yield tmp_path
    for name in (one, other):
        execute(postgres.dsn(name), f'DROP OWNED BY "{quoted}" CASCADE')
    execute(postgres.dsn(one), f'DROP ROLE "{quoted}"')


def test_the_printed_statements_are_sufficient_for_a_new_role(folder: Path, postgres: PostgresServer) -> None:
    before = mzplan(folder, "--json", "validate", "--live", "--send-secrets")
    assert {d["code"] for d in before.json()["diagnostics"]} == {"MZ052", "MZ054", "MZ227"}

    script = folder / "all.sql"
    script.write_text(mzplan(folder, "ddl").out)
    assert mzplan(folder, "ddl").out == script.read_text()
    psql = [str(find_programs() / "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", str(script)]
    to = {"PGHOST": "127.0.0.1", "PGPORT": str(postgres.port), "PGUSER": postgres.user}
    environment = {**os.environ, **to, "PGPASSWORD": postgres.password, "PGDATABASE": "postgres"}
    for _ in range(2):  # it may be run again
        done = subprocess.run(psql, env=environment, capture_output=True, text=True, timeout=60)
        assert (done.returncode, [x for x in done.stderr.splitlines() if "NOTICE" not in x]) == (0, [])
    valid = mzplan(folder, "validate", "--live", "--send-secrets")
    assert (valid.code, valid.out.splitlines()[-1]) == (0, "Valid: 8 resources."), valid.err

    # As data, each statement can be sent by itself.
    listed = json.loads(mzplan(folder, "--json", "ddl", "sink.latest").out)
    assert [one["address"] for one in listed] == ["sink.latest"]
    name = rows_of(postgres.dsn("postgres"), "SELECT datname FROM pg_database WHERE datname LIKE 'ddl\\_%'")
    for statement in listed[0]["statements"]:
        execute(postgres.dsn(name[0][0]), statement)
