"""A graph as SVG: nodes in columns, each with a link, and the edges between them.

The colours are classes. `graph.css` gives them a light and a dark form. The SVG needs no script.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mzplan.model.address import KINDS, Address
from mzplan.model.words import count
from mzplan.render.graphs.layout import ACROSS, HEIGHT, WIDTH, lay_out
from mzplan.render.html import Markup, element
from mzplan.render.text import cut

COLLAPSED = 60  # nodes; larger graphs are grouped by connection
_PAGE = 1200  # width of a graph in pixels; nodes are between WIDTH and _WIDEST wide
_MAX_WIDTH = 340
_LINE = 16  # height of an extra line in a node


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnNode:
    """One box in the drawing.

    - `look`: its CSS class: a condition, or the plan's effect on it.
    - `href`: the target of a click.
    - `weight`: a group of nodes has the look of its heaviest member.
    - `place`: the connection that it uses. `rate`: rows per second. `lag`: with its unit. These three are on
      an extra line.
    """

    key: str
    column: int
    title: str
    note: str
    look: str
    href: str = ""
    weight: int = 0
    place: str = ""
    rate: float | None = None
    lag: str = ""

    @property
    def detail(self) -> str:
        """The extra line: `shop_kafka · 12.5 rows/s · lag 7 records`."""
        rate = f"{self.rate:,.1f} rows/s" if self.rate is not None else ""
        return " · ".join(filter(None, (self.place, rate, self.lag and f"lag {self.lag}")))


def columns_of(references: Mapping[Address, Iterable[Address]]) -> dict[Address, int]:
    """Return the column of each address: kinds from left to right, and dependencies before dependents."""
    depth: dict[Address, int] = {}
    for kind in KINDS:
        addresses = [address for address in references if address.kind == kind]
        first = max(depth.values(), default=-1) + 1
        waiting = {
            a: [used for used in references[a] if used.kind == kind and used in references] for a in addresses
        }
        while waiting:  # one round for each level of nesting
            ready = [a for a, used in waiting.items() if not any(target in waiting for target in used)]
            for address in ready or list(waiting):  # take the rest only if there is a cycle
                depth[address] = max(
                    (depth.get(target, first) + 1 for target in waiting.pop(address)), default=first
                )
    return depth


def home_connections(references: Mapping[Address, Iterable[Address]]) -> dict[Address, Address | None]:
    """Return the connection that each query is grouped by: its own, or the connection of its input."""
    home_of: dict[Address, Address | None] = {}
    for address in sorted(references, key=lambda a: KINDS.index(a.kind)):
        if address.is_query:
            used = tuple(references[address])
            own = next((target for target in used if target.is_connection), None)
            home_of[address] = own or next((home_of[target] for target in used if home_of.get(target)), None)
    return home_of


def collapse(
    nodes: Mapping[Address, DrawnNode], home: Mapping[Address, Address | None], *, by_look: bool = False
) -> dict[Address, DrawnNode]:
    """Return the node to draw for each address.

    A connection has its own node. All queries with the same kind and connection (and, `by_look`, the same
    look) share one.
    """
    groups: dict[tuple[str, Address | None, str], list[DrawnNode]] = defaultdict(list)
    key_of = {a: (a.kind, home[a], nodes[a].look if by_look else "") for a in nodes if a in home}
    for address, key in key_of.items():
        groups[key].append(nodes[address])
    group_nodes = {key: _group(key[0], key[1], members) for key, members in groups.items()}
    return {
        address: group_nodes[key_of[address]] if address in key_of else nodes[address] for address in nodes
    }


def _group(kind: str, home: Address | None, members: Sequence[DrawnNode]) -> DrawnNode:
    if len(members) == 1:
        return members[0]
    heaviest = max(members, key=lambda node: node.weight)
    looks = Counter(node.look for node in members).most_common()
    suffix = f" of {home.name}" if home is not None else ""
    rates = [node.rate for node in members if node.rate is not None]
    return replace(
        heaviest,
        key=f"{kind} {home} {heaviest.look if len(looks) == 1 else ''}",
        title=f"{count(len(members), kind)}{suffix}",
        note=", ".join(f"{number:,} {look}" for look, number in looks),
        href=f"?connection={home.name}" if home is not None else "?all=1",
        place="",
        rate=sum(rates) if rates else None,
        lag="",
    )


def draw(
    nodes: Mapping[Address, DrawnNode], references: Mapping[Address, Iterable[Address]], label: str
) -> Markup:
    """Draw the nodes and the references between them. Several addresses may share a node.

    Rows flow from left to right. A sink's connection is to its right, and is drawn twice if sources also use
    it. `label` describes the drawing to screen readers.
    """
    sides = _sides(references)
    last = max((node.column for node in nodes.values()), default=0)
    targets = {
        address: replace(nodes[address], key=f"{nodes[address].key} as a target", column=last + 1 + depth)
        for address, depth in sides.targets.items()
    }
    edges: list[tuple[str, str]] = []
    for user, used in _pairs(references):
        if used in targets and (user in targets or user.writes_target):
            edges.append((targets.get(user, nodes[user]).key, targets[used].key))
        if used.is_query or (used in sides.origins and not user.writes_target):
            edges.append((nodes[used].key, nodes[user].key))
    left = [node for address, node in nodes.items() if address not in targets or address in sides.origins]
    return _drawing([*left, *targets.values()], edges, label)


@dataclass(frozen=True, slots=True)
class _Sides:
    """The connections on the left (`origins`) and on the right (`targets`).

    `targets`: for each connection on the right, how many columns it is behind the sinks.
    """

    origins: frozenset[Address]
    targets: Mapping[Address, int]


def _pairs(references: Mapping[Address, Iterable[Address]]) -> Iterator[tuple[Address, Address]]:
    for address, all_used in references.items():
        yield from ((address, used) for used in all_used)


def _sides(references: Mapping[Address, Iterable[Address]]) -> _Sides:
    users: dict[Address, list[Address]] = defaultdict(list)
    for user, used in _pairs(references):
        users[used].append(user)
    targets: dict[Address, int] = {}
    waiting = [(used, 0) for user in references if user.writes_target for used in references[user]]
    while waiting:
        address, depth = waiting.pop()
        if address.is_connection and targets.get(address, -1) < depth <= len(references):
            targets[address] = depth
            waiting += [(used, depth + 1) for used in references[address]]
    origins: set[Address] = set()
    below = [a for a in references if a.reads_upstream or (a.is_connection and not users[a])]
    while below:
        address = below.pop()
        if address not in origins:
            origins.add(address)
            below += [used for used in references[address] if used.is_connection]
    return _Sides(frozenset(origins), targets)


def _drawing(nodes: Iterable[DrawnNode], edges: Iterable[tuple[str, str]], label: str) -> Markup:
    by_key = {node.key: node for node in nodes}
    columns = {key: node.column for key, node in by_key.items()}
    number = len(set(columns.values()))
    width = min(_MAX_WIDTH, max(WIDTH, (_PAGE + ACROSS) // max(1, number) - ACROSS))
    height = HEIGHT + (_LINE if any(node.detail for node in by_key.values()) else 0)
    layout = lay_out(columns, edges, width, height)
    curves: dict[str, list[str]] = defaultdict(list)
    for (a, _), points in layout.edge_points.items():
        curves[a].append(_curve(points))
    lines = [element("path", class_="edge", d=" ".join(parts)) for parts in curves.values()]
    boxes = [_box(node, *layout.places[node.key], width, height) for node in by_key.values()]
    return element(
        "svg",
        element("g", lines, aria_hidden="true"),
        boxes,
        class_="graph",
        width=layout.width,
        height=layout.height,
        viewBox=f"0 0 {layout.width} {layout.height}",
        role="group",
        aria_label=label,
    )


def _curve(points: Sequence[tuple[int, int]]) -> str:
    """Return the path through the points: curves between columns, straight lines across them."""
    (x, y), *rest = points
    parts = [f"M{x} {y}"]
    for number, (right, level) in enumerate(rest):
        half = (right - x) // 2
        parts.append(f"H{right}" if number % 2 else f"C{x + half} {y} {right - half} {level} {right} {level}")
        x, y = right, level
    return "".join(parts)


def _box(node: DrawnNode, x: int, y: int, width: int, height: int) -> Markup:
    title, note_length = (width - 24) // 8, width * 2 // 13  # characters that fit
    tooltip = ": ".join(filter(None, (node.title, ", ".join(filter(None, (node.note, node.detail))))))
    inside = [
        element("title", tooltip),
        element("rect", width=width, height=height, rx=6),
        element("text", cut(node.title, title), x=12, y=18, class_="name"),
        element("text", cut(node.note, note_length), x=12, y=33, class_="note"),
        element("text", cut(node.detail, note_length), x=12, y=49, class_="detail") if node.detail else None,
    ]
    shape = element("g", inside, transform=f"translate({x} {y})")
    look = f"node {node.look}"
    if not node.href:
        return element("g", shape, class_=look, data_name=node.title)
    return element("a", shape, class_=look, href=node.href, data_name=node.title)
