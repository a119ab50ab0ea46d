"""Where the nodes of a layered graph stand: columns from left to right, as few crossings as two sweeps give.

Linear in nodes and edges but for sorting, so 1,000 queries are laid out in milliseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

Slot = tuple[str, int]  # a node, and a column: its own, or one that its edges pass

WIDTH = 170  # pixels, of a node
HEIGHT = 42
ACROSS = 50  # from one column to the next
_DOWN = 12  # from one node to the next
_LANE = 14  # what the edges of one node take that pass a column
_MARGIN = 6


@dataclass(frozen=True, slots=True)
class Layout:
    """In pixels. `places`: the upper left corner of each node. `ways`: the points that an edge goes through,
    from the right of its first node to the left of its last one."""

    width: int
    height: int
    places: Mapping[str, tuple[int, int]]
    ways: Mapping[tuple[str, str], tuple[tuple[int, int], ...]]


def layered(
    columns: Mapping[str, int],
    edges: Iterable[tuple[str, str]],
    wide: int = WIDTH,
    high: int = HEIGHT,
) -> Layout:
    """Lay out nodes that have a column each, all of one size in pixels. Edges go from a lower column to a
    higher one; others are left out. Equal input in equal order gives an equal layout."""
    drawn = [(a, b) for a, b in dict.fromkeys(edges) if columns[a] < columns[b]]
    slots: dict[int, dict[Slot, None]] = defaultdict(dict)
    for key, column in sorted(columns.items(), key=lambda item: item[1]):
        slots[column][key, column] = None
    links = _links(columns, drawn, slots)
    before, after = _neighbours(links)
    order = _ordered(
        {column: list(column_slots) for column, column_slots in sorted(slots.items())}, before, after
    )
    tops = _tops(order, before, after, columns, high)
    left = {column: _MARGIN + number * (wide + ACROSS) for number, column in enumerate(order)}
    places = {key: (left[column], round(tops[key, column])) for key, column in columns.items()}
    return Layout(
        width=max((x for x, _ in places.values()), default=0) + wide + _MARGIN,
        height=max((y for _, y in places.values()), default=0) + high + _MARGIN,
        places=places,
        ways={edge: tuple(_way(*edge, columns, tops, left, (wide, high))) for edge in drawn},
    )


def _links(
    columns: Mapping[str, int], edges: Iterable[tuple[str, str]], slots: dict[int, dict[Slot, None]]
) -> list[tuple[Slot, Slot]]:
    """The edges from column to column. All long ones of a node share a lane, which is added to `slots`."""
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
    """The slots of each column, sorted by the mean rank of their neighbours: sweeping once to the right,
    once to the left, and once more to the right."""
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
    high: int,
) -> dict[Slot, float]:
    """By slot, its top in pixels. The tallest column is packed; slots of other columns stand beside their
    neighbours, as far as there is room."""
    room = {
        slot: high + _DOWN if columns[slot[0]] == slot[1] else _LANE
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


def _way(
    a: str,
    b: str,
    columns: Mapping[str, int],
    tops: Mapping[Slot, float],
    left: Mapping[int, int],
    size: tuple[int, int],
) -> Iterator[tuple[int, int]]:
    wide, middle = size[0], size[1] // 2
    yield left[columns[a]] + wide, round(tops[a, columns[a]]) + middle
    for column in (c for c in left if columns[a] < c < columns[b]):
        top = round(tops[a, column])
        yield from ((left[column], top), (left[column] + wide, top))
    yield left[columns[b]], round(tops[b, columns[b]]) + middle


def _mean(numbers: Iterable[float], otherwise: float) -> float:
    values = list(numbers)
    return sum(values) / len(values) if values else otherwise
