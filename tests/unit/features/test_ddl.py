"""ddl from the files alone: what it says where there is nothing to print, or not enough is known."""

from __future__ import annotations

from pathlib import Path

from tests.unit.cli_runs import Ran, run, write
from tests.unit.host.test_extras import run_without

FILES = """\
connections:
  k: {{type: kafka, brokers: ["a:9092"]}}
  pg: {{type: postgres, host: db, database: shop, user: "{user}", password: "${{env:NOWHERE}}"}}
sources:
  orders: {{connection: k, topic: orders, format: {{type: json, schema: "id BIGINT, name STRING"}}}}
  people: {{connection: pg, tables: [people], schema: "id BIGINT", key: [id]}}
sinks:
  out: {{type: console, from: orders}}
  rows: {{from: orders, connection: pg, table: orders{more}}}
"""


def ddl(folder: Path, *arguments: str, user: str = "app", more: str = "") -> Ran:
    write(folder)
    (folder / "pipeline.yaml").write_text(FILES.format(user=user, more=more))
    return run("-C", str(folder), "ddl", *arguments)


def test_ddl_needs_no_secret_state_or_client_library(tmp_path: Path) -> None:
    printed = ddl(tmp_path).out
    source, sink = printed.split("\n\n")
    assert source.startswith("-- source.people: connection.pg (db:5432, database shop)\n")
    assert sink.startswith("-- sink.rows: connection.pg (db:5432, database shop)\nCREATE TABLE ")
    assert "GRANT SELECT ON public.people TO app;\n" in source
    assert "GRANT INSERT ON public.orders TO app;\n" in sink
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mzplan.yaml", "pipeline.yaml"]
    bare = run_without(("psycopg", "asyncssh", "pyarrow", "pyspark"), "-C", str(tmp_path), "ddl")
    assert (bare.code, bare.out) == (0, printed), bare.err


def test_names_that_are_not_ascii_set_the_encoding(tmp_path: Path) -> None:
    """A psql that reads a file would otherwise assume the database's encoding."""
    printed = ddl(tmp_path, "sink.rows", user="müller").out
    first, second, *_ = printed.splitlines()
    assert first.startswith("-- sink.rows") and second == "SET client_encoding = 'UTF8';"
    assert "client_encoding" not in ddl(tmp_path).out
