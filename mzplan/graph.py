"""The dependency graph: what must come before what, what a change can reach, and why.

Order and reachability are on the path of every plan, so they use plain dicts and the standard
library's graphlib: importing networkx alone costs more CPU than a whole small plan may take. networkx
is imported only inside the functions that deserve it: cycles and chains, for error messages and for
`mzplan graph`. Everything is linear in nodes and edges.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Protocol

from mzplan.model.address import Address

if TYPE_CHECKING:
    import networkx


class HasReferences(Protocol):
    """A Resource or a ResourceState."""

    @property
    def references(self) -> Mapping[str, Address]: ...


@dataclass(frozen=True, slots=True)
class Impact:
    """What a change of a resource would restart, and which queries downstream would keep running."""

    address: Address
    restarts: tuple[Address, ...]
    downstream: tuple[Address, ...]


class DependencyGraph:
    """Addresses, and for each of them what it depends on.

    An address that is only depended on, and never given itself, is a node too (a dangling reference is
    for validation to report, not for the graph).
    """

    def __init__(self, dependencies: Mapping[Address, Iterable[Address]]):
        self._dependencies: dict[Address, tuple[Address, ...]] = {
            address: tuple(dict.fromkeys(needed)) for address, needed in dependencies.items()
        }

    @classmethod
    def of(cls, resources: Mapping[Address, HasReferences]) -> DependencyGraph:
        """The graph of the resources of a Configuration, or of a State."""
        return cls({address: resource.references.values() for address, resource in resources.items()})

    @classmethod
    def of_both(
        cls, wanted: Mapping[Address, HasReferences], committed: Mapping[Address, HasReferences]
    ) -> DependencyGraph:
        """The graph with the references of both: who uses something now, or will. It may have a cycle
        where neither alone has one, so it is for reach, not for order."""
        edges: dict[Address, list[Address]] = {}
        for resources in (wanted, committed):
            for address, resource in resources.items():
                edges.setdefault(address, []).extend(resource.references.values())
        return cls(edges)

    def __contains__(self, address: object) -> bool:
        return address in self._dependencies

    def __iter__(self) -> Iterator[Address]:
        return iter(self._dependencies)

    def __len__(self) -> int:
        return len(self._dependencies)

    @property
    def edges(self) -> Iterator[tuple[Address, Address]]:
        """Each (dependent, dependency)."""
        return ((a, b) for a, needed in self._dependencies.items() for b in needed)

    @cached_property
    def _dependents(self) -> dict[Address, list[Address]]:
        found: dict[Address, list[Address]] = {}
        for address, needed in self._dependencies.items():
            for dependency in needed:
                found.setdefault(dependency, []).append(address)
        return found

    def dependencies(self, address: Address) -> tuple[Address, ...]:
        """What it refers to itself, in the order of its references."""
        return self._dependencies.get(address, ())

    def dependents(self, address: Address) -> list[Address]:
        """What refers to it itself, sorted."""
        return sorted(self._dependents.get(address, ()))

    def reach(self, addresses: Iterable[Address]) -> set[Address]:
        """Everything that depends on any of them, at any depth; they themselves are not in it, unless
        one depends on another."""
        return _closure(addresses, self._dependents)

    def requirements(self, addresses: Iterable[Address]) -> set[Address]:
        """Everything that any of them depends on, at any depth."""
        return _closure(addresses, self._dependencies)

    def order(self, subset: Iterable[Address] | None = None) -> list[Address]:
        """The addresses (all, or a subset) in dependency order, and by address where it leaves a choice.

        An address comes in the round after the last of its dependencies, so the order of a subset is that
        of the whole. Costs the subset and its requirements, not the graph. Raises graphlib.CycleError.
        """
        chosen = set(self._dependencies if subset is None else subset)
        needed = chosen if subset is None else chosen | self.requirements(chosen)
        sorter = TopologicalSorter({address: self._dependencies.get(address, ()) for address in needed})
        sorter.prepare()
        result: list[Address] = []
        while sorter.is_active():
            ready = sorter.get_ready()
            result += sorted(address for address in ready if address in chosen)
            sorter.done(*ready)
        return result

    def cycles(self) -> list[tuple[Address, ...]]:
        """One cycle of each group of addresses that depend on each other, each from its first address.

        `(a, b)` means a depends on b and b on a. Empty, and without networkx, for a graph that has none.
        """
        if not self._has_cycle():
            return []
        import networkx

        graph = self.to_networkx()
        found = []
        for group in networkx.strongly_connected_components(graph):
            first = min(group)
            if len(group) == 1 and first not in self._dependencies.get(first, ()):
                continue
            edges = networkx.find_cycle(graph.subgraph(group), first)
            nodes = [edge[0] for edge in edges]
            start = nodes.index(min(nodes))
            found.append(tuple(nodes[start:] + nodes[:start]))
        return sorted(found)

    def _has_cycle(self) -> bool:
        try:
            TopologicalSorter(self._dependencies).prepare()
        except CycleError:
            return True
        return False

    def impact(self, address: Address) -> Impact:
        """What a change of one resource would restart: itself, if it is a query, or the queries that hold
        it inlined, through connections at any depth; and what is downstream of those."""
        restarts: set[Address] = set()
        waiting, seen = [address], {address}
        while waiting:
            found = waiting.pop()
            if found.kind != "connection":
                restarts.add(found)
                continue
            new = set(self._dependents.get(found, ())) - seen
            seen |= new
            waiting += new
        downstream = self.reach(restarts) - restarts
        return Impact(address, tuple(sorted(restarts)), tuple(sorted(downstream)))

    def chains(self, cause: Address) -> dict[Address, list[Address]]:
        """For everything that a cause reaches, one of the shortest chains from the cause to it, both
        included: why it is reached."""
        import networkx

        graph = self.to_networkx().reverse(copy=False)
        chains: dict[Address, list[Address]] = networkx.single_source_shortest_path(graph, cause)
        chains.pop(cause, None)
        return chains

    def to_networkx(self) -> networkx.DiGraph[Address]:
        """As a networkx graph, with an edge from each dependent to its dependency."""
        import networkx

        graph: networkx.DiGraph[Address] = networkx.DiGraph()
        graph.add_nodes_from(sorted(self._dependencies))
        graph.add_edges_from(sorted(self.edges))  # sorted, so that ties do not depend on the order of files
        return graph


def _closure(start: Iterable[Address], edges: Mapping[Address, Iterable[Address]]) -> set[Address]:
    found: set[Address] = set()
    waiting = list(start)
    while waiting:
        for address in edges.get(waiting.pop(), ()):
            if address not in found:
                found.add(address)
                waiting.append(address)
    return found
