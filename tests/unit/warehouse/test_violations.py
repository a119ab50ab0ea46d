"""Violations of expectations: each step counts once, however often it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from mzplan.model.violations import ViolationCount
from mzplan.warehouse.rows import violations
from mzplan.warehouse.rows.violations import StepViolations, Violations


def test_a_step_that_runs_again_counts_once(tmp_path: Path) -> None:
    found = Violations(str(tmp_path))
    assert found.total() == {} and found.at(0) is None
    found.record(0, {"positive": 2, "named": 0})
    assert found.record(0, {"positive": 2, "named": 0}) == {"positive": ViolationCount(rows=2, last_step=0)}
    found.record(3, {"positive": 1, "named": 4})
    # Under another rule, none of its rows violates the expectation.
    assert found.record(3, {"positive": 0}) == {"positive": ViolationCount(rows=2, last_step=0)}
    assert found.steps() == [0]
    found.record(5, {"named": 1})
    assert found.at(5) == StepViolations(
        rows={"named": 1},
        total={
            "named": ViolationCount(rows=1, last_step=5),
            "positive": ViolationCount(rows=2, last_step=0),
        },
    )
    assert found.total(before=5) == {"positive": ViolationCount(rows=2, last_step=0)}


def test_the_newest_steps_are_kept_with_the_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(violations, "RETAINED", 3)
    found = Violations(str(tmp_path))
    for step in range(0, 10, 2):
        found.record(step, {"positive": 1})
        found.record(step, {"positive": 1})
    assert found.steps() == [4, 6, 8]
    assert found.total() == {"positive": ViolationCount(rows=5, last_step=8)}


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    found = Violations(str(tmp_path))
    found.record(1, {"positive": 1})
    (file,) = (tmp_path / "violations").glob("*.json")
    file.write_text('{"total": {"positive": {"rows": -1}}}')
    with pytest.raises(OSError, match="violations"):
        found.total()
