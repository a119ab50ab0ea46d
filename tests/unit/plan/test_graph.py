"""The dependency graph: order, reach, cycles, impact."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mzplan.model.graph import DependencyGraph
from tests.unit.cli_runs import apply, write
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


def test_a_plan_without_changes_imports_no_heavy_library(tmp_path: Path) -> None:
    apply(write(tmp_path))
    code = (
        "import sys; from mzplan.cli.main import main\n"
        "try: main(['-C', sys.argv[1], 'plan'])\n"
        "finally: sys.stderr.write(' '.join(set(sys.modules) & set(sys.argv[2:])))\n"
    )
    heavy = ("networkx", "deepdiff", "pandas", "sqlglot", "pyspark", "lark")
    command = [sys.executable, "-c", code, str(tmp_path), *heavy]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert "No changes" in ran.stdout and ran.stderr == ""


def test_a_long_chain_can_be_ordered_and_reached() -> None:
    edges = {at(f"connection.c{i}"): [at(f"connection.c{i - 1}")] for i in range(1, 3_000)}
    found = DependencyGraph(edges)
    assert len(found.order()) == len(found.reach([at("connection.c0")])) == len(edges)
    assert found.cycles() == []
