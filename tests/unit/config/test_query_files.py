"""`query_file`: a view's SQL in a file of its own is planned as its `query`, and is wrong at its place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mzplan.config import load_configuration
from mzplan.model.diagnostics import Diagnostic
from tests.unit.cli_runs import apply, mzplan, planned_effects
from tests.unit.config_files import DRY, all_text, brief, errors, resource, write

ENVIRONMENTS = """\
variables: {least: {default: "1000"}, of: {default: big}, it: {}}
environments:
  dev: {default: true, state: {path: dev}, warehouse: ./dev_data, variables: {least: "1", it: a}}
  prod: {state: {path: prod}, warehouse: ./prod_data, variables: {least: "12345678", of: small, it: b}}
"""
ORDERS = 'sources:\n  orders: {type: local, schema: "id BIGINT NOT NULL, amount DECIMAL(10,2)"}\n'
BIG = "SELECT id,\n  amount\nFROM orders\nWHERE amount > 100\n"
VIEW = ORDERS + "views:\n  big: {query_file: sql/big.sql}\n"


def problems(folder: Path, sql: str | bytes, view: str = VIEW) -> list[Diagnostic]:
    return errors(folder, {"a.yaml": view, "sql/big.sql": sql})


def query(folder: Path, name: str = "big", environment: str = "") -> str:
    return str(resource(load_configuration(folder, environment=environment), f"view.{name}").body["query"])


def test_a_query_file_is_planned_as_its_text(tmp_path: Path) -> None:
    inline = "views:\n  big:\n    query: |\n" + "".join(f"      {line}\n" for line in BIG.splitlines())
    apply(write(tmp_path, {"mzplan.yaml": DRY, "a.yaml": ORDERS + inline}))
    write(tmp_path, {"mzplan.yaml": DRY, "a.yaml": VIEW, "shared/big.sql": BIG, "sql/x.sql": ""})
    file = tmp_path / "sql/big.sql"
    file.symlink_to("../shared/big.sql")  # a link within the project is followed
    assert planned_effects(tmp_path) == {}
    for sql in (BIG, BIG.strip(), BIG + "\n\n", BIG.replace("\n", "\r\n"), "\ufeff" + BIG):
        file.write_bytes(sql.encode())
        assert query(tmp_path) == BIG
    file.write_text(BIG.replace("100", "200"))
    assert "      - WHERE amount > 100\n      + WHERE amount > 200\n" in mzplan(tmp_path, "plan").out
    apply(tmp_path)
    body = mzplan(tmp_path, "state", "show", "view.big").json()["body"]
    assert body["query"] == BIG.replace("100", "200") and "query_file" not in body


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT id,\r\n\r\n  amunt\nFROM orders\n", '3:3 MZ019 Unknown column "amunt"'),
        ("SELECT id\nFROM ordrs", "2:6 MZ012 Unknown source or view"),
        ("", "1:1 MZ019 Not a query that a view can compute"),
        (b"SELECT id\nFROM \xff", "2:6 MZ002 Not UTF-8"),
        ("SELECT \x01", "1:8 MZ002 Control character"),
        ("SELECT\n id ${x", "2:5 MZ017 Malformed reference"),
        ("SELECT\n id ${each.key}", "2:5 MZ251 ${each…} has no meaning here"),
        ("SELECT ${var.least} AS a, ${var.least} AS b, c\nFROM orders", '1:46 MZ019 Unknown column "c"'),
        ("SELECT id\nFROM ${var.of}", "2:6 MZ014 Resources refer to each other in a cycle"),
        ("SELECT id, '${env:G}' AS g FROM orders", '1:1 MZ102 A secret reference can\'t stand in "query"'),
    ],
)
def test_a_mistake_is_an_error_at_its_place_in_the_file(
    tmp_path: Path, sql: str | bytes, expected: str
) -> None:
    text = sql if isinstance(sql, bytes) else sql.encode()
    found = errors(tmp_path, {"mzplan.yaml": DRY + ENVIRONMENTS, "a.yaml": VIEW, "sql/big.sql": text})
    assert brief(found) == [f"sql/big.sql:{expected}"]
    assert all(d.excerpt is not None and d.detail and d.hint for d in found)


@pytest.mark.parametrize(
    ("view", "expected", "words"),
    [
        ("{query_file: sql/big.sql, query: x}", "4:7 MZ020 Both `query` and `query_file`", "remove one"),
        ("{paused: true}", '4:3 MZ006 Missing key "query"', "in its own file, use query_file"),
        ("{query_file: 3}", '4:19 MZ005 Wrong type for "query_file"', 'put it in quotes: "3"'),
        ('{query_file: ""}', '4:19 MZ005 Wrong value for "query_file"', '"sql/revenue.sql"'),
        ("{query_file: sql/big.txt}", '4:19 MZ005 Wrong value for "query_file"', "path of a *.sql file"),
        ("{query_file: /big.sql}", '4:19 MZ005 Wrong value for "query_file"', "relative to the project"),
        ("{query_file: sql/no.sql}", "4:19 MZ001 Can't read sql/no.sql", "It doesn't exist"),
        ("{query_file: sql/pipe.sql}", "4:19 MZ001 Can't read sql/pipe.sql", "It is a pipe or a device"),
        ("{query_file: sql/huge.sql}", "4:19 MZ007 Can't read sql/huge.sql", "It has 33 MiB"),
    ],
)
def test_a_file_that_can_not_be_used_is_an_error_where_it_is_named(
    tmp_path: Path, view: str, expected: str, words: str
) -> None:
    write(tmp_path, {"a.yaml": f"{ORDERS}views:\n  v: {view}\n", "sql/big.sql": BIG})
    os.mkfifo(tmp_path / "sql/pipe.sql")
    with (tmp_path / "sql/huge.sql").open("wb") as huge:
        huge.truncate(33 * 1024 * 1024)
    found = errors(tmp_path, {"sinks.yaml": "sinks:\n  out: {type: console, from: v}\n"})
    assert brief(found) == [f"a.yaml:{expected}"]
    assert words.lower() in f"{found[0].detail} {found[0].hint}".lower()


def test_a_query_file_that_is_too_long_is_refused(tmp_path: Path) -> None:
    found = problems(tmp_path, f"SELECT id FROM orders WHERE id IN ({', '.join(['1'] * 5000)})")
    assert {d.code for d in found} == {"MZ005", "MZ019"}
    assert {str(d.range) for d in found} == {"sql/big.sql:1:1"}
    assert "longer than 10,000 characters" in all_text(found)


@pytest.mark.parametrize(
    "name", ["../out.sql", "sql/link.sql", "linked/out.sql", "sql/env.sql", ".git/x.sql", "sql/.h.sql"]
)
def test_a_query_file_that_leads_elsewhere_is_refused_and_shows_nothing(tmp_path: Path, name: str) -> None:
    project = tmp_path / "project"
    (tmp_path / "out.sql").write_text("geheim\n")
    files = {".env": "geheim\n", ".git/x.sql": "geheim\n", "sql/.h.sql": "geheim\n"}
    write(project, {**files, "a.yaml": f"{ORDERS}views:\n  v: {{query_file: {name}}}\n"})
    (project / "sql/link.sql").symlink_to(tmp_path / "out.sql")
    (project / "sql/env.sql").symlink_to(project / ".env")
    (project / "linked").symlink_to(tmp_path)
    found = [d for d in errors(project) if d.range is not None]
    assert brief(found) == [f"a.yaml:4:19 MZ001 Can't read {name}"] and "geheim" not in all_text(found)
