"""Golden cases: a project before and after an edit, and the plan for the edit.

Each folder has two project folders, `before/` and `after/`. Without `before/`, nothing is applied yet.
`plan.txt`, `plan.md` and `plan.json` have the expected output. `case.json` is optional: it has `targets`,
`replace`, and `seen`, the runner's last report of a query by name.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mzplan.config import load_configuration
from mzplan.model.plan import Plan
from mzplan.model.state import State
from mzplan.plan import build_plan
from mzplan.plan.file import decode_plan, encode_plan
from mzplan.render.markdown import render_plan_markdown
from mzplan.render.plan_json import plan_to_json
from mzplan.render.plan_text import render_plan
from tests.unit.small_projects import at, commit, commit_plan, observe

FOLDER = Path(__file__).parent
CASES = sorted(path.parent.name for path in FOLDER.glob("*/after"))


def options_of(case: Path) -> dict[str, Any]:
    path = case / "case.json"
    return json.loads(path.read_text()) if path.exists() else {}  # type: ignore[no-any-return]


def planned(case: Path) -> tuple[Plan, State]:
    options = options_of(case)
    after = load_configuration(str(case / "after"))
    state = State(project=after.project)
    if (case / "before").is_dir():
        state = commit(load_configuration(str(case / "before")))
    plan = build_plan(
        after,
        state,
        observe(state, **options.get("seen", {})),
        targets=[at(text) for text in options.get("targets", [])],
        replace=[at(text) for text in options.get("replace", [])],
    )
    return plan, state


@pytest.mark.parametrize("name", CASES)
def test_plan(name: str, update_golden: bool) -> None:
    plan, _ = planned(FOLDER / name)
    found = {
        "plan.txt": render_plan(plan),
        "plan.md": render_plan_markdown(plan),
        "plan.json": json.dumps(plan_to_json(plan), indent=2, ensure_ascii=False) + "\n",
    }
    for file, text in found.items():
        path = FOLDER / name / file
        if update_golden:
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"{path}: see --update-golden"


@pytest.mark.parametrize("name", CASES)
def test_after_apply_there_is_nothing_left(name: str) -> None:
    plan, state = planned(FOLDER / name)
    again = decode_plan(encode_plan(plan))
    assert again == plan
    if "targets" in options_of(FOLDER / name):
        return  # the rest is still to do
    after = load_configuration(str(FOLDER / name / "after"))
    assert build_plan(after, commit_plan(plan, state)).is_empty
