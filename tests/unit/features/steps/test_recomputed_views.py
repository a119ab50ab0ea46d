"""`mzplan verify --from-upstream` for a view that aggregates: its output and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from mzplan.connectors.api.recomputed import RecomputationResult
from mzplan.spark.verification.recomputed_view import RecomputedView
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.step_record import StepRecord
from tests.stored_steps import StoredSource, named
from tests.unit.cli_runs import mzplan, write

PIPELINE = """\
sources:
  orders: {type: local, schema: "id BIGINT NOT NULL, customer STRING"}
views:
  totals:
    query: SELECT customer, count(*) AS n FROM orders GROUP BY customer
    output: update
    key: [customer]
"""
ROW = '- {"customer":"a","n":2}'
Compare = Callable[[StepRecord], RecomputationResult]


@pytest.fixture
def view(tmp_path: Path) -> StoredSource:
    """The view's storage in a committed project."""
    folder = write(tmp_path / "shop")
    (folder / "pipeline.yaml").write_text(PIPELINE)
    assert mzplan(folder, "apply", "--auto-approve").code == 0
    resources = json.loads((folder / "state" / "mzplan.state.json").read_text())["resources"]
    stored = StoredSource(folder / "warehouse", resources["view.totals"]["id"])
    for step in range(3):
        stored.run(named(step, step + 1))
    return stored


@pytest.fixture
def verify(view: StoredSource, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run the command with `compare` instead of Spark."""

    def run(compare: Compare, *arguments: str) -> Any:
        opened = SimpleNamespace(compare=compare, close=lambda: None)
        monkeypatch.setattr(RecomputedView, "open", lambda *_: opened)
        return mzplan(view.warehouse.parent, "verify", "view.totals", "--from-upstream", *arguments)

    return run


def result(**more: Any) -> Compare:
    return lambda record: RecomputationResult(
        step=record.step, **{"expected_rows": 2, "collection_rows": 2, **more}
    )


def test_the_last_of_the_wanted_steps_is_compared(verify: Callable[..., Any]) -> None:
    line = "view.totals as of step {}, recomputed from all rows that it has read: 2 rows as computed.\n"
    ran = verify(result())
    assert (ran.code, ran.out) == (0, line.format(2))
    ran = verify(result(not_compared=("n",)), "--steps", "0..1")
    assert ran.out.startswith(line.format(1)) and "Not compared: n (" in ran.out


def test_a_row_that_differs_is_an_error_unless_it_may_be_late(verify: Callable[..., Any]) -> None:
    wrong = result(missing=1, more=1, examples=(ROW,))
    ran = verify(wrong)
    assert ran.code == 1 and f"  {ROW}\n" in ran.out
    assert "2 rows computed, 2 in its collection; 1 missing, 1 extra.\n" in ran.out
    ran = verify(wrong, "--json")
    differences = {"missing": 1, "more": 1, "late": 0, "excused": None, "examples": [ROW], "not_compared": []}
    found = {"as_of": 2, "equal": False, "rows": {"query": 2, "collection": 2}, **differences}
    assert (ran.code, ran.json()["recomputed"]) == (1, found)
    ran = verify(result(missing=1, late=1, explanation="The view has dropped late rows."))
    unknown = "mzplan can't tell whether this is correct. The view has dropped late rows.\n"
    assert ran.code == 0 and unknown in ran.out
    ran = verify(Mock(side_effect=GoneError("Its files are gone.")))
    assert ran.code == 1 and "error[MZ091]: view.totals can't be recomputed as of step 2" in ran.err
