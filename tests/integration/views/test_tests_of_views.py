"""`mzplan test` on Spark: the rows of views, sinks and formats, and the report of what differs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.machines import DOCS, run_page

PROJECT = """\
version: 1
project: shop
connections:
  shop_kafka: {type: kafka, brokers: ["localhost:1"]}
  shop_pg: {type: postgres, host: nowhere, database: shop, user: app, password: "${env:NOT_SET_HERE}"}
sources:
  orders: {type: local, schema: "id BIGINT, customer STRING, amount DECIMAL(10,2), ts TIMESTAMP"}
  customers: {type: local, schema: "name STRING, city STRING", key: [name]}
  articles: {type: local, schema: "Sku STRING, price INT", key: [sku]}
  events:
    connection: shop_kafka
    topic: events
    format: {type: json, schema: "id BIGINT NOT NULL, amount DECIMAL(10,2)"}
  people:
    connection: shop_kafka
    topic: people
    format: {type: json, schema: "name STRING, city STRING"}
    envelope: {type: upsert, key: [name]}
    expect: {known: {check: city <> 'x', on_violation: drop}}
views:
  spending:
    query: SELECT customer, count(*) AS orders, sum(amount) AS spent FROM orders GROUP BY customer
    output: update
    key: [customer]
  revenue:
    query: >
      SELECT customer, window(ts, '1 minute').start AS minute, sum(amount) AS revenue
      FROM orders GROUP BY customer, window(ts, '1 minute')
    watermarks: {orders: {column: ts, delay: 10 minutes}}
  cities: {query: "SELECT name, upper(city) AS city FROM customers"}
  located:
    query: SELECT o.id, c.city FROM orders o LEFT JOIN customers c ON o.customer = c.name
    snapshots: [customers]
  halves: {query: "SELECT id, 10 / id AS half FROM orders"}
  checked:
    query: SELECT customer, amount FROM orders
    expect: {positive: {check: amount > 0, on_violation: drop}, named: {not_null: customer}}
  small:
    query: SELECT customer, sum(amount) AS spent FROM orders GROUP BY customer
    output: update
    key: [customer]
    expect: {small: {check: spent < 10, on_violation: drop}, apart: {unique: spent}}
  newest:
    query: SELECT name, city FROM customers
    output: current
    key: [name]
    expect: {short: {check: length(city) < 5}}
  prices: {query: "SELECT sku, price FROM articles"}
  noisy: {function: "noisy.py:noisy", reads: [orders], schema: "id BIGINT"}
  cancelled: {function: "noisy.py:cancelled", reads: [orders], schema: "id BIGINT"}
sinks:
  large: {from: orders, type: console, select: [id, "amount * 2 AS twice"], where: amount > 5}
  cities_pg: {from: cities, connection: shop_pg, table: public.cities, mode: upsert, key: [name]}
"""
TESTS = """\
tests:
  sums go on over the steps:
    view: spending
    given:
      orders:
        - [{id: 1, customer: ada, amount: 5.00}]
        - [{id: 2, customer: ada, amount: 7.10}, {id: 3, customer: bob, amount: 1}]
    expect:
      after: {1: [{customer: ada, orders: 1, spent: 5.00}]}
      rows: [{customer: bob, orders: 1, spent: 1.00}, {customer: ada, orders: 2, spent: 12.10}]
  a late order is dropped:
    view: revenue
    given:
      orders:
        - [{customer: ada, amount: 5.00, ts: "2026-01-01 00:00:10"}]
        - [{customer: ada, amount: 7.00, ts: "2026-01-01 00:30:50"}]
        - [{customer: ada, amount: 7.00, ts: "2026-01-01 00:00:51"}]
    expect:
      after:
        1: {rows: [], late_rows: 0}
        2: {rows: [{revenue: 5.00}], watermark: "2026-01-01 00:20:50"}
        3: {late_rows: 1}
      rows: [{customer: ada, minute: "2026-01-01 00:00:00", revenue: 5.00}]
      late_rows: 1
  a view of a keyed source follows its changes:
    view: cities
    given:
      customers:
        - {file: fixtures/customers.csv}
        - [{name: ada, _op: delete}, {name: bob, city: rome}]
    expect:
      after: {1: [{name: ada, city: LONDON}, {name: bob, city: PARIS}]}
      rows: [{name: bob, city: ROME}]
  a snapshot is read as of the step:
    view: located
    given:
      customers: [[{name: ada, city: London}], [{name: bob, city: Paris}]]
      orders: [[{id: 1, customer: ada}, {id: 2, customer: bob}], [{id: 3, customer: bob}]]
    expect: {rows: [{id: 1, city: London}, {id: 2, city: null}, {id: 3, city: Paris}]}
  a key is found in any case:
    view: prices
    given: {articles: [[{sku: a, price: 1}, {SKU: b, price: 2}], [{sku: a, price: 3}, {sku: b, _op: delete}]]}
    expect: {rows: [{sku: a, price: 3}]}
  a function prints: {view: noisy, given: {orders: [{id: 1}]}, expect: {rows: [{id: 1}]}}
  a function is cancelled: {view: cancelled, given: {orders: [{id: 1}]}, expect: {error: MZ362}}
  a division by zero fails: {view: halves, given: {orders: [{id: 0}]}, expect: {error: MZ064}}
  a view without rows: {view: spending, expect: {rows: []}}
  a sink selects: {sink: large, given: {orders: [[{id: 1, amount: 5}], [{id: 2, amount: 6}]]},
    expect: {rows: [{id: 2, twice: 12.00}]}}
  a sink removes rows:
    sink: cities_pg
    given: {cities: [[{name: a, city: X}, {name: b}], [{name: a, _op: delete}]]}
    expect: {after: {1: [{name: a}, {name: b}]}, rows: [{name: b, city: null}]}
  records are parsed:
    source: events
    records: ['{"id": 1, "amount": 2.50}', '{"id": "x"}', {value: {id: 3, amount: 1.25}}, '{"amount": 1}']
    expect:
      rows: [{id: 1, amount: 2.50}, {id: 3, amount: 1.25}]
      malformed: [id is not a BIGINT, id is missing]
  a record without a value deletes:
    source: people
    records:
      - {key: ada, value: {name: ada, city: x}}
      - {key: bob, value: {name: bob, city: y}}
      - {key: ada, value: null}
    expect: {rows: [{name: bob, city: y}], violations: {known: 1}}
  an expectation drops rows:
    view: checked
    given:
      orders:
        - [{customer: ada, amount: 1}, {amount: 2}, {customer: bob, amount: 0}]
        - [{customer: eve, amount: -1}]
    expect:
      after: {1: {violations: {positive: 1, named: 1}}}
      rows: [{customer: ada, amount: 1.00}, {customer: null, amount: 2.00}]
      violations: {positive: 2, named: 1}
  a group that violates an expectation goes:
    view: small
    given: {orders: [[{customer: ada, amount: 9}, {customer: bob, amount: 1}], [{customer: ada, amount: 9}]]}
    expect: {rows: [{customer: bob, spent: 1.00}], violations: {small: 1, apart: 0}}
  only rows that a step changes are counted:
    view: newest
    given: {customers: [[{name: ada, city: London}, {name: bob, city: Rome}], [{name: bob, city: Paris}]]}
    expect: {after: {2: {violations: {short: 1}}}, violations: {short: 2}}
