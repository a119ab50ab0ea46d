"""The warnings at the top of a plan, in words. The plan's text, comment and page use them.

Also the Mermaid graph of a plan: changes, the queries they restart, and running queries downstream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mzplan.model.address import Address, natural, natural_item
from mzplan.model.plan import Change, FieldChange, Plan
from mzplan.plan.effects.targets import target_lines
from mzplan.plan.highlights import changed_settings, losses, restarts_elsewhere, row_changes, server_changes
from mzplan.render.html import many
from mzplan.render.text import MAX_SERVER_VALUE, cut, edit_of, safe

MAX_EDIT = 160  # characters of an edit
MAX_SERVER_EDITS = 60  # edits that change a server


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanWarning:
    """One warning.

    - `headline`: what happens (`2 queries pause`); `details`: further words about it.
    - `affected`: the affected addresses, or edits in one line each.
    - `is_loss`: whether something is lost.
    - `names_servers`: whether each entry is an edit that changes a server. The server is shown in full.
    - `is_obvious`: whether the list of changes shows it just as clearly.
    """

    headline: str
    affected: tuple[str, ...]
    details: str = ""
    is_loss: bool = False
    names_servers: bool = False
    is_obvious: bool = False


def warnings_of(plan: Plan) -> Iterator[PlanWarning]:
    """Yield the warnings of a plan, the most important first."""
    for loss in losses(plan):
        yield PlanWarning(
            headline=loss.summary,
            details=" (apply needs `--allow-loss`)",
            affected=(safe(loss.detail.partition("\n")[0].removesuffix(".")),),
            is_loss=True,
        )
    queries = [change for change in plan.changes if change.address.is_query]
    emptied = [change for change in queries if change.target and change.target.kind == "empties"]
    if emptied:
        yield PlanWarning(
            headline=many(len(emptied), "sink empties its target", "sinks empty their targets"),
            affected=tuple(f"{c.address} {next(target_lines(c)).removeprefix('empties ')}" for c in emptied),
            is_loss=True,
        )
    if listed := _with((c for c in queries if not c.migrates_rows), "replace"):
        begin = many(len(listed), "query begins", "queries begin")
        yield PlanWarning(
            headline=f"{begin} again and will read everything again",
            details=" (a new generation; apply needs `--allow-replace`)",
            affected=listed,
            is_loss=True,
        )
    if listed := tuple(str(change.address) for change in queries if change.migrates_rows):
        begin = many(len(listed), "source begins", "sources begin")
        whose = "its collection" if len(listed) == 1 else "their collections"
        yield PlanWarning(
            headline=f"{begin} again with the rows of {whose}",
            details=" (a new generation; apply needs `--allow-replace`)",
            affected=listed,
        )
    if listed := _with(queries, "delete"):
        yield PlanWarning(
            headline=f"{many(len(listed), 'query stops and is', 'queries stop and are')} deleted",
            affected=listed,
            is_loss=True,
        )
    if listed := _with(queries, "pause"):
        yield PlanWarning(headline=many(len(listed), "query pauses", "queries pause"), affected=listed)
    elsewhere = server_changes(plan)
    connections = [pair for pair in elsewhere if pair[0].address.is_connection]
    yield from _server_warnings(
        connections, "connection points to another server", "connections point to other servers"
    )
    rest = [pair for pair in elsewhere if pair[0].address.is_query]
    yield from _server_warnings(
        rest, "query uses another connection or instance", "queries use other connections or instances"
    )
    otherwise = row_changes(plan)
    if listed := _edits(otherwise):
        writes = many(len(listed), "sink writes", "sinks write")
        if any(change.address.writes_collection for change, _ in otherwise):
            writes = many(len(listed), "query writes", "queries write")
        yield PlanWarning(headline=f"{writes} other rows or columns", affected=listed)
    ahead, others = changed_settings(plan)
    if ahead:
        listed = tuple(_edit(field, MAX_SERVER_VALUE) for field in ahead)
        headline = f"{many(len(ahead), 'setting changes', 'settings change')} where runners report or listen"
        yield PlanWarning(headline=headline, affected=listed, names_servers=True)
    if listed := tuple(map(_edit, others)):
        verb = "changes" if len(listed) == 1 else "change"
        headline = f"{many(len(listed), 'setting')} of runners and instances {verb}"
        yield PlanWarning(headline=headline, affected=listed)
    if listed := _with(queries, "restart"):
        away = len(restarts_elsewhere(plan))
        yield PlanWarning(
            headline=many(len(listed), "query restarts", "queries restart"),
            details=f" from {'its checkpoint' if len(listed) == 1 else 'their checkpoints'}"
            + (f" ({away:,} elsewhere)" if away else ""),
            affected=listed,
            is_obvious=True,
        )


def _server_warnings(
    changes: Sequence[tuple[Change, tuple[FieldChange, ...]]], singular: str, plural: str
) -> Iterator[PlanWarning]:
    if changes:
        listed = tuple(
            f"{change.address} {_edit(field, MAX_SERVER_VALUE)}"
            for change, fields in changes
            for field in fields
        )
        yield PlanWarning(headline=many(len(changes), singular, plural), affected=listed, names_servers=True)


def _with(changes: Iterable[Change], fate: str) -> tuple[str, ...]:
    return tuple(str(change.address) for change in changes if change.fate == fate)


def _edits(changes: Iterable[tuple[Change, tuple[FieldChange, ...]]]) -> tuple[str, ...]:
    return tuple(f"{change.address} {', '.join(map(_edit, fields))}" for change, fields in changes)


def _edit(field: FieldChange, length: int = 0) -> str:
    """Format a changed field. `length` limits each value; 0: the whole edit fits into MAX_EDIT."""
    path = cut(safe(field.path), MAX_EDIT // 2)
    return f"{path} {edit_of(field, length or (MAX_EDIT - len(path)) // 2)}"


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
