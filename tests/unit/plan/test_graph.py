"""The dependency graph: order, reach, cycles, impact."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mzplan.model.graph import DependencyGraph
from tests.unit.small_projects import at, names, shop


def graph(**edges: str) -> DependencyGraph:
    """`graph(a="b c")`: connection.a depends on b and c."""
    return DependencyGraph(
        {at(f"connection.{a}"): [at(f"connection.{b}") for b in to.split()] for a, to in edges.items()}
    )


def plain(addresses: object) -> str:
    return " ".join(address.name for address in addresses)  # type: ignore[attr-defined]


def test_the_order_is_dependencies_first_then_by_address() -> None:
    found = DependencyGraph.of(shop().resources).order()
    assert names(found) == ["connection.k", "connection.pg", "source.orders", "sink.orders_pg"]


def test_reach_is_every_dependent_at_any_depth_without_the_start() -> None:
    found = graph(a="b", b="c", c="", x="")
    assert plain(sorted(found.reach([at("connection.c")]))) == "a b"
    assert found.reach([at("connection.a")]) == set()
    assert found.reach([at("connection.nowhere")]) == set()


def test_each_cycle_is_reported_once_from_its_first_address() -> None:
    found = graph(a="b", b="c", c="a", d="d", e="a", f="g", g="f").cycles()
    assert [plain(cycle) for cycle in found] == ["a b c", "d", "f g"]


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
        "import mzplan.plan, mzplan.render.diagnostics, mzplan.render.plan_text\n"
        "graph = DependencyGraph({at: [] for at in 'ab'}); graph.cycles(); graph.reach([]); graph.order([])\n"
        "heavy = {'networkx', 'pyspark', 'yaml', 'deepdiff', 'rich', 'uuid', 'click'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_long_chain_can_be_ordered_and_reached() -> None:
    edges = {at(f"connection.c{i}"): [at(f"connection.c{i - 1}")] for i in range(1, 20_000)}
    found = DependencyGraph(edges)
    assert len(found.order()) == len(found.reach([at("connection.c0")])) == len(edges)
    assert found.cycles() == []
