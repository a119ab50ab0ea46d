"""What a column reaches, as text, Mermaid, Graphviz DOT or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from mzplan.model.address import Address
from mzplan.model.graph import DependencyGraph
from mzplan.model.words import count, listed
from mzplan.render.text import safe_json
from mzplan.schema.lineage import Reached, Resources, reach_of_column
from mzplan.schema.source_columns import columns_of


def render_column_graph(
    resources: Resources, address: Address, column: str, *, format: str = "mermaid"
) -> str:
    """Format the queries that a column of a collection reaches, ending in a newline.

    Raises ValueError for an unknown format.
    """
    drawing = _Drawing(resources, address, column)
    match format:
        case "text":
            return "\n".join(drawing.text()) + "\n"
        case "mermaid":
            return "\n".join(drawing.mermaid()) + "\n"
        case "dot":
            return "\n".join(drawing.dot()) + "\n"
        case "json":
            return drawing.json()
    raise ValueError(f"unknown format {format!r}")


def reach_of_columns(
    address: Address, resources: Resources, graph: DependencyGraph
) -> list[tuple[str, Mapping[Address, str]]]:
    """Return the columns of a collection, each with the queries that it reaches and how they use it."""
    resource = resources[address]
    columns = columns_of(resource.type, resource.body) if address.writes_collection else ()
    reached = ((c.name, reach_of_column(address, [c.name], resources, graph)) for c in columns)
    return [(name, {a: reached_text(one) for a, one in found.items()}) for name, found in reached]


def reached_text(reached: Reached) -> str:
    """Return how a query depends on a column: "total, and its rows"."""
    columns = listed(reached.columns)
    if reached.rows:
        return f"{columns}, and which rows it has" if columns else "which rows it has"
    return columns or "names it, but its result doesn't need it"


class _Drawing:
    def __init__(self, resources: Resources, address: Address, column: str):
        self.resources, self.address, self.column = resources, address, column
        self.reached = reach_of_column(address, [column], resources)
        nodes = [address, *self.reached]
        self.edges = [
            (used, user)
            for user in self.reached
            for used in sorted(set(resources[user].references.values()))
            if used in nodes
        ]

    @property
    def summary(self) -> str:
        number = count(len(self.reached), "query", "queries")
        return f"{self.address}.{self.column} reaches {number}"

    def text(self) -> Iterator[str]:
        yield f"{self.summary}{':' if self.reached else '.'}"
        width = max((len(str(a)) for a in self.reached), default=0)
        for address, reached in self.reached.items():
            yield f"  {str(address).ljust(width)}  {reached_text(reached)}"

    def mermaid(self) -> Iterator[str]:
        yield f"%% {self.summary}."
        yield "flowchart LR"
        for address, (name, reached) in self._labels():
            yield f'  {_id(address)}["{name}<br>{reached}"]'
        for used, user in self.edges:
            yield f"  {_id(used)} --> {_id(user)}"

    def dot(self) -> Iterator[str]:
        yield f"// {self.summary}."
        yield "digraph mzplan {"
        yield "  rankdir=LR;"
        for address, (name, reached) in self._labels():
            yield f'  "{address}" [label="{name}\\n{reached}"];'
        for used, user in self.edges:
            yield f'  "{used}" -> "{user}";'
        yield "}"

    def json(self) -> str:
        columns = [
            {"address": str(address), "columns": list(reached.columns), "rows": reached.rows}
            for address, reached in self.reached.items()
        ]
        nodes = [{"address": str(a), "type": self.resources[a].type} for a in (self.address, *self.reached)]
        document = {
            "nodes": nodes,
            "edges": [{"from": str(used), "to": str(user)} for used, user in self.edges],
            "impact": {"address": str(self.address), "column": self.column, "columns": columns},
        }
        return safe_json(json.dumps(document, indent=2, ensure_ascii=False)) + "\n"

    def _labels(self) -> Iterator[tuple[Address, tuple[str, str]]]:
        """Yield the two lines of each node."""
        yield self.address, (str(self.address), self.column.replace('"', "'"))
        for address, reached in self.reached.items():
            yield address, (str(address), reached_text(reached).replace('"', "'"))


def _id(address: Address) -> str:
    return f"{address.kind}_{address.name}"
