"""The rows that a part of a query gives: their columns in normal form, and what is below them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mzplan.schema.states.normal import Normal, UndecidedError

Names = Mapping[str, "Named"]


@dataclass(frozen=True, slots=True)
class Named:
    """A query that WITH names, and the names that it can use itself."""

    query: Any
    names: Names
    columns: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Output:
    """A column of rows."""

    name: str
    value: Normal


@dataclass(slots=True)
class Rows:
    """Rows of a query.

    - `source`: the collection, operator or union that the rows come from, and what multiplies them.
    - `filters`: the conditions on them since then.
    - `operators`: the numbers of all stateful operators below.
    - `aggregation`: the number of the aggregation that only projections and conditions separate from them.
    - `renames`: a SELECT since then renames or computes columns.
    - `is_united`: some conditions are in the SELECTs of a UNION.
    """

    outputs: list[Output]
    source: str
    filters: list[Normal] = field(default_factory=list)
    operators: tuple[int, ...] = ()
    aggregation: int | None = None
    renames: bool = False
    is_united: bool = False

    def renamed(self, names: Sequence[str]) -> Rows:
        """Return the rows with other names for their columns; unchanged without names."""
        if not names:
            return self
        if len(names) != len(self.outputs):
            raise UndecidedError("a relation has another number of columns than its alias lists")
        outputs = [Output(name, one.value) for name, one in zip(names, self.outputs, strict=True)]
        return replace(self, outputs=outputs, filters=list(self.filters), renames=True)


@dataclass(slots=True)
class Operator:
    """A stateful operator while its query is read.

    - `kind`: `aggregation`, `DISTINCT`, `join`, `left outer join`, ….
    - `keys`: in the order in which Spark stores them. For a join, the pairs that its ON compares.
    - `values`: by reference, the aggregates in the order of the text.
    - `sides`: the rows below; two for a join. `kept`: for each side of a join, its columns by reference.
    - `conditions`: the other conditions of a join, in order.
    - `orders`: the orders in which queries above name the values.
    """

    kind: str
    sides: list[Rows]
    keys: list[Normal] = field(default_factory=list)
    values: dict[str, Normal] = field(default_factory=dict)
    kept: list[dict[str, Normal]] = field(default_factory=list)
    conditions: list[Normal] = field(default_factory=list)
    orders: list[list[str]] = field(default_factory=list)
    buffers: dict[str, tuple[str, ...] | None] = field(default_factory=dict)


@dataclass(slots=True)
class Relation:
    """Rows in FROM or JOIN, under a name in lower case."""

    name: str
    outputs: list[Output]


@dataclass(slots=True)
class Scope:
    """The relations of one SELECT, and its items by name."""

    relations: list[Relation] = field(default_factory=list)
    visible: list[tuple[Relation, Output]] = field(default_factory=list)
    aliases: dict[str, Normal] = field(default_factory=dict)

    def add(
        self, relation: Relation, using: Sequence[str] = (), side: str = ""
    ) -> list[tuple[Normal, Normal]]:
        """Add a relation; return the pairs of columns that USING compares."""
        added = [(relation, output) for output in relation.outputs]
        pairs, joined = [], []
        for name in using:
            left, right = _first(self.visible, name), _first(added, name)
            pairs.append((left[1].value, right[1].value))
            if side == "FULL":
                parts = left[1].value, right[1].value
                refs = (*parts[0].refs, *parts[1].refs)
                text = f"coalesce({parts[0].text}, {parts[1].text})"
                both = Normal(text, refs, parts[0].type if parts[0].type == parts[1].type else None, name)
                joined.append((left[0], Output(left[1].name, both)))
            else:
                joined.append(right if side == "RIGHT" else left)
        others = [pair for pair in (*self.visible, *added) if pair[1].name.lower() not in using]
        self.visible = [*joined, *others]
        self.relations.append(relation)
        return pairs

    def find(self, column: Any) -> tuple[Normal, list[str]]:
        """Return what a column stands for, and the names of the fields after it."""
        names = [str(part.name) for part in column.parts]
        lower = [name.lower() for name in names]
        if len(names) > 1:
            for relation in self.relations:
                if relation.name == lower[0]:
                    found = [one.value for one in relation.outputs if one.name.lower() == lower[1]]
                    if found:
                        return found[0], names[2:]
        visible = [output.value for _, output in self.visible if output.name.lower() == lower[0]]
        if len(visible) == 1:
            return visible[0], names[1:]
        if not visible and lower[0] in self.aliases:
            return self.aliases[lower[0]], names[1:]
        raise UndecidedError(f"{column.sql(dialect='spark')} can't be resolved")

    def has(self, name: str) -> bool:
        """Return whether a relation has a column of this name, in lower case."""
        return any(output.name.lower() == name for _, output in self.visible)

    def star(self, table: str) -> Iterator[Output]:
        """Yield the columns of `*`, or of `table.*`."""
        if not table:
            yield from (output for _, output in self.visible)
            return
        yield from (o for r in self.relations if r.name == table.lower() for o in r.outputs)


def _first(pairs: Sequence[tuple[Relation, Output]], name: str) -> tuple[Relation, Output]:
    for pair in pairs:
        if pair[1].name.lower() == name:
            return pair
    raise UndecidedError(f"USING names {name}, which a relation doesn't have")
