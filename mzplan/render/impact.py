"""The Mermaid graph of a plan: changes, the queries they restart, and running queries downstream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from mzplan.model.address import Address, natural, natural_item
from mzplan.model.plan import Plan
from mzplan.render.markup import many

MAX_NODES = 40  # a larger graph isn't readable, so it is grouped
MAX_CONNECTIONS = 12  # a grouped graph with more connections groups them too
VERBS = {
    "create": "is new",
    "update": "changes",
    "restart": "restarts",
    "replace": "begins again",
    "delete": "is deleted",
    "move": "is renamed",
    "pause": "pauses",
    "resume": "resumes",
    "running": "keeps running",
    "kept": "",
}
_PLURALS = {"create": "are new", "update": "change", "restart": "restart", "replace": "begin again"} | {
    "delete": "are deleted",
    "move": "are renamed",
    "pause": "pause",
    "resume": "resume",
    "running": "keep running",
}
_STYLES = (
    "classDef create fill:#d1fae5,stroke:#047857,color:#000",
    "classDef update fill:#e0e7ff,stroke:#4338ca,color:#000,stroke-width:3px",
    "classDef restart fill:#fde68a,stroke:#b45309,color:#000",
    "classDef replace fill:#fecaca,stroke:#b91c1c,color:#000",
    "classDef delete fill:#e5e7eb,stroke:#374151,color:#000,stroke-dasharray:4",
    "classDef move fill:#e0e7ff,stroke:#4338ca,color:#000",
    "classDef pause fill:#fef3c7,stroke:#b45309,color:#000,stroke-dasharray:4",
    "classDef resume fill:#fde68a,stroke:#b45309,color:#000",
    "classDef running fill:#ecfdf5,stroke:#059669,color:#000",
    "classDef kept fill:#ffffff,stroke:#9ca3af,color:#000",
)

Node = tuple[str, str]  # label, fate


def impact_graph(plan: Plan) -> str:
    """Return a flowchart, connection → restarted → kept running; "" for a plan without changes."""
    if not plan.changes:
        return ""
    fates: dict[Address, str] = {change.address: change.fate for change in plan.changes}
    fates |= dict.fromkeys(plan.downstream, "running")
    edges = edges_of(plan, fates)
    nodes = _grouped(fates) if len(fates) > MAX_NODES else _single(fates)
    return "\n".join(_lines(nodes, edges, {fate for _, fate in nodes.values()}))


def edges_of(plan: Plan, fates: Mapping[Address, str]) -> list[tuple[Address, Address]]:
    """Return the dependencies between the resources in `fates`, as (used, user), sorted."""
    edges = {(cause, change.address) for change in plan.changes for cause in change.triggered_by}
    for change in plan.changes:
        record = change.after or change.before
        if record is not None:
            edges |= {(target, change.address) for target in record.references.values()}
    edges |= set(plan.feeds)
    shown = [(used, user) for used, user in edges if used in fates and user in fates]
    return sorted(shown, key=lambda edge: (natural(edge[0]), natural(edge[1])))


def _single(fates: Mapping[Address, str]) -> dict[Address, Node]:
    return {
        address: (f"{address}<br/>{VERBS[fate]}" if VERBS[fate] else str(address), fate)
        for address, fate in sorted(fates.items(), key=natural_item)
    }


def _grouped(fates: Mapping[Address, str]) -> dict[Address, Node]:
    """Return the node of each address: its group's node, or its own for a connection if there are few."""
    sizes = Counter((address.kind, fate) for address, fate in fates.items())
    connections = sum(number for (kind, _), number in sizes.items() if kind == "connection")
    nodes: dict[Address, Node] = {}
    for address, fate in sorted(fates.items(), key=natural_item):
        number = sizes[address.kind, fate]
        if number == 1 or (address.is_connection and connections <= MAX_CONNECTIONS):
            nodes[address] = (f"{address}<br/>{VERBS[fate]}", fate)
        else:
            nodes[address] = (f"{many(number, address.kind)} {_PLURALS[fate]}", fate)
    return nodes


def _lines(
    nodes: Mapping[Address, Node], edges: list[tuple[Address, Address]], fates: set[str]
) -> Iterator[str]:
    yield "flowchart LR"
    # Ids are generated, because a resource's name could be a keyword of Mermaid (`end`).
    ids = {node: f"n{number}" for number, node in enumerate(dict.fromkeys(nodes.values()))}
    for node, id_ in ids.items():
        label, fate = node
        yield f'  {id_}["{label}"]:::{fate}'
    for used, user in dict.fromkeys((ids[nodes[a]], ids[nodes[b]]) for a, b in edges):
        if used != user:
            yield f"  {used} --> {user}"
    yield from (f"  {style}" for style in _STYLES if style.split()[1] in fates)
