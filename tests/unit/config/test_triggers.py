"""`trigger`: an interval, or `available-now`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli_runs import apply, mzplan, planned_effects
from tests.unit.config_files import DRY, brief, errors, write

PIPELINE = """\
connections:
  lake: {type: files, path: lake}
sources:
  orders: {connection: lake, path: orders, format: {type: json, schema: "id BIGINT"}, trigger: %s}
"""
DEFAULTS = DRY + "defaults: {sources: {trigger: {interval: 5s}}}\n"


def test_a_plan_shows_that_a_query_stops_once_it_has_read_what_is_there(tmp_path: Path) -> None:
    """A default of another form is replaced, not merged."""
    write(tmp_path, {"mzplan.yaml": DEFAULTS, "a.yaml": PIPELINE % "available-now"})
    plan = mzplan(tmp_path, "plan").out
    assert "notice[MZ045]: source.orders: it reads what is there and stops" in plan
    apply(tmp_path)
    assert planned_effects(tmp_path) == {}
    write(tmp_path, {"mzplan.yaml": DEFAULTS, "a.yaml": PIPELINE % "{}"})
    plan = mzplan(tmp_path, "plan").out
    assert "available-now" in plan and "5s" in plan
    assert planned_effects(tmp_path) == {"source.orders": "restart"}


@pytest.mark.parametrize(
    ("trigger", "expected"),
    [("once", "MZ005"), ("5s", "MZ005"), ("7", "MZ005"), ("{interval: available-now}", "MZ005")],
)
def test_other_triggers_are_refused(tmp_path: Path, trigger: str, expected: str) -> None:
    found = errors(tmp_path, {"mzplan.yaml": DRY, "a.yaml": PIPELINE % trigger})
    assert len(found) == 1 and expected in brief(found)[0], brief(found)
