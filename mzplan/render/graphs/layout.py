"""The layout of a layered graph: columns from left to right, with few crossings after three sweeps.

It is linear in nodes and edges except for sorting, so 1,000 queries take milliseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

Slot = tuple[str, int]  # a node, and its own column or a column that its edges pass

WIDTH = 170  # of a node, in pixels
HEIGHT = 42
ACROSS = 50  # between columns
_DOWN = 12  # between nodes in a column
_LANE = 14  # height that a node's edges take in a column that they pass
_MARGIN = 6


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout in pixels.

    - `places`: the upper left corner of each node.
    - `edge_points`: the points of each edge, from the right of its first node to the left of its last one.
    """

    width: int
    height: int
    places: Mapping[str, tuple[int, int]]
    edge_points: Mapping[tuple[str, str], tuple[tuple[int, int], ...]]


def lay_out(
    columns: Mapping[str, int],
    edges: Iterable[tuple[str, str]],
    width: int = WIDTH,
    height: int = HEIGHT,
) -> Layout:
    """Return the positions, in pixels, of equal-sized nodes in their given columns.

    Draws only edges from a lower column to a higher one. The same input in the same order gives the same
    layout.
    """
    drawn_edges = [(a, b) for a, b in dict.fromkeys(edges) if columns[a] < columns[b]]
    slots: dict[int, dict[Slot, None]] = defaultdict(dict)
    for key, column in sorted(columns.items(), key=lambda item: item[1]):
        slots[column][key, column] = None
    links = _links(columns, drawn_edges, slots)
    before, after = _neighbours(links)
    order = _ordered(
        {column: list(column_slots) for column, column_slots in sorted(slots.items())}, before, after
    )
    tops = _tops(order, before, after, columns, height)
    left = {column: _MARGIN + number * (width + ACROSS) for number, column in enumerate(order)}
    places = {key: (left[column], round(tops[key, column])) for key, column in columns.items()}
    return Layout(
        width=max((x for x, _ in places.values()), default=0) + width + _MARGIN,
        height=max((y for _, y in places.values()), default=0) + height + _MARGIN,
        places=places,
        edge_points={
            edge: tuple(_points(*edge, columns, tops, left, (width, height))) for edge in drawn_edges
        },
    )


def _links(
    columns: Mapping[str, int], edges: Iterable[tuple[str, str]], slots: dict[int, dict[Slot, None]]
) -> list[tuple[Slot, Slot]]:
    """Split the edges into links between consecutive columns, and return the links.

    Adds a slot to `slots` for each column that a node's edges pass. All edges of the node share this slot.
    """
    used = sorted(slots)
    links: dict[tuple[Slot, Slot], None] = {}
    for a, b in edges:
        passed = [(a, column) for column in used if columns[a] <= column < columns[b]]
        for lane in passed:
            slots[lane[1]][lane] = None
        links |= dict.fromkeys(pairwise([*passed, (b, columns[b])]))
    return list(links)


def _neighbours(links: list[tuple[Slot, Slot]]) -> tuple[dict[Slot, list[Slot]], dict[Slot, list[Slot]]]:
    before: dict[Slot, list[Slot]] = defaultdict(list)
    after: dict[Slot, list[Slot]] = defaultdict(list)
    for slot, other in links:
        after[slot].append(other)
        before[other].append(slot)
    return before, after


def _ordered(
    slots: dict[int, list[Slot]], before: Mapping[Slot, list[Slot]], after: Mapping[Slot, list[Slot]]
) -> dict[int, list[Slot]]:
    """Return the slots of each column, sorted by the mean rank of their neighbours.

    It sweeps once to the right, once to the left, and once more to the right.
    """
    rank = {
        slot: n / len(column_slots) for column_slots in slots.values() for n, slot in enumerate(column_slots)
    }
    columns = list(slots)
    for sweep, neighbours in ((columns, before), (columns[::-1], after), (columns, before)):
        for column in sweep:
            means = {
                slot: _mean((rank[neighbour] for neighbour in neighbours.get(slot, ())), rank[slot])
                for slot in slots[column]
            }
            slots[column].sort(key=means.__getitem__)
            rank |= {slot: n / len(slots[column]) for n, slot in enumerate(slots[column])}
    return slots


def _tops(
    order: Mapping[int, list[Slot]],
    before: Mapping[Slot, list[Slot]],
    after: Mapping[Slot, list[Slot]],
    columns: Mapping[str, int],
    height: int,
) -> dict[Slot, float]:
    """Return the top of each slot in pixels.

    The tallest column is packed. Slots of other columns are placed beside their neighbours if there is room.
    """
    room = {
        slot: height + _DOWN if columns[slot[0]] == slot[1] else _LANE
        for column_slots in order.values()
        for slot in column_slots
    }
    every = list(order)
    tallest = max(every, key=lambda c: sum(room[slot] for slot in order[c]), default=0)
    tops: dict[Slot, float] = {}
    for column in [
        *(c for c in every if c == tallest),
        *(c for c in reversed(every) if c < tallest),
        *(c for c in every if c > tallest),
    ]:
        neighbours = after if column < tallest else before
        least = float(_MARGIN)
        for slot in order[column]:
            near = (tops[neighbour] for neighbour in neighbours.get(slot, ()) if neighbour in tops)
            wanted = least if column == tallest else _mean(near, least)
            tops[slot] = max(least, wanted)
            least = tops[slot] + room[slot]
    return tops


def _points(
    a: str,
    b: str,
    columns: Mapping[str, int],
    tops: Mapping[Slot, float],
    left: Mapping[int, int],
    size: tuple[int, int],
) -> Iterator[tuple[int, int]]:
    width, middle = size[0], size[1] // 2
    yield left[columns[a]] + width, round(tops[a, columns[a]]) + middle
    for column in (c for c in left if columns[a] < c < columns[b]):
        top = round(tops[a, column])
        yield from ((left[column], top), (left[column] + width, top))
    yield left[columns[b]], round(tops[b, columns[b]]) + middle


def _mean(numbers: Iterable[float], otherwise: float) -> float:
    values = list(numbers)
    return sum(values) / len(values) if values else otherwise
