"""The dependency graph: order, reach, cycles, impact."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import networkx
import pytest

from mzplan.model.address import Address
from mzplan.model.graph import DependencyGraph
from tests.unit.small_projects import at, console, kafka, names, postgres, project, shop, sink, source


def graph(**edges: str) -> DependencyGraph:
    """`graph(a="b c")`: connection.a depends on b and c."""
    return DependencyGraph(
        {at(f"connection.{a}"): [at(f"connection.{b}") for b in to.split()] for a, to in edges.items()}
    )


def plain(addresses: object) -> str:
    return " ".join(address.name for address in addresses)  # type: ignore[attr-defined]


def test_order_is_dependencies_first_then_by_address() -> None:
    found = DependencyGraph.of(shop().resources).order()
    assert names(found) == ["connection.k", "connection.pg", "source.orders", "sink.orders_pg"]


def test_the_order_of_a_subset_is_that_of_the_whole() -> None:
    whole = graph(a="b", b="c", c="", d="a c", e="")
    everything = whole.order()
    for size in range(len(everything) + 1):
        subset = set(random.Random(size).sample(everything, size))
        assert whole.order(subset) == [address for address in everything if address in subset]


def test_the_order_does_not_depend_on_the_order_of_what_is_given() -> None:
    resources = list(shop().resources.items())
    expected = DependencyGraph.of(dict(resources)).order()
    for seed in range(10):
        random.Random(seed).shuffle(resources)
        assert DependencyGraph.of(dict(resources)).order() == expected


def test_reach_is_every_dependent_at_any_depth_without_the_start() -> None:
    found = graph(a="b", b="c", c="", x="")
    assert plain(sorted(found.reach([at("connection.c")]))) == "a b"
    assert found.reach([at("connection.a")]) == set()
    assert found.reach([at("connection.nowhere")]) == set()


def test_requirements_are_every_dependency_at_any_depth() -> None:
    assert plain(sorted(graph(a="b", b="c", c="").requirements([at("connection.a")]))) == "b c"


def test_direct_neighbours() -> None:
    found = graph(a="c b", b="", c="")
    assert plain(found.dependencies(at("connection.a"))) == "c b"
    assert plain(found.dependents(at("connection.b"))) == "a"
    assert plain(found) == "a b c"


def test_what_either_world_uses_is_reached_in_the_graph_of_both() -> None:
    now = project(kafka("k"), kafka("k2"), source(connection="k2"))
    before = project(kafka("k"), kafka("k2"), source(connection="k"))
    both = DependencyGraph.of_both(now.resources, before.resources)
    for name in ("k", "k2"):
        assert both.reach([at(f"connection.{name}")]) == {at("source.orders")}


def test_a_graph_without_cycles_has_none() -> None:
    assert graph(a="b", b="c", c="").cycles() == []


def test_each_cycle_is_reported_once_from_its_first_address() -> None:
    found = graph(a="b", b="c", c="a", d="d", e="a", f="g", g="f").cycles()
    assert [plain(cycle) for cycle in found] == ["a b c", "d", "f g"]


def test_order_refuses_a_cycle() -> None:
    with pytest.raises(networkx.NetworkXUnfeasible):
        graph(a="b", b="a").order()


def test_the_impact_of_a_connection_is_who_holds_it_inlined_and_what_is_downstream_of_those() -> None:
    configuration = project(
        kafka(),
        postgres(),
        source(),
        source("other"),
        sink(),
        sink("direct", **{"from": "other"}),
        console("c", "orders"),
    )
    found = DependencyGraph.of(configuration.resources)
    impact = found.impact(at("connection.k"))
    assert names(impact.restarts) == ["source.orders", "source.other"]
    assert names(impact.downstream) == ["sink.c", "sink.direct", "sink.orders_pg"]
    impact = found.impact(at("connection.pg"))
    assert names(impact.restarts) == ["sink.direct", "sink.orders_pg"]
    assert impact.downstream == ()
    impact = found.impact(at("source.orders"))
    assert names(impact.restarts) == ["source.orders"]
    assert names(impact.downstream) == ["sink.c", "sink.orders_pg"]


def test_the_impact_goes_through_connections_of_connections() -> None:
    edges = {
        at("connection.k"): [at("connection.t")],
        at("source.s"): [at("connection.k")],
        at("connection.t"): [],
    }
    assert names(DependencyGraph(edges).impact(at("connection.t")).restarts) == ["source.s"]


def test_a_chain_says_why_something_is_reached() -> None:
    chains = DependencyGraph.of(shop().resources).chains(at("connection.k"))
    assert {str(a): names(chain) for a, chain in chains.items()} == {
        "source.orders": ["connection.k", "source.orders"],
        "sink.orders_pg": ["connection.k", "source.orders", "sink.orders_pg"],
    }


def test_a_plan_imports_networkx_and_deepdiff_when_it_has_a_change_and_not_before(tmp_path: Path) -> None:
    (tmp_path / "mzplan.yaml").write_text("version: 1\nproject: p\ninstances: {local: {type: dry}}\n")
    text = (
        "connections: {k: {type: kafka, brokers: ['a:1']}}\n"
        "sources: {s: {connection: k, topic: t, format: {type: json, schema: id BIGINT}}}\n"
    )
    code = (
        "import sys; from mzplan.cli.main import main\n"
        "try: main(['-C', *sys.argv[1:]])\n"
        "except SystemExit: print(sorted({'networkx', 'deepdiff'} & set(sys.modules)))\n"
    )

    def imported(*command: str) -> str:
        program = [sys.executable, "-c", code, str(tmp_path), *command]
        ran = subprocess.run(program, check=True, capture_output=True, text=True)
        return ran.stdout.splitlines()[-1]

    (tmp_path / "p.yaml").write_text(text)
    assert imported("plan") == imported("apply", "--auto-approve") == "['networkx']", "nothing is compared"
    assert imported("plan") == imported("plan", "--target", "connection.k") == "[]"
    (tmp_path / "p.yaml").write_text(text.replace("a:1", "b:1"))
    assert imported("plan") == "['deepdiff', 'networkx']"


def test_planning_imports_nothing_heavy() -> None:
    code = (
        "import sys; from mzplan.model.graph import DependencyGraph\n"
        "import mzplan.plan, mzplan.render.plan_text\n"
        "graph = DependencyGraph({at: [] for at in 'ab'}); graph.cycles(); graph.reach([]); graph.order([])\n"
        "heavy = {'networkx', 'pyspark', 'yaml', 'deepdiff', 'rich', 'uuid', 'click'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_long_chain_and_a_large_graph_cost_linear_time() -> None:
    def calls(size: int) -> int:
        """Return the number of function calls. Unlike the time, it is the same on every machine."""
        edges = {Address("connection", f"c{i}"): [Address("connection", f"c{i - 1}")] for i in range(1, size)}
        found = DependencyGraph(edges)
        counted = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal counted
            counted += event in ("call", "c_call")

        sys.setprofile(count)
        try:
            assert len(found.order()) == size - 1
            assert len(found.reach([Address("connection", "c0")])) == size - 1
            assert found.cycles() == []
        finally:
            sys.setprofile(None)
        return counted

    assert calls(20_000) < 15 * calls(2_000)  # a quadratic one would be a hundred times slower