"""
FUNCTIONS = """\
import asyncio


def noisy(orders):
    print("printed by a function")
    return orders.select("id")


def cancelled(orders):
    raise asyncio.CancelledError
"""
WRONG = """\
tests:
  wrong rows:
    view: spending
    given: {orders: [{id: 1, customer: ada, amount: 5.00}, {id: 2, customer: eve, amount: 6}]}
    expect: {rows: [{customer: ada, spent: 7.00}, {customer: zoe, spent: 6.00}]}
  wrong error: {view: halves, given: {orders: [{id: 1}]}, expect: {error: MZ064}}
  wrong violations:
    view: checked
    given: {orders: [{customer: ada, amount: 0}]}
    expect: {violations: {positive: 2}}
  an unexpected error: {view: halves, given: {orders: [{id: 0}]}, expect: {rows: []}}
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ElementTree.Element]:
    """Return the document and the JUnit file of a run over right and wrong tests."""
    folder = tmp_path_factory.mktemp("shop")
    (folder / "mzplan.yaml").write_text(PROJECT)
    (folder / "noisy.py").write_text(FUNCTIONS)
    (folder / "tests" / "fixtures").mkdir(parents=True)
    (folder / "tests" / "fixtures" / "customers.csv").write_text("name,city\nada,London\nbob,Paris\n")
    (folder / "tests" / "right.yaml").write_text(TESTS)
    (folder / "tests" / "wrong.yaml").write_text(WRONG)
    report = folder / "report.xml"
    command = [
        sys.executable,
        "-m",
        "mzplan",
        "-C",
        str(folder),
        "test",
        "--json",
        "--junit-xml",
        str(report),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done
    assert not Path(folder, "warehouse").exists() and not Path(folder, "state").exists()
    assert "printed by a function" in done.stderr  # stdout has nothing but the document
    return json.loads(done.stdout), ElementTree.parse(report).getroot()


def test_right_tests_pass(ran: tuple[Any, ElementTree.Element]) -> None:
    document, _ = ran
    failed = {test["name"]: test for test in document["tests"] if not test["passed"]}
    assert set(failed) == {"wrong rows", "wrong error", "wrong violations", "an unexpected error"}, failed
    assert document["summary"] == {"passed": 16, "failed": 4}


def test_a_failure_says_what_differs(ran: tuple[Any, ElementTree.Element]) -> None:
    by_name = {test["name"]: test for test in ran[0]["tests"]}
    (rows,) = by_name["wrong rows"]["failures"]
    assert rows["columns"] == ["customer", "spent"]
    assert rows["missing"] == [{"customer": "zoe", "spent": "6.00"}]
    assert rows["unexpected"] == [{"customer": "eve", "spent": "6.00"}]
    (changed,) = rows["changed"]
    assert changed["columns"] == ["spent"] and changed["found"]["spent"] == "5.00"
    (wrong,) = by_name["wrong error"]["failures"]
    assert (wrong["expected"], wrong["found"]) == ("MZ064", "no error")
    (wrong,) = by_name["wrong violations"]["failures"]
    assert (wrong["expected"], wrong["found"]) == ("2 of positive", "1")
    (problem,) = by_name["an unexpected error"]["diagnostics"]
    assert problem["code"] == "MZ064" and "division by zero" in problem["detail"]


def test_junit_xml_lists_all_tests(ran: tuple[Any, ElementTree.Element]) -> None:
    suite = ran[1].find("testsuite")
    assert suite is not None and (suite.get("tests"), suite.get("failures")) == ("20", "4")


@pytest.mark.parametrize("name", ["test-a-view", "see-what-a-change-gives"])
def test_a_page_does_what_it_shows(name: str, tmp_path: Path) -> None:
    try:
        run_page(DOCS / "how-to" / f"{name}.md", tmp_path, seconds=240)
    finally:
        subprocess.run([sys.executable, "-m", "mzplan", "-C", str(tmp_path), "down"], capture_output=True)
