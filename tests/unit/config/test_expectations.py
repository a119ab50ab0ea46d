"""`expect`: the checks of a source's and view's expectations, and what a change of them does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli_runs import apply, mzplan, planned_effects
from tests.unit.config_files import DRY, brief, errors, write

SHOP = """\
sources:
  orders:
    type: local
    schema: "id BIGINT, customer STRING, amount DECIMAL(10,2)"
    expect: {%s}
views:
  totals:
    query: SELECT customer, sum(amount) AS total FROM orders GROUP BY customer
    output: %s
    key: [customer]
    expect: {%s}
"""


def project(folder: Path, source: str = "", view: str = "", output: str = "update") -> Path:
    text = SHOP % (source, output, view)
    return write(folder, {"mzplan.yaml": DRY, "a.yaml": text.replace("    expect: {}\n", "")})


@pytest.mark.parametrize(
    ("expectation", "found"),
    [
        ("e: {check: amount > 0, on_violation: fail}", []),
        ("e: {not_null: [ID, customer]}, f: {not_null: amount}", []),
        ("e: {check: amont > 0}", ['a.yaml:5:25 MZ019 Unknown column "amont"']),
        ("e: {not_null: [id, amont]}", ['a.yaml:5:33 MZ019 Unknown column "amont"']),
        ("e: {not_null: amont}", ['a.yaml:5:28 MZ019 Unknown column "amont"']),
        ("e: {check: sum(amount) > 0}", ["a.yaml:5:25 MZ019 Not a stateless Spark SQL expression"]),
        ("e: {on_violation: warn}", ["a.yaml:5:14 MZ380 The expectation e has no condition"]),
        ("e: {check: id > 0, not_null: id}", ["a.yaml:5:14 MZ380 The expectation e has two conditions"]),
        ("e: {check: id > 0, on_violation: ignore}", ['a.yaml:5:47 MZ005 Wrong value for "on_violation"']),
    ],
)
def test_the_expectations_of_a_source(tmp_path: Path, expectation: str, found: list[str]) -> None:
    assert brief(errors(project(tmp_path, expectation))) == found


@pytest.mark.parametrize(
    ("expectation", "found"),
    [
        ("e: {unique: total}", []),
        ("e: {unique: [total], on_violation: fail}", []),
        ("e: {unique: [customer, totals]}", ["MZ380", "MZ019"]),
        ("e: {unique: [Customer, total]}", ["MZ380"]),
        ("e: {unique: total, not_null: total}", ["MZ380"]),
        ("e: {unique: total, on_violation: drop}", ["MZ380"]),
    ],
)
def test_a_unique_expectation_of_a_view(tmp_path: Path, expectation: str, found: list[str]) -> None:
    assert [one.code for one in errors(project(tmp_path, view=expectation))] == found


def test_a_unique_expectation_needs_a_key(tmp_path: Path) -> None:
    (refused,) = errors(project(tmp_path, "e: {unique: amount}"))
    assert refused.summary == "The expectation e needs a key"


LETTERS = """\
connections:
  k: {type: kafka, brokers: ["a:9092"]}
sources:
  orders:
    connection: k
    topic: orders
    format: {type: json, schema: "id BIGINT"}
    on_error: %s
    expect: {e: {check: id > 0, on_violation: dead-letter}}
