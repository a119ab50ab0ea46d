"""A graph as SVG: nodes in columns, a link on each, and the edges between them.

Its colours are classes, which `graph.css` gives a light and a dark form; nothing in it needs a script.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mzplan.model.address import KINDS, Address
from mzplan.model.words import count
from mzplan.render.html import Markup, element
from mzplan.render.layout import ACROSS, HEIGHT, WIDTH, layered
from mzplan.render.text import cut

COLLAPSED = 60  # nodes; more are drawn by their connections
_PAGE = (
    1200  # pixels that a graph takes, if its nodes need not be wider than the widest nor narrower than WIDTH
)
_WIDEST = 340
_LINE = 16  # what one more line takes of a node's height


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnNode:
    """What is drawn as one box. `look` is its class (a condition, or what a plan does to it), `href` where a
    click leads, `weight` decides which look a group takes: that of its heaviest member. A line of their own
    have `place`, the connection that it uses, `rate` in rows per second, and `lag` with its unit."""

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
        """`shop_kafka · 12.5 rows/s · lag 7 records`"""
        rate = f"{self.rate:,.1f} rows/s" if self.rate is not None else ""
        return " · ".join(filter(None, (self.place, rate, self.lag and f"lag {self.lag}")))


def columns_of(references: Mapping[Address, Iterable[Address]]) -> dict[Address, int]:
    """The column of each address: kinds from left to right, and within a kind what is used before what uses
    it."""
    depth: dict[Address, int] = {}
    for kind in KINDS:
        addresses = [address for address in references if address.kind == kind]
        first = max(depth.values(), default=-1) + 1
        waiting = {
            a: [used for used in references[a] if used.kind == kind and used in references] for a in addresses
        }
        while waiting:  # as many rounds as connections are nested
            ready = [a for a, used in waiting.items() if not any(target in waiting for target in used)]
            for address in ready or list(waiting):  # the rest only if there is a circle
                depth[address] = max(
                    (depth.get(target, first) + 1 for target in waiting.pop(address)), default=first
                )
    return depth


def homes(references: Mapping[Address, Iterable[Address]]) -> dict[Address, Address | None]:
    """The connection of each query, by which it is grouped: its own first one, or that of what it reads."""
    home_of: dict[Address, Address | None] = {}
    for address in sorted(references, key=lambda a: KINDS.index(a.kind)):
        if address.kind != "connection":
            used = tuple(references[address])
            own = next((target for target in used if target.kind == "connection"), None)
            home_of[address] = own or next((home_of[target] for target in used if home_of.get(target)), None)
    return home_of


def collapsed(
    nodes: Mapping[Address, DrawnNode], home: Mapping[Address, Address | None], *, by_look: bool = False
) -> dict[Address, DrawnNode]:
    """For each address the node that stands for it: its own for a connection, else one for all queries of its
    kind and connection (and, `by_look`, of its look)."""
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
    of = f" of {home.name}" if home is not None else ""
    rates = [node.rate for node in members if node.rate is not None]
    return replace(
        heaviest,
        key=f"{kind} {home} {heaviest.look if len(looks) == 1 else ''}",
        title=f"{count(len(members), kind)}{of}",
        note=", ".join(f"{number:,} {look}" for look, number in looks),
        href=f"?connection={home.name}" if home is not None else "?all=1",
        place="",
        rate=sum(rates) if rates else None,
        lag="",
    )


def drawn(nodes: Iterable[DrawnNode], edges: Iterable[tuple[str, str]], label: str) -> Markup:
    """The graph; `label` says what it is to those who can't see it."""
    by_key = {node.key: node for node in nodes}
    columns = {key: node.column for key, node in by_key.items()}
    number = len(set(columns.values()))
    wide = min(_WIDEST, max(WIDTH, (_PAGE + ACROSS) // max(1, number) - ACROSS))
    high = HEIGHT + (_LINE if any(node.detail for node in by_key.values()) else 0)
    layout = layered(columns, edges, wide, high)
    ways: dict[str, list[str]] = defaultdict(list)
    for (a, _), way in layout.ways.items():
        ways[a].append(_curve(way))
    lines = [element("path", class_="edge", d=" ".join(parts)) for parts in ways.values()]
    boxes = [_box(node, *layout.places[node.key], wide, high) for node in by_key.values()]
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


def _curve(way: Sequence[tuple[int, int]]) -> str:
    """Through the points: curves between columns, straight lines across them."""
    (x, y), *rest = way
    parts = [f"M{x} {y}"]
    for number, (right, level) in enumerate(rest):
        half = (right - x) // 2
        parts.append(f"H{right}" if number % 2 else f"C{x + half} {y} {right - half} {level} {right} {level}")
        x, y = right, level
    return "".join(parts)


def _box(node: DrawnNode, x: int, y: int, wide: int, high: int) -> Markup:
    title, small = (wide - 24) // 8, wide * 2 // 13  # characters that fit it
    tooltip = ": ".join(filter(None, (node.title, ", ".join(filter(None, (node.note, node.detail))))))
    inside = [
        element("title", tooltip),
        element("rect", width=wide, height=high, rx=6),
        element("text", cut(node.title, title), x=12, y=18, class_="name"),
        element("text", cut(node.note, small), x=12, y=33, class_="note"),
        element("text", cut(node.detail, small), x=12, y=49, class_="detail") if node.detail else None,
    ]
    shape = element("g", inside, transform=f"translate({x} {y})")
    look = f"node {node.look}"
    if not node.href:
        return element("g", shape, class_=look, data_name=node.title)
    return element("a", shape, class_=look, href=node.href, data_name=node.title)
