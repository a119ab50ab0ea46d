"""The rows of a block as SQL: all that it may have had or has, or those that a change may affect."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from mzplan.schema.current.expressions import FaithfulSql, quoted
from mzplan.schema.relations.scopes import Relation
from mzplan.schema.relations.tree import Block, Input, Path

CHANGED = "_changed_"
"""Before a collection's name: its changed rows, as they were and as they are."""
ANY = "_any_"
"""Before a collection's name: its rows as they are, and its changed rows."""


class UntraceableError(Exception):
    """Raised if the affected rows can't be found at a reasonable cost; the text is the reason, a clause."""


@dataclass(frozen=True, slots=True)
class Derived:
    """A relation as SQL.

    - `sql`: a name, or a query in brackets.
    - `columns`: the names of its columns, by their positions in the block or collection; without those that
      can't be computed.
    """

    sql: str
    columns: Mapping[int, str]


class Rows:
    """Makes the relations of one query."""

    def __init__(self, inputs: Mapping[str, Input], faithful: FaithfulSql):
        self._inputs, self.faithful = inputs, faithful
        self._numbers = count()

    def alias(self) -> str:
        """Return a name for a relation that no other one has."""
        return f"t{next(self._numbers)}"

    def of_relation(self, relation: Relation, needed: Collection[int], path: Path | None) -> Derived:
        """Return a relation in FROM: all of its rows, or those that a change at the end of `path` may affect.

        `needed`: the positions of its columns that the reader needs.
        """
        if isinstance(relation.of, Block):
            return self.of_block(relation.of, needed, path)
        columns = self._inputs[relation.of].columns
        prefix = ANY if path is None else CHANGED
        return Derived(quoted(f"{prefix}{relation.of}"), dict(enumerate(quoted(c.name) for c in columns)))

    def of_block(self, block: Block, needed: Collection[int], path: Path | None) -> Derived:
        """Like `of_relation`, for a block."""
        from mzplan.schema.current.select import SelectRows

        if block.arms:
            return self._of_arms(block, needed, path)
        return SelectRows(self, block, path).derived(needed)

    def _of_arms(self, block: Block, needed: Collection[int], path: Path | None) -> Derived:
        """Return the rows of a UNION, INTERSECT or EXCEPT: those of the arms that can add rows.

        If LIMIT counts them, a changed row says nothing about the columns of the others.
        """
        is_union = type(block.node).__name__ == "Union"
        arms: Sequence[Block] = block.arms if is_union else block.arms[:1]
        if path is not None:
            needed = () if block.is_counted else needed
            (_, number), *below = path
            parts = [self.of_block(block.arms[number], needed, tuple(below))]
        else:
            parts = [self.of_block(arm, needed, None) for arm in arms]
        types = {position: _cast_to(block, position) for position in needed}
        columns = [p for p in sorted(needed) if all(p in part.columns for part in parts) and types[p] != ""]
        selects = (
            f"SELECT {', '.join(_items(part, columns, types)) or '1 AS c'} FROM {part.sql} AS {self.alias()}"
            for part in parts
        )
        return Derived(f"({' UNION ALL '.join(selects)})", {p: f"c{p}" for p in columns})


def _items(part: Derived, columns: Sequence[int], types: Mapping[int, str | None]) -> Iterator[str]:
    for position in columns:
        name, type_ = part.columns[position], types[position]
        yield f"{name if type_ is None else f'CAST({name} AS {type_})'} AS c{position}"


def _cast_to(block: Block, position: int) -> str | None:
    """Return the common type of a column of several arms; None if they have it, "" if it isn't known."""
    common = block.items[position].field.type
    arms = [arm.items[position].field.type for arm in block.arms]
    if None in arms or common is None:
        return ""
    return None if all(type_ == common for type_ in arms) else common
