"""The tree of a query that the passes read and fill in (see analysis.PASSES)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from mzplan.schema.columns import Column, spark_type
from mzplan.schema.relations.parse import RelationalQuery
from mzplan.schema.relations.scopes import Field, Relation, Scope, UsedFields
from mzplan.schema.source_columns import columns_of, keys_of

Step = tuple[Literal["source", "arm", "subquery"], int]
Path = tuple[Step, ...]
"""The way to one use of a collection in a query: the numbers of relations in FROM, arms of a UNION, and
subqueries."""


@dataclass(frozen=True, slots=True)
class Input:
    """A collection that a query can read.

    - `event_time`: the column with the watermark, "" for none.
    - `key`: the columns that no two of its rows have in common; empty for none.
    """

    columns: tuple[Column, ...]
    label: str
    stream: bool
    event_time: str = ""
    key: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, type_: str, body: Mapping[str, Any], label: str, *, stream: bool, event_time: str = ""
    ) -> Self:
        """Return the collection of a source or view with this type and body as an input."""
        columns = (Column(c.name, spark_type(c.type), c.nullable) for c in columns_of(type_, body))
        return cls(tuple(columns), label, stream, event_time, keys_of(type_, body))


@dataclass(frozen=True, slots=True)
class Item:
    """A column of a SELECT or UNION, and its expression in sqlglot's tree; None for a UNION."""

    field: Field
    offset: int
    tree: Any = None


@dataclass(frozen=True, slots=True)
class Join:
    """A JOIN in a SELECT.

    - `node`: sqlglot's Join.
    - `left`, `right`: the relations before it, and the relation that it adds.
    - `using`: the columns of USING or NATURAL, in lower case.
    - `side`: LEFT, RIGHT, FULL, or "".
    """

    node: Any
    left: tuple[Relation, ...]
    right: Relation
    using: tuple[str, ...]
    side: str


@dataclass(slots=True)
class Block:
    """A SELECT, or several with UNION, INTERSECT or EXCEPT.

    - `node`: sqlglot's Select or SetOperation.
    - `parts`: the blocks that it reads, and its joins, in the order in which Spark computes them.
    - `items`: its columns.
    - `stream`: whether some of its rows come from a stream.
    - `scope`: what names in a SELECT stand for.
    - `groups`: the GROUP BY expressions of a SELECT, with items in place of their numbers and names; None for
      a SELECT that doesn't aggregate.
    - `sources`: the relations in FROM, JOIN and LATERAL VIEW, each with its node.
    - `arms`: the blocks that a UNION, INTERSECT or EXCEPT combines.
    - `subqueries`: the blocks of the subqueries in expressions, each with its node.
    """

    node: Any
    parts: list[Block | Join] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    stream: bool = False
    scope: Scope = field(default_factory=Scope)
    groups: list[Any] | None = None
    sources: list[tuple[Any, Relation]] = field(default_factory=list)
    arms: tuple[Block, ...] = ()
    subqueries: list[tuple[Any, Block]] = field(default_factory=list)

    @property
    def is_union(self) -> bool:
        return bool(self.arms)

    @property
    def is_counted(self) -> bool:
        """Return whether LIMIT or OFFSET counts its rows."""
        return any(self.node.args.get(clause) is not None for clause in ("limit", "offset"))

    def walk(self) -> Iterator[Block | Join]:
        """Yield the blocks and the joins of a query, in the order in which Spark computes them."""
        for part in self.parts:
            yield from part.walk() if isinstance(part, Block) else (part,)
        yield self

    def uses(self) -> Iterator[tuple[str, Path]]:
        """Yield each use of a collection, with its path. Names from WITH are followed at each use."""
        below: list[tuple[Step, Any]] = [(("arm", number), arm) for number, arm in enumerate(self.arms)]
        below += [(("source", number), relation.of) for number, (_, relation) in enumerate(self.sources)]
        below += [(("subquery", number), block) for number, (_, block) in enumerate(self.subqueries)]
        for step, of in below:
            if isinstance(of, Block):
                yield from ((name, (step, *path)) for name, path in of.uses())
            elif of is not None:
                yield of, (step,)

    def groups_in(self, item: Item) -> frozenset[int]:
        """Return the numbers of the GROUP BY expressions that an item contains."""
        keys = [self.scope.key(group) for group in self.groups or ()]
        own = {self.scope.key(tree) for tree in (item.tree, _window_of(item.tree)) if tree is not None}
        return frozenset(number for number, key in enumerate(keys) if key in own)


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a query that keeps state.

    - `kind`: `aggregation`, `DISTINCT`, `join` or `outer join`.
    - `timed`: a column with a watermark bounds the state, so that rows are complete at some point.
    - `by_edge`: the query groups by the start or end of a window of such a column, which doesn't bound the
      state.
    - `missing`: for a join, the condition on the time that its ON needs; "" if it has one.
    """

    kind: str
    offset: int
    timed: bool
    by_edge: bool = False
    missing: str = ""


@dataclass(slots=True)
class Analysis:
    """A query over these inputs, by name, with what the passes find.

    - `body`: the settings of the view.
    - `root`: the outermost SELECT or UNION.
    - `operators`: the operators that keep state, in the order in which Spark computes them.
    - `starred`: the columns that `*` stands for.
    - `used`: the columns that the result needs.
    - `read`: the columns of the inputs, once for each use of an input, with the input's name.
    - `deciding`: the columns that decide which rows there are: of conditions, groups, DISTINCT, generators.
    - `by_alias`: with their positions, the names that stand for something else if an input gets a column of
      this name: names of an earlier item of their SELECT, or of a column of the SELECT around a subquery, and
      fields of a STRUCT with the name of its relation; and the columns that a NATURAL JOIN compares.
    - `state`: a digest of the query that computes the state; "" if it keeps none.
    """

    query: RelationalQuery
    inputs: Mapping[str, Input]
    body: Mapping[str, Any]
    root: Block = field(default_factory=lambda: Block(None))
    operators: list[Operator] = field(default_factory=list)
    starred: list[Field] = field(default_factory=list)
    used: UsedFields = field(default_factory=UsedFields)
    read: list[tuple[str, Field]] = field(default_factory=list)
    deciding: UsedFields = field(default_factory=UsedFields)
    by_alias: set[tuple[int, str]] = field(default_factory=set)
    state: str = ""

    @property
    def aliases(self) -> list[str]:
        """Return the names whose meaning depends on the columns that the inputs have, in the order of the
        text.

        If an input gets a column with the name of an earlier item, the name stands for the column.
        """
        return [name for _, name in sorted(self.by_alias)]


def _window_of(tree: Any) -> Any:
    """Return the window in `window(…).start` or `.end`, each of which belongs to one window only."""
    is_dot = type(tree).__name__ == "Dot" and type(tree.this).__name__ == "Anonymous"
    return tree.this if is_dot and str(tree.this.name).lower() == "window" else None