"""


def test_only_a_source_with_dead_letters_keeps_records(tmp_path: Path) -> None:
    expectation = "e: {not_null: customer, on_violation: dead-letter}"
    (local,) = errors(project(tmp_path / "local", expectation))
    (view,) = errors(project(tmp_path / "view", view=expectation))
    assert (local.summary, view.summary) == (
        "source.orders keeps no dead letters",
        "view.totals keeps no dead letters",
    )
    for name, on_error, found in (
        ("skip", "skip", ["MZ380"]),
        ("kept", "dead-letter\n    dead_letter: {path: dead}", []),
    ):
        folder = write(tmp_path / name, {"mzplan.yaml": DRY, "a.yaml": LETTERS % on_error})
        assert [one.code for one in errors(folder)] == found


def view_with_letters(expectation: str, letters: str = "\n    dead_letter: {path: dead/views}") -> str:
    """The end of the view `totals`: its expectation, then `dead_letter`."""
    return f"{expectation}}}{letters} #"


def test_a_view_keeps_the_rows_that_violate_an_expectation(tmp_path: Path) -> None:
    kept = view_with_letters("e: {check: total > 0, on_violation: dead-letter}, f: {not_null: customer}")
    assert errors(project(tmp_path, view=kept)) == []
    (unused,) = errors(project(tmp_path, view=view_with_letters("e: {check: total > 0}")))
    assert (unused.code, unused.summary) == ("MZ380", "view.totals keeps no dead letters")
    assert "none of its expectations" in unused.detail
    (current,) = errors(project(tmp_path, view=kept, output="current"))
    assert current.summary == "view.totals can't drop rows"
    which = view_with_letters("e: {unique: total, on_violation: dead-letter}")
    (refused,) = errors(project(tmp_path, view=which))
    assert "can't remove rows" in refused.summary
    topic = view_with_letters(
        "e: {not_null: total, on_violation: dead-letter}", "\n    dead_letter: {topic: dead}"
    )
    assert [one.code for one in errors(project(tmp_path, view=topic))] == ["MZ004"]


def test_a_view_without_such_an_expectation_may_have_a_default_place(tmp_path: Path) -> None:
    project(tmp_path, view="e: {check: total > 0}")
    write(tmp_path, {"mzplan.yaml": DRY + "defaults: {views: {dead_letter: {path: dead}}}\n"})
    assert errors(tmp_path) == []


def test_a_changed_place_of_dead_letters_restarts_the_view(tmp_path: Path) -> None:
    expectation = "e: {check: total > 0, on_violation: dead-letter}"
    apply(project(tmp_path, view=view_with_letters(expectation)))
    project(tmp_path, view=view_with_letters(expectation, "\n    dead_letter: {path: dead/others}"))
    assert planned_effects(tmp_path) == {"view.totals": "restart"}


def test_a_view_checks_its_own_columns(tmp_path: Path) -> None:
    (unknown,) = errors(project(tmp_path, view="e: {check: amount > 0}"))
    assert unknown.code == "MZ019" and "view.totals has the columns customer, total" in unknown.detail
    assert errors(project(tmp_path, view="e: {check: total > 0, on_violation: drop}")) == []


def test_a_current_view_drops_no_rows(tmp_path: Path) -> None:
    (refused,) = errors(project(tmp_path, view="e: {check: total > 0, on_violation: drop}", output="current"))
    assert refused.code == "MZ380" and "output: current" in refused.detail
    assert errors(project(tmp_path, view="e: {check: total > 0, on_violation: fail}", output="current")) == []


def test_a_changed_expectation_restarts_only_its_query(tmp_path: Path) -> None:
    apply(project(tmp_path))
    project(tmp_path, "e: {check: amount > 0}", "e: {check: total > 0, on_violation: warn}")
    assert planned_effects(tmp_path) == {"source.orders": "restart", "view.totals": "restart"}
    plan = mzplan(tmp_path, "plan").out
    assert "the change to `expect` applies to rows from now on" in plan
    assert "other rows" not in plan and "MZ340" not in plan  # they are only counted
    apply(tmp_path)
    project(tmp_path, "e: {check: amount > 0, on_violation: warn}", "e: {check: total > 0}")
    assert planned_effects(tmp_path) == {}
    project(tmp_path, "e: {check: amount > 0, on_violation: drop}", "e: {check: total > 0}")
    assert planned_effects(tmp_path) == {"source.orders": "restart"}
    plan = mzplan(tmp_path, "plan").out
    assert "1 query writes other rows" in plan and "MZ340" in plan
