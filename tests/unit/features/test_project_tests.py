"""The files of `mzplan test` and the comparison of rows. No test here starts Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from mzplan.features.test.cases import Case
from mzplan.features.test.comparison import compare_rows
from mzplan.features.test.report import failure_lines, junit_xml, result_line
from mzplan.features.test.runs import Mismatch, Result
from mzplan.model.address import Address
from mzplan.model.diagnostics import SourceRange
from mzplan.render.text import Paint
from mzplan.schema.description import Description
from tests.unit.cli_runs import failed, mzplan

PROJECT = """\
version: 1
project: shop
instances: {local: {type: dry}}
"""
PIPELINE = """\
connections:
  shop_kafka: {type: kafka, brokers: ["a:9092"]}
sources:
  orders: {type: local, schema: "id BIGINT, customer STRING, amount DECIMAL(10,2)"}
  customers: {type: local, schema: "name STRING, city STRING", key: [name]}
  events: {connection: shop_kafka, topic: events, format: {type: json, schema: "id BIGINT"}}
views:
  spending:
    query: SELECT customer, sum(amount) AS spent FROM orders GROUP BY customer
    output: update
    key: [customer]
  cities: {query: "SELECT name, city FROM customers"}
  paid: {query: "SELECT * FROM orders WHERE amount > 0", materialize: false}
  totals: {query: "SELECT customer, amount FROM paid"}
sinks:
  big: {from: orders, type: console, select: [id], where: amount > 5}
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "mzplan.yaml").write_text(PROJECT)
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    (tmp_path / "tests" / "fixtures").mkdir(parents=True)
    return tmp_path


def write_tests(folder: Path, text: str, name: str = "shop.yaml") -> None:
    (folder / "tests" / name).write_text(f"tests:\n  {text}\n")


def given_file(name: str) -> str:
    """Return a test whose input has the rows of a file."""
    return f"a: {{view: cities, given: {{customers: {{file: '{name}'}}}}, expect: {{rows: []}}}}"


def places(folder: Path) -> list[str]:
    """Return the place and summary of each mistake in the tests."""
    ran = mzplan(folder, "test", "--json")
    assert ran.code == 1, ran
    found = ran.json()["diagnostics"]
    return [f"{d['range']['path']}:{d['range']['line']}:{d['range']['column']} {d['summary']}" for d in found]


@pytest.mark.parametrize(
    ("test", "mistake"),
    [
        ("a: {view: spendin, expect: {rows: []}}", '2:13 Unknown view "spendin"'),
        ("a: {view: paid, expect: {rows: []}}", "2:13 view.paid has no query"),
        ("a: {expect: {rows: []}}", '2:3 The test "a" must name one query'),
        ("a: {view: spending, sink: big, expect: {rows: []}}", '2:3 The test "a" must name one query'),
        ("a: {view: spending}", '2:3 Missing key "expect"'),
        ("a: {view: spending, expect: {row: []}}", '2:32 Unknown key "row"'),
        (
            "a: {view: spending, given: {order: []}, expect: {rows: []}}",
            '2:31 view.spending doesn\'t read "order"',
        ),
        (
            "a: {view: spending, given: {orders: [{id: 1.5}]}, expect: {rows: []}}",
            "2:45 id is 1.5, not BIGINT",
        ),
        (
            "a: {view: spending, given: {orders: [{ids: 1}]}, expect: {rows: []}}",
            '2:41 orders has no column "ids"',
        ),
        (
            "a: {view: spending, given: {orders: [{id: 1, ID: 2}]}, expect: {rows: []}}",
            '2:48 A row has the column "ID" twice',
        ),
        ("a: {view: spending, given: {orders: [5]}, expect: {rows: []}}", "2:40 Step 1 isn't a list of rows"),
        (
            "a: {view: spending, given: {orders: [{id: 1}, 5]}, expect: {rows: []}}",
            "2:49 A row isn't a list of rows",
        ),
        (
            "a: {view: spending, given: {orders: [{id: 1, _op: delete}]}, expect: {rows: []}}",
            "2:53 A row of orders can't be deleted",
        ),
        (
            "a: {view: cities, given: {customers: [{name: a, _op: remove}]}, expect: {rows: []}}",
            "2:56 A row of customers can't be deleted",
        ),
        ("a: {view: spending, expect: {rows: [{spent: lots}]}}", "2:47 spent is 'lots', not DECIMAL(20,2)"),
        ("a: {view: spending, expect: {after: {1: []}}}", '2:40 The test has no step "1"'),
        ("a: {view: spending, expect: {watermark: soon}}", "2:43 watermark is 'soon', not a time"),
        ("a: {sink: big, expect: {late_rows: 1}}", "2:27 `expect.late_rows` doesn't belong to the test"),
        (
            "a: {view: spending, expect: {violations: {x: 1}}}",
            '2:45 view.spending has no expectation "x"',
        ),
        ("a: {sink: big, expect: {violations: {x: 1}}}", "2:27 `expect.violations` doesn't belong to"),
        ("a: {source: events, given: {x: []}, expect: {rows: []}}", "2:23 `given` doesn't belong to the"),
        ("a: {source: events, records: [{key: 1}], expect: {rows: []}}", "2:33 A record can't be read"),
        ("a: {view: spending, expect: {error: E1}}", '2:39 Wrong value for "error"'),
        (
            "a: {view: spending, expect: {error: MZ019, rows: []}}",
            "2:39 An expected error beside other expectations",
        ),
    ],
)
def test_a_mistake_has_its_place(shop: Path, test: str, mistake: str) -> None:
    write_tests(shop, test)
    (found,) = places(shop)
    assert found.startswith(f"tests/shop.yaml:{mistake}"), found


