"""`functions` in mzplan.yaml: SQL calls them, plans show what changes, and nothing is imported or run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from mzplan.config import load_configuration
from tests.unit.cli_runs import apply, mzplan
from tests.unit.config_files import DRY, brief, errors, resource, write

SETTINGS = (
    DRY
    + """\
functions:
  norm_city: {function: "transforms/text.py:norm_city", returns: string}
  vat: {function: "no_such_package.money:vat", returns: "DECIMAL(12,4)", requires: "no_such_package>=1.4"}
"""
)
CODE = """\
raise SystemExit("a plan must not run this")


def norm_city(name):
    return name
"""
SOURCES = """\
sources:
  orders: {type: local, schema: "id BIGINT, city STRING, amount DECIMAL(10,2), ts TIMESTAMP"}
  cities: {type: local, schema: "city STRING NOT NULL, country STRING", key: [city]}
  visits: {type: local, schema: "city STRING, ts TIMESTAMP"}
"""
ROWS = "SELECT id, NORM_CITY(city) AS city, vat(amount) AS vat FROM orders"
TOTALS = "SELECT norm_city(city) AS city, sum(amount) AS total FROM orders GROUP BY norm_city(city)"
UPDATES = "output: update, key: [city]"
CURRENT = "output: current, key: [city]"


def project(folder: Path, *views: str, code: str = CODE, settings: str = SETTINGS, sinks: str = "") -> Path:
    text = f"{SOURCES}views:\n" + "".join(f"  {view}\n" for view in views)
    text += f"sinks:\n  {sinks}\n" if sinks else ""
    return write(folder, {"mzplan.yaml": settings, "a.yaml": text, "transforms/text.py": code})


def view(query: str, more: str = "", name: str = "v") -> str:
    return f'{name}: {{query: "{query}"{f", {more}" if more else ""}}}'


def body(folder: Path, address: str = "view.v") -> Any:
    return resource(load_configuration(folder), address).body


@pytest.mark.parametrize(
    ("query", "more", "schema", "called"),
    [
        (ROWS, "", "id BIGINT, city STRING, vat DECIMAL(12,4)", ["norm_city", "vat"]),
        (TOTALS, UPDATES, "city STRING, total DECIMAL(20,2)", ["norm_city"]),
        (TOTALS, CURRENT, "city STRING, total DECIMAL(20,2)", ["norm_city"]),
        (
            "SELECT norm_city(o.city) AS city, max(vat(amount)) AS most FROM orders o "
            "JOIN cities c ON norm_city(o.city) = c.city GROUP BY 1",
            CURRENT,
            "city STRING, most DECIMAL(12,4)",
            ["norm_city", "vat"],
        ),
        (
            "SELECT id, country FROM orders o JOIN cities c ON norm_city(o.city) = c.city",
            "snapshots: [cities]",
            "id BIGINT, country STRING",
            ["norm_city"],
        ),
        ("SELECT id, 'norm_city(' AS city FROM orders -- vat(id)", "", "id BIGINT, city STRING", []),
    ],
)
def test_a_view_has_the_functions_that_its_sql_calls(
    tmp_path: Path, query: str, more: str, schema: str, called: list[str]
) -> None:
    before = set(sys.modules)
    found = body(project(tmp_path, view(query, more)))
    assert found["schema"] == schema
    assert list(found.get("functions", {})) == called
    if "norm_city" in called:
        assert found["functions"]["norm_city"] == {
            "function": "transforms/text.py:norm_city",
            "returns": "STRING",
            "code": CODE,
        }
    assert not {name for name in set(sys.modules) - before if "pyspark" in name or "no_such" in name}


def test_a_sink_and_the_readers_of_an_inlined_view_have_them_too(tmp_path: Path) -> None:
    inlined = view("SELECT id, norm_city(city) AS city FROM orders", "materialize: false", "plain")
    reader = view("SELECT city FROM plain WHERE city = 'oslo'")
    distinct = view("SELECT DISTINCT city FROM plain", CURRENT, "d")
    sink = 's: {type: console, from: plain, where: "vat(id) > 1"}'
    folder = project(tmp_path, inlined, reader, distinct, sinks=sink)
    assert list(body(folder)["functions"]) == list(body(folder, "view.d")["functions"]) == ["norm_city"]
    assert list(body(folder, "sink.s")["functions"]) == ["norm_city", "vat"]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("norm_city:", "upper:", 'mzplan.yaml:5:3 MZ404 Spark has a function "upper"'),
        ("norm_city:", "any_value:", "MZ404 Spark has a function"),
        ("norm_city:", "json_object:", 'MZ404 SQL can\'t call a function "json_object"'),
        ("norm_city:", "select:", 'MZ404 SQL can\'t call a function "select"'),
        ("norm_city:", "numeric:", 'MZ404 SQL can\'t call a function "numeric"'),
        ("norm_city:", "group:", 'MZ404 SQL can\'t call a function "group"'),
        ("norm_city:", "Norm_City:", "mzplan.yaml:5:3 MZ011"),
        ("norm_city:", "vat:", 'MZ003 The key "vat" is declared twice'),
        ("string", "TEXT", "mzplan.yaml:5:66 MZ404 The function norm_city returns no type of Spark"),
        ("string", "STRING NOT NULL", "MZ404 The function norm_city returns no type"),
        (", returns: string", "", 'mzplan.yaml:5:3 MZ006 Missing key "returns"'),
        ("returns: string", "returns: string, arguments: [INT]", "MZ004 Unknown key"),
        ("returns: string", "returns: string, code: x", "MZ004"),
        ("text.py:norm_city", "text.py:norm", "mzplan.yaml:5:25 MZ360 transforms/text.py has no function"),
        ("text.py:norm_city", "none.py:f", "mzplan.yaml:5:25 MZ001 Can't read transforms/none.py"),
        ("no_such_package>=1.4", "no; rm", 'MZ005 Wrong value for "requires"'),
    ],
)
def test_a_wrong_declaration_is_an_error_at_its_place(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert old in SETTINGS
    folder = project(tmp_path, view("SELECT id FROM orders"), settings=SETTINGS.replace(old, new, 1))
    found = brief(errors(folder, {"mzplan.yaml": SETTINGS.replace(old, new, 1)}))
    assert len(found) == 1 and expected in found[0], found


@pytest.mark.parametrize(
    ("query", "more", "expected"),
    [
        ("SELECT norm_citi(city) AS c FROM orders", "", 'did you mean "norm_city"'),
        ("SELECT norm_citi(city) AS c FROM orders GROUP BY 1", UPDATES, 'did you mean "norm_city"'),
        ("SELECT id FROM orders", "functions: {}", "It follows from the SQL"),
        (
            "SELECT o.id FROM orders o JOIN visits v ON norm_city(o.city) = v.city",
            "",
            "select its value under a name in a subquery",
        ),
    ],
)
def test_a_wrong_call_is_an_error_with_a_fix(tmp_path: Path, query: str, more: str, expected: str) -> None:
    folder = project(tmp_path, view(query, more))
    found = errors(folder, {"mzplan.yaml": SETTINGS})
    assert len(found) == 1 and expected in f"{found[0].detail} {found[0].hint}", found


ABOVE = "SELECT norm_city(city) AS city, total FROM (SELECT city, sum(amount) AS total FROM %s GROUP BY city)"


@pytest.mark.parametrize(
    ("query", "more", "effect", "state"),
    [
        ("SELECT id, norm_city(city) AS city FROM orders", "", "restart", None),
        (TOTALS, UPDATES, "replace", "mixed"),
        (TOTALS, f"{UPDATES}, on_query_change: resume", "restart", "mixed"),
        (TOTALS, CURRENT, "restart", "kept"),
        (
            "SELECT city, max(norm_city(city)) AS most FROM orders GROUP BY city",
            UPDATES,
            "replace",
            "mixed",
        ),
        (
            "SELECT city, count(*) AS n FROM orders WHERE norm_city(city) = 'oslo' GROUP BY city",
            UPDATES,
            "replace",
            "mixed",
        ),
        (
            "SELECT city, count(*) AS n, norm_city(city) AS shown FROM orders GROUP BY city",
            UPDATES,
            "restart",
            "kept",
        ),
        (
            "SELECT o.id, v.ts FROM (SELECT id, norm_city(city) AS city FROM orders) o JOIN visits v "
            "ON o.city = v.city",
            "",
            "replace",
            "mixed",
        ),
    ],
)
def test_a_changed_function_changes_a_view_as_a_changed_expression_does(
    tmp_path: Path, query: str, more: str, effect: str, state: str | None
) -> None:
    apply(project(tmp_path, view(query, more)))
    project(tmp_path, view(query, more), code=CODE.replace("return name", "return name.lower()"))
    plan = mzplan(tmp_path, "plan", "--json").json()
    (change,) = plan["changes"]
    assert (change["effect"], (change.get("query") or {}).get("state")) == (effect, state), change
    if state == "mixed":
        assert "another version of a function" in change["query"]["because"], change
    # Neither comments nor the declaration of another function change anything.
    project(tmp_path, view(query, more), settings=SETTINGS.replace(">=1.4", ">=1.5"))
    assert mzplan(tmp_path, "plan", "--json").json()["changes"] == []


def test_another_type_of_a_key_loses_the_state(tmp_path: Path) -> None:
    query = "SELECT norm_city(city) AS city, count(*) AS n FROM orders GROUP BY norm_city(city)"
    apply(project(tmp_path, view(query, UPDATES)))
    project(tmp_path, view(query, UPDATES), settings=SETTINGS.replace("string", "BIGINT"))
    (change,) = mzplan(tmp_path, "plan", "--json").json()["changes"]
    assert change["query"]["state"] == "lost" and "Spark stores BIGINT instead of STRING" in str(change)


def test_a_plan_reuses_the_analysis_of_an_unchanged_view(tmp_path: Path) -> None:
    apply(project(tmp_path, view(TOTALS, UPDATES)))
    assert mzplan(tmp_path, "plan", "--json").json()["changes"] == []
    alter = mzplan(tmp_path, "state", "show", "view.v").json()["body"]
    assert alter["functions"]["norm_city"]["returns"] == "STRING"
