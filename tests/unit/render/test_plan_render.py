"""A plan as JSON and as text. What whole plans look like is in tests/cases."""

from __future__ import annotations

import dataclasses
import json

from mzplan.model.plan import DriftItem
from mzplan.model.resources import Configuration
from mzplan.model.state import State
from mzplan.plan import build_plan
from mzplan.render.cause_text import drift_lines
from mzplan.render.graphs.graph import render_graph
from mzplan.render.markdown import render_drift_markdown, render_plan_markdown
from mzplan.render.plan_json import plan_to_json
from mzplan.render.plan_page import render_plan_page
from mzplan.render.plan_text import render_plan
from tests.unit.small_projects import (
    at,
    commit,
    kafka,
    names,
    observe,
    postgres,
    project,
    resource,
    shop,
    sink,
    source,
)

EMPTY = State(project="shop")


# --- JSON


def test_equal_drift_of_many_queries_is_one_line(state: State) -> None:
    dead = "no runner of instance local is alive"
    drift = [DriftItem(address=f"sink.s{n}", kind="missing-query", detail=dead) for n in range(14)]
    other = DriftItem(address="source.a", kind="failed-query", detail="no")
    lines = drift_lines([*drift, other], 600)
    assert lines == [
        f"sink.s0, sink.s1, sink.s2, sink.s3, sink.s4 and 9 more: missing-query: {dead}",
        "source.a: failed-query: no",
    ]
    plan = dataclasses.replace(build_plan(shop(), state), drift=(*drift, other))
    assert [line for line in render_plan(plan).splitlines() if line.startswith("Drift")] == [
        f"Drift: {line}" for line in lines
    ]
    assert "\n".join(lines) in render_drift_markdown("shop", 1, [*drift, other])
    shown = {"address": "source.a", "kind": "failed-query", "detail": "no"}
    assert plan_to_json(plan)["drift"][-1] == shown


def test_no_secret_is_in_json_or_text(state: State) -> None:
    secret = "hunter2-literal"
    changed = shop(k=kafka(options={"sasl.jaas.config": secret}), pg=postgres(password=secret))
    for plan in (build_plan(changed, state), build_plan(changed, EMPTY), build_plan(shop(), commit(changed))):
        assert secret not in json.dumps(plan_to_json(plan))
        assert secret not in render_plan(plan)
    (found,) = plan_to_json(build_plan(changed, state))["changes"][0]["fields"]
    assert (found["before"], found["after"], found["sensitive"]) == (None, None, True)


# --- text


def test_long_lists_are_shortened_and_the_json_follows_the_change() -> None:
    sinks = [sink(f"w{i:02}") for i in range(20)]
    others = [source(f"s{i}", connection="other") for i in range(200)]
    rest = (postgres(), source(), kafka("other", brokers=["o:9092"]), *sinks, *others)
    state = commit(project(kafka(), *rest))
    changed = kafka(brokers=["b:1", "c:1", "d:1", "e:1"], description="not felt")
    plan = build_plan(project(changed, *rest), state)
    assert len(plan.downstream) == 20 and len(json.dumps(plan_to_json(plan), indent=2)) < 6_000
    assert "sink.w06, sink.w07 and 12 more\n" in render_plan(plan)
    shown = "brokers[0] a:9092 → b:1, brokers[1] added c:1, brokers[2] added d:1, and 1 more"
    assert f"because connection.k changed: {shown}\n" in render_plan(plan)
    state = commit(project(kafka(), postgres(), source(), *sinks))
    seen = {address.name: {"condition": "failed"} for address in state.resources}
    assert "  and 13 more\n" in render_plan(build_plan(shop(), state, observe(state, **seen)))


# --- the graph


def test_a_graph_in_each_format() -> None:
    configuration = project(kafka(), source())
    assert render_graph(configuration, format="mermaid") == (
        "flowchart LR\n"
        '  connection_k["connection.k (kafka)"]\n'
        '  source_orders["source.orders (kafka)"]\n'
        "  connection_k --> source_orders\n"
    )
    dot = render_graph(configuration, format="dot")
    assert '  "source.orders" [label="source.orders (kafka)"];\n' in dot
    assert '  "connection.k" -> "source.orders";\n}\n' in dot
    edges = json.loads(render_graph(configuration, format="json"))["edges"]
    assert edges == [{"from": "connection.k", "to": "source.orders"}]


