"""The dependency graph: order, reach, cycles, impact."""

from __future__ import annotations

from mzplan.model.graph import DependencyGraph
from tests.unit.small_projects import at


def graph(**edges: str) -> DependencyGraph:
    """`graph(a="b c")`: connection.a depends on b and c."""
    return DependencyGraph(
        {at(f"connection.{a}"): [at(f"connection.{b}") for b in to.split()] for a, to in edges.items()}
    )


def plain(addresses: object) -> str:
    return " ".join(address.name for address in addresses)  # type: ignore[attr-defined]


def test_reach_is_every_dependent_at_any_depth_without_the_start() -> None:
    found = graph(a="b", b="c", c="", x="")
    assert plain(sorted(found.all_dependents([at("connection.c")]))) == "a b"
    assert found.all_dependents([at("connection.a")]) == set()
    assert found.all_dependents([at("connection.nowhere")]) == set()


def test_each_cycle_is_reported_once_from_its_first_address() -> None:
    found = graph(a="b", b="c", c="a", d="d", e="a", f="g", g="f").cycles()
    assert [plain(cycle) for cycle in found] == ["a b c", "d", "f g"]


def test_a_long_chain_can_be_ordered_and_reached() -> None:
    edges = {at(f"connection.c{i}"): [at(f"connection.c{i - 1}")] for i in range(1, 3_000)}
    found = DependencyGraph(edges)
    assert len(found.order()) == len(found.all_dependents([at("connection.c0")])) == len(edges)
    assert found.cycles() == []
