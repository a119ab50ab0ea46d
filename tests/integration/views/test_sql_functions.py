"""Python functions in SQL on Spark: rows of each kind of view, a change, a failure, tests and previews."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import Project, eventually

FAST = "trigger: {interval: 300ms}"
PIPELINE = f"""\
sources:
  orders: {{type: local, schema: "id BIGINT NOT NULL, city STRING, amount DECIMAL(10,2)", {FAST}}}
views:
  clean:
    query: SELECT id, NORM_CITY(city) AS city FROM orders WHERE norm_city(city) <> 'nowhere'
    {FAST}
  totals:
    query: SELECT norm_city(city) AS city, sum(twice(amount)) AS total FROM orders GROUP BY norm_city(city)
    output: update
    key: [city]
    {FAST}
  shown:
    query: SELECT city, count(*) AS n, norm_city(city) AS shown FROM orders GROUP BY city
    output: update
    key: [city]
    {FAST}
  newest:
    query: SELECT norm_city(city) AS city, max(id) AS id FROM orders GROUP BY norm_city(city)
    output: current
    key: [city]
    {FAST}
  priced:
    query: SELECT id, cents(amount) AS cents FROM orders
    {FAST}
sinks:
  lake:
    from: orders
    connection: here
    path: lake
    select: [id, "norm_city(city) AS city"]
    {FAST}
connections:
  here: {{type: files, path: .}}
"""
SETTINGS = """\
functions:
  norm_city: {function: "transforms/text.py:norm_city", returns: STRING}
  twice: {function: "transforms/text.py:twice", returns: "DECIMAL(10,2)"}
  cents: {function: "transforms/text.py:cents", returns: SMALLINT}
"""
CODE = """\
PREFIX = ""


def norm_city(name):
    if name == "bad":
        raise ValueError("no such city")
    return PREFIX + name.strip().lower() if name else None


def twice(amount):
    return amount * 2


def cents(amount):
    return int(amount * 100)
"""
TESTS = """\
tests:
  totals:
    view: totals
    given: {orders: [[{id: 1, city: " Oslo", amount: 1.50}], [{id: 2, city: OSLO, amount: 2}]]}
    expect: {rows: [{city: oslo, total: 7.00}]}
  newest:
    view: newest
    given: {orders: [[{id: 1, city: " Oslo", amount: 1}], [{id: 2, city: OSLO, amount: 2}]]}
    expect: {rows: [{city: oslo, id: 2}]}
  clean:
    view: clean
    given: {orders: [[{id: 1, city: Oslo, amount: 1}, {id: 2, city: Nowhere, amount: 2}]]}
    expect: {rows: [{id: 1, city: oslo}]}
  fails:
    view: clean
    given: {orders: [[{id: 1, city: bad, amount: 1}]]}
    expect: {rows: []}
  holds:
    view: priced
    given: {orders: [[{id: 1, amount: 1.50}]]}
    expect: {rows: [{id: 1, cents: 150}]}
  cannot hold 40,000:
    view: priced
    given: {orders: [[{id: 1, amount: 400}]]}
    expect: {rows: [{id: 1, cents: -25536}]}
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path / "p", "sql_functions", None)
    with (made.folder / "mzplan.yaml").open("a") as settings:
        settings.write(SETTINGS)
    made.write("shop", PIPELINE)
    write(made, CODE)
    yield made
    made.down()


def write(project: Project, text: str) -> None:
    path = project.folder / "transforms" / "text.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def rows(project: Project, view: str) -> list[list[Any]]:
    done = project.run("snapshot", f"view.{view}", "--format", "json")
    if "is still empty" in done.stderr:
        return []
    assert done.returncode == 0, done.stderr
    found = (json.loads(line) for line in done.stdout.splitlines())
    return sorted([list(row.values()) for row in found], key=str)


def has(project: Project, view: str, expected: list[list[Any]]) -> None:
    eventually(f"{expected} in {view}", lambda: rows(project, view) == expected)


def order(number: int, city: str) -> dict[str, Any]:
    return {"id": number, "city": city, "amount": 1.5}


def test_every_kind_of_view_calls_a_function_that_then_changes_and_fails(project: Project) -> None:
    project.apply()
    project.append("orders", [order(1, " Oslo"), order(2, "OSLO"), order(3, "Nowhere")])
    has(project, "clean", [[1, "oslo"], [2, "oslo"]])
    has(project, "totals", [["nowhere", "3.00"], ["oslo", "6.00"]])
    has(project, "newest", [["nowhere", 3], ["oslo", 2]])
    has(project, "shown", [[" Oslo", 1, "oslo"], ["Nowhere", 1, "nowhere"], ["OSLO", 1, "oslo"]])
    for view in ("clean", "totals", "newest"):
        verified = project.run("verify", f"view.{view}", "--from-upstream")
        assert verified.returncode == 0, verified.stdout + verified.stderr

    # The code of a proposal doesn't run, but Spark checks the SQL that calls it.
    proof = project.folder / "ran"
    write(project, f"open({str(proof)!r}, 'w').close()\n{CODE}")
    looked = project.run("plan", "--live")
    assert looked.returncode == 0 and "MZ365" in looked.stdout + looked.stderr and not proof.exists()

    write(project, CODE.replace('PREFIX = ""', 'PREFIX = "the "'))
    changes = {change["address"]: change for change in project.json("plan")["changes"]}
    effects = {address: change["effect"] for address, change in changes.items()}
    restarting = dict.fromkeys(
        ("view.clean", "view.newest", "view.shown", "view.priced", "sink.lake"), "restart"
    )
    assert effects == {**restarting, "view.totals": "replace"}
    project.apply("--allow-replace")
    has(project, "newest", [["the nowhere", 3], ["the oslo", 2]])
    has(project, "totals", [["the nowhere", "3.00"], ["the oslo", "6.00"]])
    project.append("orders", [order(4, "OSLO")])
    has(project, "clean", [[1, "oslo"], [2, "oslo"], [4, "the oslo"]])
    # The state is kept: only the function above it has changed.
    has(project, "shown", [[" Oslo", 1, "oslo"], ["Nowhere", 1, "nowhere"], ["OSLO", 2, "the oslo"]])

    project.append("orders", [order(5, "bad")])

    def error() -> str:
        return str(project.queries()["view.clean"]["error"])

    eventually("the error", lambda: "transforms/text.py:6" in error())
    expected = "transforms/text.py:norm_city of view.clean fails at transforms/text.py:6. ValueError: no such"
    assert expected in error() and "Traceback" not in error() and "py4j" not in error()


def test_tests_and_previews_call_functions_of_the_checkout(project: Project) -> None:
    (project.folder / "tests").mkdir()
    (project.folder / "tests" / "shop.yaml").write_text(TESTS)
    done = project.run("test", seconds=300)
    assert done.returncode == 1 and "4 of 6 tests passed" in done.stdout, done.stdout + done.stderr
    assert "fails at transforms/text.py:6" in done.stdout + done.stderr
    project.apply()
    project.append("orders", [order(1, " Oslo")])
    has(project, "clean", [[1, "oslo"]])
    write(project, CODE.replace('PREFIX = ""', 'PREFIX = "the "'))
    previewed = project.run("preview", "view.totals", "--json")
    assert previewed.returncode == 0 and "the oslo" in previewed.stdout, previewed.stdout + previewed.stderr
