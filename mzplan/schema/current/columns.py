"""Finds the relation and the position of each column that an expression in a SELECT names."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mzplan.schema.relations.scopes import Relation
from mzplan.schema.relations.tree import Block, Item, Join

Place = tuple[int, int]
"""A column: the number of its relation in the SELECT, and its position there."""


@dataclass(frozen=True, slots=True)
class Reference:
    """What a column stands for: the first value of `places` that isn't NULL, and the fields in it."""

    places: tuple[Place, ...]
    fields: tuple[str, ...] = ()


@dataclass(slots=True)
class Columns:
    """The columns of a SELECT.

    - `shared`: by name in lower case, the columns that USING and NATURAL have as one.
    - `pairs`: by the number of a joined relation, the columns that USING compares.
    - `hidden`: the relations of SEMI and ANTI joins, which only their own ON sees.
    """

    block: Block
    shared: dict[str, tuple[Place, ...]] = field(default_factory=dict)
    pairs: dict[int, list[tuple[Reference, Reference]]] = field(default_factory=dict)
    hidden: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        joins = {id(part.node): part for part in self.block.parts if isinstance(part, Join)}
        for number, (node, relation) in enumerate(self.block.sources):
            join = joins.get(id(node))
            if join is None:
                continue
            is_hidden = str(node.kind).upper() in ("SEMI", "ANTI")
            self.pairs[number] = []
            for name in join.using:
                left = self.named(name, number)
                right = ((number, position_of(relation, name)),)
                if left is None or right[0][1] < 0:
                    continue
                self.pairs[number].append((Reference(left), Reference(right)))
                if not is_hidden:
                    both = {"RIGHT": right, "FULL": left + right}
                    self.shared[name] = both.get(join.side, left)
            if is_hidden:
                self.hidden.add(number)

    def find(self, column: Any, upto: int | None = None) -> Reference | None:
        """Return what a column stands for; None for a column of another SELECT, or the name of an item.

        `upto`: the relation whose ON has the column, which sees only the relations before it, and itself.
        """
        names = [str(part.name) for part in column.parts]
        lower, seen = [name.lower() for name in names], self._seen(upto)
        if len(names) > 1:
            for number, relation in seen:
                if relation.name == lower[0] and (position := position_of(relation, lower[1])) >= 0:
                    return Reference(((number, position),), tuple(names[2:]))
        places = self.named(lower[0], None if upto is None else upto + 1, upto)
        return Reference(places, tuple(names[1:])) if places is not None else None

    def named(self, name: str, below: int | None, joined: int | None = None) -> tuple[Place, ...] | None:
        """Return the columns that a name without a qualifier stands for.

        `below`: the number of the first relation that isn't seen. `joined`: see `_seen`.
        """
        shared = self.shared.get(name)
        if shared is not None and (joined is None or max(shared)[0] <= joined):
            return shared
        places = [
            (number, position)
            for number, relation in self._seen(joined)
            if (below is None or number < below) and (position := position_of(relation, name)) >= 0
        ]
        return (places[0],) if len(places) == 1 else None

    def tree_of(self, item: Item) -> Any:
        """Return an item's expression; for a column that `*` has of several, the column without qualifier."""
        from sqlglot import exp

        tree = item.tree
        own = (column for _, relation in self.block.sources for column in relation.fields)
        is_shared = isinstance(tree, exp.Column) and len(item.field.parts) == 2
        if is_shared and not any(column is item.field for column in own):
            return exp.column(item.field.name)
        return tree

    def _seen(self, joined: int | None) -> list[tuple[int, Relation]]:
        """Return the relations that an expression sees. `joined`: the relation whose ON has it."""
        return [
            (number, relation)
            for number, (_, relation) in enumerate(self.block.sources)
            if (number not in self.hidden or number == joined) and (joined is None or number <= joined)
        ]


def position_of(relation: Relation, name: str) -> int:
    """Return the position of a column; -1 if there is none of this name."""
    names = [column.name.lower() for column in relation.fields]
    return names.index(name.lower()) if name.lower() in names else -1