def test_all_mistakes_are_reported_at_once(shop: Path) -> None:
    write_tests(shop, "a: {view: no, expect: {rows: []}}")
    write_tests(shop, "b: {view: never, expect: {rows: []}}\n  c: 5", "more.yaml")
    assert [place.partition(" ")[0] for place in places(shop)] == [
        "tests/more.yaml:2:13",
        "tests/more.yaml:3:6",
        "tests/shop.yaml:2:13",
    ]


def test_a_name_is_used_once(shop: Path) -> None:
    write_tests(shop, "a: {view: spending, expect: {rows: []}}")
    write_tests(shop, "a: {view: spending, expect: {rows: []}}", "more.yaml")
    assert places(shop) == ['tests/shop.yaml:2:3 The test "a" is written twice']


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("c.csv", "name,zip\nada,1\n", '2:1 customers has no column "zip"'),
        ("c.csv", "name,NAME\nada,bob\n", '2:1 A row has the column "NAME" twice'),
        ("c.csv", "name,city\nada\n", "2:1 tests/fixtures/c.csv has a broken row"),
        ("c.jsonl", '{"name": "ada"}\n{"name": 5}\n', "2:1 name is 5, not STRING"),
        ("c.jsonl", "ada\n", "1:1 tests/fixtures/c.jsonl has a broken row"),
        ("c.yaml", "- name: ada\n- name: 5\n", "2:9 name is 5, not STRING"),
        ("c.yaml", "name: ada\n", "1:1 The file isn't a list of rows"),
    ],
)
def test_rows_in_a_file_are_checked(shop: Path, name: str, content: str, place: str) -> None:
    (shop / "tests" / "fixtures" / name).write_text(content)
    write_tests(
        shop, f"a: {{view: cities, given: {{customers: {{file: fixtures/{name}}}}}, expect: {{rows: []}}}}"
    )
    assert places(shop) == [f"tests/fixtures/{name}:{place}"]


