"""Review comments: nothing in a project can break out of them, and they always fit."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mzplan.model.diagnostics import Diagnostic
from mzplan.model.plan import DriftItem, FieldChange, Pending, Plan
from mzplan.model.resources import Instance
from mzplan.model.state import State
from mzplan.plan import build_plan
from mzplan.render.html import LIMIT, code, fence, length, link
from mzplan.render.markdown import render_drift_markdown, render_plan_markdown
from mzplan.render.plan_page import render_plan_page
from mzplan.render.plan_text import render_plan
from tests.unit.small_projects import at, commit, kafka, resource, shop, sink, source

HOSTILE = (
    "```\n</details>\n<!-- mzplan:plan:other --> @everyone [x](javascript:1) <script> | ~~~~ ````` \u202e"
)


def outside(text: str) -> str:
    """The comment without its fences and code spans: what a forge reads as Markdown."""
    kept, closing = [], ""
    for line in text.splitlines():
        ticks = re.match(r"`{3,}", line)
        if closing:
            closing = "" if line == closing else closing
        elif ticks:
            closing = ticks[0]
        else:
            kept.append(line)
    assert not closing, "a fence is left open"
    return re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", "\n".join(kept))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://ci.example/jobs/7/plan.html", "https://ci.example/jobs/7/plan.html"),
        ("http://[::1]:8000/a%20b?x=1&copy=2#artifacts", "http://[::1]:8000/a%20b?x=1&amp;copy=2#artifacts"),
        ("https://h/>)<script>`\\\n| é", "https://h/%3E%29%3Cscript%3E%60%5C%0A%7C%20%C3%A9"),
    ],
)
def test_a_comment_links_to_the_page(url: str, shown: str, state: State) -> None:
    plan = build_plan(shop(k=kafka(brokers=["b:9092"])), state)
    text = render_plan_markdown(plan, html_url=url)
    assert link("The plan as a picture", url) == f"[The plan as a picture](<{shown}>)"
    assert f"\n\n[The plan as a picture](<{shown}>), with" in text
    assert "picture" not in render_plan_markdown(plan)


def hostile(state: State) -> Plan:
    wanted = shop(
        k=kafka(brokers=["b:9092"], description=HOSTILE, labels={HOSTILE: HOSTILE}),
        orders=source(description=HOSTILE),
        more=sink("more", where=HOSTILE),
    )
    plan = build_plan(wanted, state)
    return dataclasses.replace(
        plan,
        drift=(DriftItem(address=HOSTILE, kind="failed-query", detail=HOSTILE),),
        pending=(Pending(address=at("source.orders"), condition="failed", reason=HOSTILE),),
        diagnostics=(
            Diagnostic(code="MZ040", summary=HOSTILE, detail=HOSTILE),
            Diagnostic(severity="notice", code="MZ045", summary=HOSTILE),
        ),
    )


def test_no_text_of_a_project_is_markdown(state: State) -> None:
    text = render_plan_markdown(hostile(state))
    assert text.index("can't be applied: 1 error") < text.index("```"), "errors come first"
    bare = outside(text)
    for part in ("@everyone", "javascript", "<script>", "plan:other", "~~~~", "\u202e"):
        assert part not in bare
    assert bare.count("<details>") == bare.count("</details>") == text.count("<summary>")
    assert "@everyone" in text  # it is shown, where it does nothing
    drift = render_drift_markdown("shop", 1, hostile(state).drift)
    assert "@everyone" in drift and "@everyone" not in outside(drift)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300))
def test_fences_and_spans_hold_anything(text: str) -> None:
    block = fence("text", [text])
    lines = block.split("\n")
    assert lines[0].startswith("```") and lines[-1] == lines[0].removesuffix("text")
    assert all(line.strip() != lines[-1] and not line.startswith(lines[-1]) for line in lines[1:-1])
    span = code(text)
    ticks = re.match(r"`+", span)
    assert ticks and "\n" not in span
    inside = span[len(ticks[0]) : -len(ticks[0])]
    assert ticks[0] not in re.findall(r"`+", inside)


@pytest.mark.parametrize("char", ["x", "`", "\U0001f600"])
def test_a_comment_fits_whatever_its_parts(state: State, char: str) -> None:
    """Each part of a plan that has a length, by itself and all at once."""
    long, names = char * 70_000, [f"i{number:04}{'x' * 120}" for number in range(1200)]
    plan = build_plan(shop(k=kafka(brokers=["b:9092"])), state)
    parts: dict[str, Any] = {
        "warehouse": long,
        "project": long,
        "environment": long,
        "instances": {name: Instance(name=name, type="cluster") for name in names},
        "variables": {f"{name}{long[:300]}": long[:1000] for name in names},
        "downstream": tuple(at(f"sink.{name}") for name in names),
        "diagnostics": tuple(
            Diagnostic(severity=severity, code="MZ001", summary=long, detail=long, hint=long)
            for severity in ("error", "warning", "notice")
        ),
        "drift": tuple(DriftItem(address=long, kind=long, detail=long) for _ in range(3)),
        "pending": (Pending(address=at("source.orders"), condition="failed", reason=long),) * 3,
        "resuming": tuple(at(f"sink.{name}") for name in names),
        "settings_changes": (
            *beside(3),
            moved("lineage.url", long, f"https://{HOST}/{long}"),
            moved(long, "a", "b"),
            moved(f"instances.{long}.metrics.host", long, "0.0.0.0"),
        ),
    }
    for changed in (*({name: value} for name, value in parts.items()), parts):
        whole = dataclasses.replace(plan, **changed)
        comment = render_plan_markdown(whole, html_url=f"https://ci.example/{long}")
        assert length(comment) < LIMIT, changed.keys()
        assert comment.startswith("<!-- mzplan:plan:") or "project" in changed or "environment" in changed
        assert "settings_changes" not in changed or comment.count(HOST) >= 2, "above the fold, and below"
    assert length(render_drift_markdown(long, 1, plan.drift, long)) < LIMIT
    assert length(render_drift_markdown("shop", 1, parts["drift"])) < LIMIT


HOST = f"lineage.corp.example.{'eu-west-1.production.internal.' * 7}evil.example"  # 243 characters


def moved(path: str, before: Any, after: Any) -> FieldChange:
    return FieldChange(path=path, before=before, after=after, effect="in-place", sensitive=False)


def beside(count: int, host: str = "127.0.0.1") -> tuple[FieldChange, ...]:
    """Instances that are new."""
    return tuple(
        field
        for number in range(count)
        for field in (
            moved(f"instances.i{number:03}.metrics.host", None, host),
            moved(f"instances.i{number:03}.metrics.port", None, 9200 + number),
            moved(f"instances.i{number:03}.type", None, "cluster"),
        )
    )


@pytest.mark.parametrize(
    ("path", "others"),
    [("/v1", beside(55)), ("/v1" * 300, beside(14)), ("/v1" * 300, beside(200, "0.0.0.0"))],
)
def test_settings_that_lead_elsewhere_come_first_and_whole(
    state: State, path: str, others: tuple[FieldChange, ...]
) -> None:
    url = moved("lineage.url", f"https://lineage.corp.example{path}", f"https://{HOST}{path}")
    opened = moved("instances.zzz.metrics.host", "127.0.0.1", "0.0.0.0")
    more = (url, moved("lineage.namespace", None, "another"), moved("retries.last", "1m", "70s"), opened)
    plan = dataclasses.replace(build_plan(shop(), state), settings_changes=(*others, *more))
    comment = render_plan_markdown(plan)
    above, _, below = comment.partition("<details>")
    assert length(comment) < LIMIT
    for text in (above, below, render_plan(plan).partition("\n\n")[0], render_plan_page(plan)):
        assert f"https://{HOST}" in text and "another" in text
        assert "0.0.0.0" in text and ("zzz.metrics.host" in text or opened.after == others[0].after)
    assert below.index("lineage.url") < below.index("instances.i000")
    assert "where runners report or listen**" in above


def registry(url: str, **more: Any) -> Any:
    return resource("connection.r", "schema-registry", url=url, **more)


def test_no_long_value_beside_it_hides_where_a_connection_leads() -> None:
    before, after = (registry(f"https://{host}/v1{'/v1' * 300}") for host in ("lineage.corp.example", HOST))
    sinks = {name: sink(name) for name in ("s0", "s1")}
    long = {name: sink(name, where=f"name = '{'x' * 62_700}'") for name in sinks}
    plan = build_plan(shop(r=after, **long), commit(shop(r=before, **sinks)))
    comment = render_plan_markdown(plan)
    above, _, below = comment.partition("<details>")
    assert f"https://{HOST}/v1" in above and f"https://{HOST}/v1" in below
    assert length(comment) < LIMIT and "sink.s1" in below
    made = build_plan(shop(r=after, **long), State(project="shop"))
    assert f"https://{HOST}/v1" in render_plan_markdown(made)


def test_one_of_many_brokers_is_shown_whole_and_a_long_one_with_its_end() -> None:
    def brokers(last: str) -> list[str]:
        return [*(f"b{n}.{last}:9092" for n in range(30)), f"{last}:9092", "z:9092"]

    state = commit(shop(shop_kafka=kafka(brokers=brokers(f"{'eu-west.' * 28}shop.example"))))
    plan = build_plan(shop(shop_kafka=kafka(brokers=brokers(HOST))), state)
    above, _, _ = render_plan_markdown(plan).partition("<details>")
    assert "1 connection points to another server" in above and f"b0.{HOST}:9092" in above
    for text in (render_plan(plan).partition("\n\n")[0], above):
        assert "shop.example:9092 → " in text and f"{HOST}:9092" in text
