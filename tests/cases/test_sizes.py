"""Review comments of plans with 3, 100 and 5,000 changes: `sizes/*.md` has the expected text."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path

import pytest

from mzplan.model.plan import DriftItem, Plan
from mzplan.model.resources import Resource
from mzplan.plan import build_plan
from mzplan.render.markdown import render_drift_markdown, render_plan_markdown
from mzplan.render.markup import LIMIT, length
from tests.unit.small_projects import commit, console, kafka, postgres, project, sink, source

FOLDER = Path(__file__).parent / "sizes"


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
def test_a_comment_fits_and_says_all_that_matters(size: int, update_golden: bool) -> None:
    plan = plan_of(size)
    text = render_plan_markdown(plan)
    path = FOLDER / f"{size}.md"
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path}: see --update-golden"
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