def test_a_file_of_rows_stays_in_the_project(shop: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside") / "rows.csv"
    outside.write_text("name,city\nsecret,secret\n")
    (shop / "tests" / "fixtures" / "link.csv").symlink_to(outside)
    (shop / ".secret.csv").write_text("name\nsecret\n")
    for name in (
        "fixtures/link.csv",
        f"../../{outside.parent.name}/rows.csv",
        str(outside),
        "../.secret.csv",
    ):
        write_tests(
            shop, f"a: {{view: cities, given: {{customers: {{file: '{name}'}}}}, expect: {{rows: []}}}}"
        )
        ran = mzplan(shop, "test", "--json")
        assert ran.code == 1 and "MZ001" in ran.out and "secret,secret" not in ran.out + ran.err


def test_a_folder_of_tests_outside_the_project_is_refused(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (tmp_path / "mzplan.yaml").write_text(PROJECT)
    (tmp_path / "tests").symlink_to(tmp_path_factory.mktemp("outside"))
    assert failed(tmp_path, "test", code=1)["code"] == "MZ001"


def test_tests_are_no_configuration(shop: Path) -> None:
    write_tests(shop, "a: {view: spending, expect: {rows: []}}")
    (shop / "tests" / "fixtures" / "c.yaml").write_text("- {name: ada}\n")
    assert mzplan(shop, "validate").code == 0


def test_a_declaration_in_the_folder_of_tests_is_an_error(shop: Path) -> None:
    """Otherwise the next plan would delete the resource."""
    (shop / "tests" / "pipeline.yaml").write_text("sinks:\n  few: {from: orders, type: console}\n")
    assert failed(shop, "plan", code=1)["code"] == "MZ350"


def test_an_unknown_name_is_a_usage_error(shop: Path) -> None:
    write_tests(shop, "counts once: {view: spending, expect: {rows: []}}")
    found = failed(shop, "test", "count once", code=64)
    assert found["code"] == "MZ352" and "counts once" in found["hint"]


def test_something_else_in_place_of_the_folder_is_an_error(shop: Path) -> None:
    (shop / "tests" / "fixtures").rmdir()
    (shop / "tests").rmdir()
    (shop / "tests").touch()
    assert failed(shop, "test", code=1)["summary"] == "Can't list the folder tests"
    (shop / "tests").unlink()
    (shop / "tests").symlink_to("tests")
    assert failed(shop, "test", code=1)["summary"] == "Can't list the folder tests"


def test_no_tests_are_a_success(shop: Path) -> None:
    assert mzplan(shop, "test").out == "The folder tests/ has no tests.\n"


def test_a_file_that_cannot_be_written_is_reported_before_any_test_runs(shop: Path) -> None:
    write_tests(shop, "counts once: {view: spending, expect: {rows: []}}")
    ran = mzplan(shop, "test", "--junit-xml", str(shop / "missing" / "tests.xml"))
    assert (ran.code, "MZ035" in ran.err, "Spark" in ran.err) == (1, True, False)


def test_the_verdict_on_a_change_is_tested_without_spark(shop: Path) -> None:
    assert mzplan(shop, "apply", "--auto-approve").code == 0
    write_tests(shop, "keeps its state: {view: spending, expect: {state: kept}}")
    assert mzplan(shop, "test").code == 0
    pipeline = shop / "pipeline.yaml"
    pipeline.write_text(PIPELINE.replace("FROM orders GROUP", "FROM orders WHERE id > 1 GROUP"))
    ran = mzplan(shop, "test", "--junit-xml", str(shop / "tests.xml"))
    assert ran.code == 1 and "state: expected kept, found mixed: " in ran.out
    assert 'failures="1"' in (shop / "tests.xml").read_text()
    write_tests(shop, "keeps its state: {view: spending, expect: {state: mixed}}")
    assert mzplan(shop, "test", "--json").json()["summary"] == {"passed": 1, "failed": 0}


# ── the comparison of rows


LATE = Mismatch(subject="late_rows", expected="1", found="0")


def row(**values: Any) -> dict[str, Any]:
    return values


def test_the_order_of_rows_does_not_count() -> None:
    rows = [row(id=1, name="a"), row(id=2, name="b")]
    assert compare_rows(rows, rows[::-1], ["id", "name"], []).is_empty


def test_equal_rows_count_as_often_as_they_occur() -> None:
    one = row(id=1)
    difference = compare_rows([one, one], [one], ["id"], [])
    assert difference.missing == (one,) and not difference.unexpected


def test_rows_with_one_key_are_compared_by_cell() -> None:
    expected, found = row(id=1, name="a", city="x"), row(id=1, name="a", city="y")
    other = row(id=2, name="b", city="z")
    difference = compare_rows([expected, other], [found], ["id", "name", "city"], ["id"])
    (changed,) = difference.changed
    assert (changed.expected, changed.found, changed.columns) == (expected, found, ("city",))
    assert difference.missing == (other,)


def test_doubles_are_equal_if_twelve_digits_are() -> None:
    assert compare_rows([row(x=0.3)], [row(x=0.1 + 0.2)], ["x"], []).is_empty
    assert not compare_rows([row(x=0.3)], [row(x=0.3001)], ["x"], []).is_empty


def result(*mismatches: Mismatch) -> Result:
    view = Description(
        address=Address("view", "spending"), id="v", generation=1, digest="", type="sql", body={}
    )
    place = SourceRange(path="tests/shop.yaml", line=2, column=3, end_line=2, end_column=4)
    return Result(
        case=Case(name="adds <up>", range=place, description=view), seconds=0.5, mismatches=mismatches
    )


def test_a_failure_shows_a_table_of_rows() -> None:
    rows = compare_rows(
        [row(customer="ada", spent="5.00"), row(customer="zoe", spent="6.00")],
        [row(customer="ada", spent="7.00"), row(customer="eve", spent="6.00")],
        ["customer", "spent"],
        ["customer"],
    )
    failure = result(Mismatch(subject="rows", step=2, rows=rows), LATE)
    assert result_line(failure, Paint(False)) == (
        "FAIL  adds <up> (view.spending, 0.5 s)  tests/shop.yaml:2:3"
    )
    assert list(failure_lines(failure, Paint(False))) == [
        "  rows of view.spending after step 2: 1 missing (-), 1 unexpected (+), "
        "1 different (~ expected → found)",
        "       customer  spent",
        "    ~  ada       5.00 → 7.00",
        "    -  zoe       6.00",
        "    +  eve       6.00",
        "  late rows: expected 1, found 0",
    ]


def test_junit_xml_has_each_test() -> None:
    document = ElementTree.fromstring(junit_xml([result(), result(LATE)]))
    suite = document.find("testsuite")
    assert suite is not None and (suite.get("tests"), suite.get("failures")) == ("2", "1")
    passed, failed_ = suite.findall("testcase")
    assert passed.find("failure") is None and passed.get("name") == "adds <up>"
    failure = failed_.find("failure")
    assert failure is not None and failure.get("message") == "late rows: expected 1, found 0"
