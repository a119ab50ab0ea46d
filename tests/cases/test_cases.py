"""Golden cases: a project before and after an edit, and the plan for the edit. `sizes/*.md` has the review
comments of plans with 3, 100 and 5,000 changes.

Each folder has two project folders, `before/` and `after/`. Without `before/`, nothing is applied yet.
`plan.txt`, `plan.md` and `plan.json` have the expected output. `case.json` is optional: it has `targets`,
`replace`, and `seen`, the runner's last report of a query by name. `python -m pytest tests/cases
--update-golden` writes the results of all cases, for review.
"""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from mzplan.config import load_configuration
from mzplan.model.plan import DriftItem, Plan
from mzplan.model.resources import Resource
from mzplan.model.state import State
from mzplan.plan import build_plan
from mzplan.plan.file import decode_plan, encode_plan
from mzplan.render.html import LIMIT, length
from mzplan.render.markdown import render_drift_markdown, render_plan_markdown
from mzplan.render.plan_json import plan_to_json
from mzplan.render.plan_text import render_plan
from tests.unit.small_projects import (
    at,
    commit,
    commit_plan,
    console,
    kafka,
    observe,
    postgres,
    project,
    sink,
    source,
)

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


def check(path: Path, text: str, pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path}: see --update-golden"


@pytest.mark.parametrize("name", CASES)
def test_a_plan_looks_like_this_and_leaves_nothing_to_do(name: str, pytestconfig: pytest.Config) -> None:
    plan, state = planned(FOLDER / name)
    found = {
        "plan.txt": render_plan(plan),
        "plan.md": render_plan_markdown(plan),
        "plan.json": json.dumps(plan_to_json(plan), indent=2, ensure_ascii=False) + "\n",
    }
    for file, text in found.items():
        check(FOLDER / name / file, text, pytestconfig)
    assert decode_plan(encode_plan(plan)) == plan
    if "targets" in options_of(FOLDER / name):
        return  # the rest is still to do
    after = load_configuration(str(FOLDER / name / "after"))
    assert build_plan(after, commit_plan(plan, state)).is_empty


# --- sizes


def landscape(clusters: int, topics: int, new: int = 0, *, after: bool) -> list[Resource]:
    """Return `clusters` Kafka clusters with `topics` sources each, and a sink for each source.

    `after`: every broker has moved, some sources have another topic or are deleted, and `new` sinks are new.
    """
    made: list[Resource] = [postgres()]
    for c in range(clusters):
        made.append(kafka(f"k{c:03}", brokers=[f"{'new' if after else 'old'}-{c}:9092"]))
        for t in range(topics):
            name = f"s{c:03}_{t:03}"
            if after and t % 10 == 7:
                continue
            topic = f"{name}_v2" if after and t % 10 == 5 else name
            made.append(source(name, connection=f"k{c:03}", topic=topic))
            made.append(sink(f"{name}_pg", **{"from": name, "table": name}))
    return [*made, *(console(f"new_{n:03}", "s000_000") for n in range(new))]


@cache
def plan_of(size: int) -> Plan:
    clusters, topics, new = {3: (1, 2, 0), 100: (3, 24, 13), 5_000: (25, 160, 175)}[size]
    before = commit(project(*landscape(clusters, topics, after=False)))
    return build_plan(project(*landscape(clusters, topics, new, after=True)), before)


@pytest.mark.parametrize("size", [3, 100, 5_000])
def test_a_comment_fits_and_says_all_that_matters(size: int, pytestconfig: pytest.Config) -> None:
    plan = plan_of(size)
    text = render_plan_markdown(plan)
    check(FOLDER / "sizes" / f"{size}.md", text, pytestconfig)
    assert len(text) < LIMIT and length(text) < LIMIT
    assert text.startswith("<!-- mzplan:plan:shop -->\n")
    above = text.partition("<details>")[0]
    for action, number in plan.summary().items():
        assert not number or f"{number:,} to {action}" in above
    assert "restart** from" in above
    assert len(plan.changes) == size


def test_what_decides_is_dropped_last() -> None:
    text = render_plan_markdown(plan_of(5_000))
    assert "Omitted for length: " in text and "begin again" in text.partition("<details>")[0]
    body = text.partition("```diff")[2].partition("```")[0]
    assert body.count(" begins again: ") == 800  # what is read again, before any mere restart or creation
    assert " restarts: " not in body and "\n+ " not in body


def test_drift_of_any_size_fits() -> None:
    items = [
        DriftItem(address=f"sink.s{n}", kind="failed-query", detail=f"{n}{'😀' * 400}") for n in range(10_000)
    ]
    text = render_drift_markdown("shop", 7, items)
    assert length(text) < LIMIT and "| `failed-query` | 10,000 |" in text and "more: `mzplan drift`" in text
    plan = dataclasses.replace(plan_of(3), drift=tuple(items))
    assert length(render_plan_markdown(plan)) < LIMIT