def test_the_impact_of_a_change() -> None:
    configuration = shop(other=source("other"))
    found = json.loads(render_graph(configuration, impact=at("connection.k"), format="json"))
    impact = found["impact"]
    assert impact["restarts"] == ["source.orders", "source.other"]
    assert impact["downstream"] == ["sink.orders_pg"]
    assert impact["why"]["sink.orders_pg"] == ["connection.k", "source.orders", "sink.orders_pg"]
    drawn_nodes = {node["address"] for node in found["nodes"]}
    assert drawn_nodes == set(names(configuration.resources)) - {"connection.pg"}
    drawn = render_graph(configuration, impact=at("connection.k"))
    assert drawn.startswith(
        "%% A change of connection.k restarts 2 queries; 1 query downstream keeps running.\n"
    )
    assert '  sink_orders_pg["sink.orders_pg (postgres)"]:::running\n' in drawn
    assert '  source_orders["source.orders (kafka)"]:::restarts\n' in drawn
    assert "connection_pg" not in drawn
    assert "style=filled" in render_graph(configuration, impact=at("connection.k"), format="dot")


# --- what belongs together is shown once


def forty(where: str = "amount > 0") -> Configuration:
    """40 sources, as a `for_each` makes them, and 40 sinks of them."""
    sources = [source(f"s{n}", topic=f"shop.t{n}") for n in range(40)]
    sinks = [sink(f"out{n}", table=f"public.t{n}", where=where, **{"from": f"s{n}"}) for n in range(40)]
    return project(kafka(), postgres(), *sources, *sinks)


def test_forty_sources_and_their_sinks_are_two_groups() -> None:
    plan = build_plan(forty(), State(project="shop"))
    text = render_plan(plan)
    assert len(text.splitlines()) <= 60
    assert "+ 40 sources are new\n" in text and "+ 40 sinks are new\n" in text
    assert text.count("format.schema: id BIGINT, amount INT\n") == 1
    assert "topic: 40 values: shop.t0, shop.t1, shop.t2 and 37 more" in text
    assert all(f"shop.t{n}" in render_plan(plan, whole=True) for n in range(40))
    full = render_plan(plan, full=True)
    assert full.count("format.schema: id BIGINT, amount INT\n") == 40 and "are new" not in full
    assert all(f"\n+ source.s{n}\n" in f"\n{full}" for n in range(40))
    comment = render_plan_markdown(plan)
    assert comment.count("format.schema") == 1 and comment.count("<summary>40 s") == 2
    assert all(f"+ source.s{n}\n" in comment and f"topic: shop.t{n}\n" in comment for n in range(40))
    page = render_plan_page(plan)
    assert page.count('class="box group"') == 2 and page.count('<details class="box" id=') == 82


def test_equal_notices_are_one_with_their_number() -> None:
    plan = build_plan(forty("amount > 1"), commit(forty()))
    assert len([d for d in plan.diagnostics if d.code == "MZ045"]) == 40
    for text in (render_plan(plan), render_plan_markdown(plan)):
        assert text.count("notice[MZ045]") == 1 and "Also 39 others: sink.out1" in text
    assert render_plan(plan, full=True).count("notice[MZ045]") == 40
    assert len(render_plan(plan).splitlines()) <= 60
    assert len(plan_to_json(plan)["diagnostics"]) == 40


def test_an_odd_resource_is_not_grouped_and_a_group_shows_every_server() -> None:
    """Where alike resources lead is never among what is left out."""
    made = [source(f"s{n}", topic=f"t{n}") for n in range(6)]
    other = kafka("elsewhere", brokers=["evil:9092"])
    odd = source("s7", topic="t7", connection="elsewhere")
    plan = build_plan(project(kafka(), other, *made, odd), State(project="shop"))
    text = render_plan(plan)
    assert "+ 6 sources are new\n" in text
    assert "+ source.s7\n    connection: elsewhere\n" in text
    servers = [kafka(f"k{n}", brokers=["evil:1" if n == 7 else f"b{n}:9092"]) for n in range(12)]
    text = render_plan(build_plan(project(*servers), State(project="shop")))
    assert "evil:1" in text and "b11:9092" in text and "more" not in text


def test_only_the_changed_lines_of_a_long_text_are_shown() -> None:
    orders = resource("source.orders", "local", type="local", schema="id BIGINT, amount INT")

    def with_limit(limit: int) -> Configuration:
        query = f"SELECT id\nFROM orders\nWHERE amount > {limit}\n"
        view = {"type": "sql", "from": "orders", "schema": "id BIGINT", "query": query}
        return project(orders, resource("view.v", **{"type_": "sql", **view}))

    made, state = build_plan(with_limit(1), EMPTY), commit(with_limit(1))
    assert "    query: |\n      SELECT id\n      FROM orders\n      WHERE amount > 1\n" in render_plan(made)
    assert "+     query: |\n+       SELECT id\n" in render_plan_markdown(made)
    changed = build_plan(with_limit(2), state)
    assert "    query:\n      - WHERE amount > 1\n      + WHERE amount > 2\n" in render_plan(changed)
    lines = "-     query: WHERE amount > 1\n+     query: WHERE amount > 2\n"
    assert lines in render_plan_markdown(changed)
