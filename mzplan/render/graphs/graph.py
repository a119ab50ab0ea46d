"""The dependency graph as text, Mermaid, DOT or JSON: all of it, or the part that a change reaches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from mzplan.model.address import Address, natural
from mzplan.model.graph import DependencyGraph, Impact
from mzplan.model.resources import Configuration
from mzplan.model.words import count
from mzplan.render.text import safe_json


def render_graph(
    configuration: Configuration, *, impact: Address | None = None, format: str = "mermaid"
) -> str:
    """Format the graph, ending in a newline. Arrows point from a resource to its dependents.

    `impact` limits it to the resources that a change of this one reaches. Queries that restart are marked
    differently from downstream queries that keep running. Raises ValueError for an unknown format.
    """
    drawing = _Drawing(configuration, impact)
    match format:
        case "text":
            return "\n".join(drawing.text()) + "\n"
        case "mermaid":
            return "\n".join(drawing.mermaid()) + "\n"
        case "dot":
            return "\n".join(drawing.dot()) + "\n"
        case "json":
            return safe_json(json.dumps(drawing.json(), indent=2, ensure_ascii=False)) + "\n"
    raise ValueError(f"unknown format {format!r}")


class _Drawing:
    def __init__(self, configuration: Configuration, impact: Address | None):
        self.resources = configuration.resources
        self.graph = DependencyGraph.of(configuration.resources)
        self.impact: Impact | None = None
        shown = set(self.graph)
        if impact is not None:
            self.impact = self.graph.impact(impact)
            shown = {impact, *self.graph.all_dependents([impact])}
        self.nodes = self.graph.order(shown)
        self.edges = [
            (b, a) for a in self.nodes for b in sorted(self.graph.dependencies(a), key=natural) if b in shown
        ]

    def text(self) -> Iterator[str]:
        if self.impact:
            yield _summary(self.impact)
        for address in self.nodes:
            fate = self._fate(address)
            used = ", ".join(str(used) for used, user in self.edges if user == address)
            yield f"  {self._label(address)}{f': {fate}' if fate else ''}{f'; uses {used}' if used else ''}"

    def mermaid(self) -> Iterator[str]:
        if self.impact:
            yield f"%% {_summary(self.impact)}"
        yield "flowchart LR"
        for address in self.nodes:
            yield f'  {_id(address)}["{self._label(address)}"]{self._class(address)}'
        for used, user in self.edges:
            yield f"  {_id(used)} --> {_id(user)}"
        if self.impact:
            yield "  classDef changed stroke-width:3px"
            yield "  classDef restarts fill:#fde68a,stroke:#b45309,color:#000"
            yield "  classDef running fill:#d1fae5,stroke:#047857,color:#000"

    def dot(self) -> Iterator[str]:
        if self.impact:
            yield f"// {_summary(self.impact)}"
        yield "digraph mzplan {"
        yield "  rankdir=LR;"
        for address in self.nodes:
            style = {
                "restarts": ' style=filled fillcolor="#fde68a"',
                "running": ' style=filled fillcolor="#d1fae5"',
            }
            extra = style.get(self._fate(address), "")
            yield f'  "{address}" [label="{self._label(address)}"{extra}];'
        for used, user in self.edges:
            yield f'  "{used}" -> "{user}";'
        yield "}"

    def json(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "nodes": [{"address": str(a), "type": self.resources[a].type} for a in self.nodes],
            "edges": [{"from": str(used), "to": str(user)} for used, user in self.edges],
        }
        if self.impact:
            chains = self.graph.chains(self.impact.address)
            document["impact"] = {
                "address": str(self.impact.address),
                "restarts": [str(address) for address in self.impact.restarts],
                "downstream": [str(address) for address in self.impact.downstream],
                "why": {str(a): [str(step) for step in chains[a]] for a in self.nodes if a in chains},
            }
        return document

    def _label(self, address: Address) -> str:
        return f"{address} ({self.resources[address].type})".replace('"', "'")

    def _class(self, address: Address) -> str:
        fate = self._fate(address)
        return f":::{fate}" if fate else ""

    def _fate(self, address: Address) -> str:
        if self.impact is None:
            return ""
        if address in self.impact.restarts:
            return "restarts"
        if address in self.impact.downstream:
            return "running"
        return "changed"


def _id(address: Address) -> str:
    # Ids are unique: names consist of small letters, digits and underscores, and kinds have no underscore.
    return f"{address.kind}_{address.name}"


def _summary(impact: Impact) -> str:
    restarts = count(len(impact.restarts), "query", "queries")
    running = count(len(impact.downstream), "query", "queries")
    keep = "keeps" if len(impact.downstream) == 1 else "keep"
    return f"A change of {impact.address} restarts {restarts}; {running} downstream {keep} running."
