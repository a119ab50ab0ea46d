"""The dependency graph: the order of resources, and the resources that a change reaches.

networkx has the graph and its algorithms. Importing it takes about half the CPU time of a small plan. So only
the methods that need networkx import it, and a plan without changes never does. The time of each method is
linear in the number of nodes and edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Protocol

from mzplan.model.address import Address, natural

if TYPE_CHECKING:
    import networkx


class HasReferences(Protocol):
    """A Resource or a ResourceState."""

    @property
    def references(self) -> Mapping[str, Address]: ...


@dataclass(frozen=True, slots=True)
class Impact:
    """The queries that a change of a resource restarts, and the queries downstream of them."""

    address: Address
    restarts: tuple[Address, ...]
    downstream: tuple[Address, ...]


class DependencyGraph:
    """Addresses and their dependencies.

    An address that appears only as a dependency is also a node. Validation reports dangling references; the
    graph doesn't.
    """

    def __init__(self, dependencies: Mapping[Address, Iterable[Address]]):
        self._dependencies: dict[Address, tuple[Address, ...]] = {
            address: tuple(dict.fromkeys(needed)) for address, needed in dependencies.items()
        }

    @classmethod
    def of(cls, resources: Mapping[Address, HasReferences]) -> DependencyGraph:
        """Return the graph of the resources of a Configuration or a State."""
        return cls({address: resource.references.values() for address, resource in resources.items()})

    @classmethod
    def of_both(
        cls, wanted: Mapping[Address, HasReferences], committed: Mapping[Address, HasReferences]
    ) -> DependencyGraph:
        """Return the graph of all references in either mapping.

        Use it for reach, not for order: it may have a cycle although neither mapping has one.
        """
        edges: dict[Address, list[Address]] = {}
        for resources in (wanted, committed):
            for address, resource in resources.items():
                edges.setdefault(address, []).extend(resource.references.values())
        return cls(edges)

    def __iter__(self) -> Iterator[Address]:
        return iter(self._dependencies)

    @cached_property
    def _dependents(self) -> Mapping[Address, list[Address]]:
        """The addresses that refer to each address, sorted. Every plan asks, so this needs no networkx."""
        dependents: dict[Address, list[Address]] = {}
        for address in sorted(self._dependencies, key=natural):
            for needed in self._dependencies[address]:
                dependents.setdefault(needed, []).append(address)
        return dependents

    @cached_property
    def _graph(self) -> networkx.DiGraph[Address]:
        """The networkx graph. Its edges point from a dependency to its dependents.

        Nodes are added in the order of addresses, so that ties don't depend on the order of files.
        """
        import networkx

        graph: networkx.DiGraph[Address] = networkx.DiGraph()
        for address in sorted(self._dependencies, key=natural):
            graph.add_node(address)
            graph.add_edges_from((needed, address) for needed in self._dependencies[address])
        return graph

    def dependencies(self, address: Address) -> tuple[Address, ...]:
        """Return the addresses that `address` refers to directly, in the order of its references."""
        return self._dependencies.get(address, ())

    def dependents(self, address: Address) -> list[Address]:
        """Return the addresses that refer to `address` directly, sorted."""
        return self._dependents.get(address, [])

    def all_dependents(self, addresses: Iterable[Address]) -> set[Address]:
        """Return everything that depends on any of the addresses, at any depth.

        The addresses themselves are left out, unless one depends on another.
        """
        if not (start := list(addresses)):
            return set()
        import networkx

        return {user for _, user in networkx.edge_bfs(self._graph, start)}

    def requirements(self, addresses: Iterable[Address]) -> set[Address]:
        """Return everything that any of the addresses depends on, at any depth."""
        if not (start := list(addresses)):
            return set()
        import networkx

        return {used for used, _, _ in networkx.edge_bfs(self._graph, start, orientation="reverse")}

    def order(self, subset: Iterable[Address] | None = None) -> list[Address]:
        """Return the addresses (all, or a subset) in dependency order; ties are sorted by address.

        A subset keeps the order of the whole. Raises networkx.NetworkXUnfeasible for a cycle.
        """
        chosen = set(self._dependencies if subset is None else subset)
        if not chosen:
            return []
        import networkx

        needed = self._graph.subgraph(chosen | self.requirements(chosen))
        generations = networkx.topological_generations(needed)
        return [
            address
            for generation in generations
            for address in sorted(chosen.intersection(generation), key=natural)
        ]

    def cycles(self) -> list[tuple[Address, ...]]:
        """Return one cycle of each group of addresses that depend on each other.

        `(a, b)` means that a depends on b and b on a. Doesn't import networkx if there is no cycle.
        """
        if not self._has_cycle():
            return []
        import networkx

        cycles = []
        for group in networkx.strongly_connected_components(self._graph):
            first = min(group)
            if len(group) == 1 and first not in self._dependencies.get(first, ()):
                continue
            edges = networkx.find_cycle(self._graph.subgraph(group).reverse(), first)
            nodes = [edge[0] for edge in edges]
            start = nodes.index(min(nodes))
            cycles.append(tuple(nodes[start:] + nodes[:start]))
        return sorted(cycles)

    def _has_cycle(self) -> bool:
        try:
            TopologicalSorter(self._dependencies).prepare()
        except CycleError:
            return True
        return False

    def impact(self, address: Address) -> Impact:
        """Return the queries that a change of a resource restarts, and the queries downstream of them.

        A change restarts the resource itself, if it is a query, and the queries that hold the resource
        inlined through connections, at any depth.
        """
        import networkx

        inlined = networkx.subgraph_view(self._graph, filter_edge=lambda used, _: used.is_connection)
        holders = {address, *(user for _, user in networkx.edge_bfs(inlined, [address]))}
        restarts = {holder for holder in holders if holder.is_query}
        downstream = self.all_dependents(restarts) - restarts
        return Impact(address, tuple(sorted(restarts, key=natural)), tuple(sorted(downstream, key=natural)))

    def chains(self, cause: Address) -> dict[Address, list[Address]]:
        """Return a shortest chain from the cause to each address that it reaches, with both ends."""
        import networkx

        chains: dict[Address, list[Address]] = networkx.single_source_shortest_path(self._graph, cause)
        chains.pop(cause, None)
        return chains
