"""The pass that finds what the names in a query stand for: relations, and columns with their types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mzplan.schema.relations.allowed_parts import OR_CURRENT
from mzplan.schema.relations.nodes import (
    QueryError,
    aggregates_in,
    from_of,
    function_of,
    generator_of,
    is_natural,
    named_queries,
    own_columns,
    queries_in,
    start_of,
    windows_in,
)
from mzplan.schema.relations.scopes import (
    Field,
    Relation,
    Scope,
    UnknownColumnError,
)
from mzplan.schema.relations.tree import Analysis, Block, Item, Join
from mzplan.schema.relations.types import QueryTypes
from mzplan.schema.sql.functions import BARE_CALLS, bare_calls, function_or_column, is_aggregate
from mzplan.schema.sql.type_rules import wider as common_type
from mzplan.schema.user_functions import returned_types

_WINDOWS = frozenset(["window", "session_window"])


def resolve_names(analysis: Analysis) -> None:
    """Fill in `root`, and what names stand for. Raises QueryError."""
    names = _Names(analysis)
    root = analysis.root = names.query(analysis.query.tree, {})
    analysis.used.add(*(item.field for item in root.items))
    if not root.items:
        raise QueryError("it selects no column", 0, "name the columns after SELECT.")
    seen: set[str] = set()
    for item in root.items:
        name = item.field.name
        if name.lower() in seen:
            raise QueryError(f"two columns are called {name}", item.offset, "rename one of them with AS.")
        seen.add(name.lower())


class _Names:
    """The names of one query."""

    def __init__(self, analysis: Analysis):
        self.analysis = analysis
        self.returned = returned_types(analysis.body)
        self.subqueries: dict[int, Block] = {}  # by the identity of the nodes in expressions
        # Whether sqlglot's tree has everything that is in the text.
        self.is_certain = QueryTypes(analysis.query.text, Scope(), True).has_every_plus(analysis.query.tree)

    def query(
        self, node: Any, names: Mapping[str, Relation], *, named: bool = True, around: Scope | None = None
    ) -> Block:
        """Return a query in the tree.

        - `named`: each item must have a name. Only the first SELECT of a UNION needs names.
        - `around`: the scope of the SELECT whose expression has the query.
        """
        from sqlglot import exp

        parts: list[Block | Join] = []
        for cte in named_queries(node):
            block = self.query(cte.this, names)
            parts.append(block)
            names = {**names, cte.alias.lower(): _as_relation(block, cte)}
        if isinstance(node, exp.Subquery):
            inner = self.query(node.this, names, named=named, around=around)
            inner.parts = [*parts, *inner.parts]
            return inner
        if isinstance(node, exp.SetOperation):
            return self._union(node, names, parts, named, around)
        return _Select(self, node, names, named, parts, around).block()

    def _union(
        self,
        node: Any,
        names: Mapping[str, Relation],
        parts: list[Block | Join],
        named: bool,
        around: Scope | None,
    ) -> Block:
        left = self.query(node.this, names, named=named, around=around)
        right = self.query(node.expression, names, named=False, around=around)
        if len(left.items) != len(right.items):
            word = type(node).__name__.upper()
            problem = (
                f"one SELECT of the {word} has {len(left.items)} columns, another has {len(right.items)}"
            )
            raise QueryError(problem, start_of(node.expression), "give both the same columns.")
        if left.stream != right.stream:
            table = right if left.stream else left
            offset = table.items[0].offset if table.items else 0
            raise QueryError(
                "a UNION of a stream and a snapshot would add the rows of the snapshot at each micro-batch",
                offset,
                f"read both as streams{OR_CURRENT}",
            )
        if node.args.get("distinct"):
            fields = [item.field for item in (*left.items, *right.items)]
            self.analysis.used.add(*fields)
            self.analysis.deciding.add(*fields)
        items = [_union_item(*pair) for pair in zip(left.items, right.items, strict=True)]
        block = Block(node, [*parts, left, right], items, left.stream, arms=(left, right))
        if (order := node.args.get("order")) is not None:
            _check_order_of_sets(order, items)
        return block

    def relation(self, node: Any, names: Mapping[str, Relation], parts: list[Block | Join]) -> Relation:
        """Return the relation in a FROM or JOIN. Adds a subquery to `parts`."""
        from sqlglot import exp

        if isinstance(node, exp.Subquery):
            block = self.query(node.this, names)
            parts.append(block)
            return _as_relation(block, node)
        name, alias = node.name, (node.alias or node.name).lower()
        if (named := names.get(name.lower())) is not None:
            return replace(named, name=alias, fields=_renamed(named.fields, node))
        input_ = self.analysis.inputs[name]
        fields = tuple(
            Field(c.name, c.type, event_time=c.name.lower() == input_.event_time.lower())
            for c in input_.columns
        )
        self.analysis.read += [(name, field) for field in fields]
        return Relation(alias, _renamed(fields, node), input_.stream, input_.label, name)


def _as_relation(block: Block, node: Any) -> Relation:
    """Return a query as a relation. `node`: the subquery or the name in WITH."""
    fields = _renamed([item.field for item in block.items], node)
    return Relation(node.alias.lower(), fields, block.stream, node.alias, block)


def _check_order_of_sets(order: Any, items: Sequence[Item]) -> None:
    """Raise QueryError unless the ORDER BY of a UNION uses the names of its columns."""
    names = [item.field.name for item in items]
    for column in (column for key in order.expressions for column in own_columns(key)):
        if column.name.lower() not in {name.lower() for name in names}:
            problem = f"ORDER BY uses {column.sql(dialect='spark')}, and the columns are {', '.join(names)}"
            raise QueryError(problem, start_of(column), "order by these columns.")


def _renamed(fields: Sequence[Field], node: Any) -> tuple[Field, ...]:
    """Return the columns of a relation under the names that its alias lists, as in `t (a, b)`."""
    alias = node.args.get("alias")
    names = [name.name for name in alias.args.get("columns") or ()] if alias is not None else []
    if not names:
        return tuple(fields)
    if len(names) != len(fields):
        columns = ", ".join(column.name for column in fields)
        problem = f"{node.alias} names {len(names)} columns, but there are {len(fields)}: {columns}"
        raise QueryError(problem, start_of(alias), "name each of them, or select columns in a subquery.")
    return tuple(
        replace(column, name=name, parts=(column,)) for name, column in zip(names, fields, strict=True)
    )


class _Select:
    """The names of one SELECT."""

    def __init__(
        self,
        names: _Names,
        node: Any,
        around: Mapping[str, Relation],
        named: bool,
        parts: list[Block | Join],
        outer: Scope | None,
    ):
        analysis = names.analysis
        self._names, self._analysis, self._node, self._around = names, analysis, node, around
        self._named, self._parts = named, parts
        self._sources: list[tuple[Any, Relation]] = []
        self._subqueries: list[tuple[Any, Block]] = []
        self._scope = Scope(used=analysis.used, by_alias=analysis.by_alias, around=outer)
        self._types = QueryTypes(
            analysis.query.text, self._scope, names.is_certain, names.returned, names.subqueries
        )

    def block(self) -> Block:
        node, scope = self._node, self._scope
        self._read()
        if (where := node.args.get("where")) is not None:
            self._decide(where.this)
            if aggregates := aggregates_in(where.this):
                raise QueryError("WHERE has an aggregate function", start_of(aggregates[0]), "use HAVING.")
        items = [item for written in node.expressions for item in self._items(written)]
        having, groups = node.args.get("having"), None
        if is_aggregated(node):
            groups = self._groups(items)
            self._check_groups(items, groups)
        elif having is not None:
            raise QueryError("HAVING without GROUP BY", start_of(having), "use WHERE.")
        if node.args.get("distinct"):
            scope.used.add(*(item.field for item in items))
            self._analysis.deciding.add(*(item.field for item in items))
        self._check_windows()
        self._check_order()
        return Block(
            node,
            self._parts,
            items,
            scope.stream,
            scope,
            groups,
            sources=self._sources,
            subqueries=self._subqueries,
        )

    # ── FROM

    def _read(self) -> None:
        node, scope = self._node, self._scope
        first = self._names.relation(from_of(node), self._around, self._parts)
        self._sources.append((from_of(node), first))
        scope.add(first)
        for join in node.args.get("joins") or ():
            self._join(join)
        for lateral in node.args.get("laterals") or ():
            generated = self._types.generated(lateral.this)
            parts = self._decide(lateral.this)
            alias = lateral.args.get("alias")
            columns = [c.name for c in alias.args.get("columns") or ()] if alias is not None else []
            fields = [
                Field(columns[i] if i < len(columns) else name, t, parts=parts)
                for i, (name, t) in enumerate(generated)
            ]
            name = alias.name.lower() if alias is not None and alias.this is not None else ""
            generated_rows = Relation(name, tuple(fields), stream=False, label="LATERAL VIEW")
            self._sources.append((lateral, generated_rows))
            scope.add(generated_rows)

    def _join(self, join: Any) -> None:
        scope = self._scope
        right = self._names.relation(join.this, self._around, self._parts)
        left_streams = scope.stream
        using = [column.name.lower() for column in join.args.get("using") or ()]
        if is_natural(join):
            using = self._natural(join, right)
        for column in join.args.get("using") or ():
            for relations in (scope.relations, [right]):
                if not any(f.name.lower() == column.name.lower() for r in relations for f in r.fields):
                    raise UnknownColumnError(column.name, start_of(column), relations)
        if any(r.name == right.name for r in scope.relations):
            hint = f"give one of them an alias: JOIN {right.name} AS other."
            raise QueryError(f"two relations are called {right.name}", start_of(join.this), hint)
        side, kind = str(join.side).upper(), str(join.kind).upper()
        before = list(scope.relations), scope.visible
        self._sources.append((join, right))
        compared = [f for r in (*scope.relations, right) for f in r.fields if f.name.lower() in using]
        self._analysis.deciding.add(*compared)
        scope.add(right, using, side)
        if join.args.get("on") is not None:
            self._decide(join.args["on"])
            _refuse_window(join.args["on"])
        if left_streams != right.stream:
            self._check_table(join, side, kind, left_streams)
        self._parts.append(Join(join, tuple(before[0]), right, tuple(using), side))
        if kind in ("SEMI", "ANTI"):
            scope.relations, scope.visible = before

    def _natural(self, join: Any, right: Relation) -> list[str]:
        """Return the columns that a NATURAL JOIN compares, in lower case."""
        shared = self._scope.shared_with(right)
        if not shared:
            problem = f"{right.label or right.name} has no column in common with the relations before it"
            raise QueryError(problem, start_of(join.this), "write JOIN … ON.")
        self._scope.by_alias.update((start_of(join.this), name) for name in shared)
        return shared

    def _check_table(self, join: Any, side: str, kind: str, left_streams: bool) -> None:
        """Raise QueryError if a join keeps the rows of a snapshot that match no row of the stream."""
        keeps = {"LEFT": not left_streams, "RIGHT": left_streams, "FULL": True}.get(side, False)
        if keeps or (kind in ("SEMI", "ANTI") and not left_streams):
            raise QueryError(
                "this JOIN would repeat a snapshot's rows without a match at each micro-batch",
                start_of(join),
                f"let the stream be the side whose rows are kept: FROM stream LEFT JOIN snapshot{OR_CURRENT}",
            )

    # ── SELECT

    def _check(self, tree: Any) -> tuple[Field, ...]:
        """Return the columns that an expression reads. Raises QueryError for an unknown column."""
        self._check_bare_calls(tree)
        fields = tuple(self._scope.find(column)[0] for column in own_columns(tree))
        self._read_subqueries(tree)
        return fields

    def _decide(self, tree: Any) -> tuple[Field, ...]:
        """Return the columns of an expression that decides which rows there are. Raises QueryError."""
        parts = self._check(tree)
        self._analysis.deciding.add(*parts)
        return parts

    def _read_subqueries(self, tree: Any) -> None:
        """Find the names of the subqueries in an expression."""
        from sqlglot import exp

        for node in queries_in(tree):
            if id(node) in self._names.subqueries:
                continue
            block = self._names.query(node, self._around, named=False, around=self._scope)
            if not isinstance(node.parent, exp.Exists | exp.In) and len(block.items) != 1:
                raise QueryError(
                    "a subquery in an expression has several columns", start_of(node), "select one."
                )
            self._names.subqueries[id(node)] = block
            self._subqueries.append((node, block))

    def _check_windows(self) -> None:
        """Raise QueryError for an unknown name after OVER, or an unknown column in WINDOW."""
        named = self._node.args.get("windows") or ()
        names = {window.name.lower() for window in named}
        for window in named:
            for part in (*(window.args.get("partition_by") or ()), window.args.get("order")):
                if part is not None:
                    self._decide(part)
        for window in (window for item in self._node.expressions for window in windows_in(item)):
            if window.alias and window.alias.lower() not in names:
                hint = f"write WINDOW {window.alias} AS (…) after the other clauses."
                raise QueryError(f"no window is called {window.alias}", start_of(window), hint)

    def _check_order(self) -> None:
        """Raise QueryError for an unknown column in ORDER BY. An item's name comes before a column's."""
        order = self._node.args.get("order")
        for column in own_columns(order) if order is not None else ():
            if len(column.parts) > 1 or column.name.lower() not in self._scope.aliases:
                self._analysis.deciding.add(self._scope.find(column)[0])

    def _check_bare_calls(self, tree: Any) -> None:
        """Raise QueryError for a function without parentheses that has the name of a column."""
        for name, offset in bare_calls(tree, self._analysis.query.text.sql):
            if self._scope.has(name):
                problem = f"{name} is a column, and a function of Spark"
                raise QueryError(problem, offset, function_or_column(name), "Ambiguous name")

    def _check_having(self, tree: Any) -> None:
        """Raise QueryError for an unknown column. In HAVING, an item's name comes before a column's."""
        self._check_bare_calls(tree)
        self._read_subqueries(tree)
        for column in own_columns(tree):
            if len(column.parts) > 1 or column.name.lower() not in self._scope.aliases:
                self._analysis.deciding.add(self._scope.find(column)[0])
            else:
                self._analysis.deciding.add(self._scope.aliases[column.name.lower()])

    def _items(self, written: Any) -> Iterator[Item]:
        """Yield the columns of an item."""
        from sqlglot import exp

        inner = written.this if isinstance(written, exp.Alias | exp.Aliases) else written
        is_star = isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star)
        if isinstance(inner, exp.Star) or is_star:
            yield from self._star(inner)
            return
        if generator_of(inner):
            names = [alias.name for alias in written.expressions] if isinstance(written, exp.Aliases) else []
            names = names or ([written.alias] if isinstance(written, exp.Alias) else [])
            parts = self._decide(inner)
            for number, (name, type_) in enumerate(self._types.generated(inner)):
                named = Field(names[number] if number < len(names) else name, type_, parts=parts)
                yield Item(named, start_of(written), inner)
            return
        parts = self._check(inner)
        if self._named and not isinstance(written, exp.Alias | exp.Column | exp.Dot):
            shown = inner.sql(dialect="spark")[:60]
            raise QueryError("an expression has no name", start_of(inner), f"write {shown} AS name.")
        name, is_time = written.alias or written.name, self._scope.keeps_time(inner)
        named = Field(name, self._types.of(inner), is_time, parts)
        self._scope.aliases.setdefault(named.name.lower(), named)
        yield Item(named, start_of(inner), inner)

    def _star(self, inner: Any) -> Iterator[Item]:
        from sqlglot import exp

        star = inner.this if isinstance(inner, exp.Column) else inner
        table = inner.table if isinstance(inner, exp.Column) else ""
        left_out = star.args.get("except_") or star.args.get("except") or ()
        without = {column.name.lower() for column in left_out}
        fields = self._scope.star(table)
        if table and not fields:
            if self._scope.has(table):
                problem = f"{table} is a column, and `{table}.*` has no fixed names"
                raise QueryError(problem, start_of(inner), f"list its fields: {table}.field, ….")
            raise QueryError(f"no relation is called {table}", start_of(inner))
        for relation, column in fields:
            if column.name.lower() not in without:
                tree = exp.column(column.name, table=relation.name or None)
                self._analysis.starred.append(column)
                yield Item(column, start_of(inner) or start_of(self._node), tree)

    # ── GROUP BY

    def _groups(self, columns: list[Item]) -> list[Any]:
        """Return the GROUP BY expressions, with the select items in place of their numbers and aliases.

        `columns`: the items, with columns in place of `*`.
        """
        group = self._node.args.get("group")
        if group is None:
            return []
        items = self._node.expressions
        if group.args.get("all"):
            trees = {id(item.tree): item.tree for item in columns}.values()  # inline(…) is several columns
            return [tree for tree in trees if not aggregates_in(tree)]
        return [self._group(key, items, group) for key in group.expressions]

    def _group(self, key: Any, items: list[Any], group: Any) -> Any:
        """Return the expression that a part of GROUP BY stands for."""
        from sqlglot import exp

        by_name = {item.alias.lower(): item.this for item in items if isinstance(item, exp.Alias)}
        if isinstance(key, exp.Literal) and not key.is_string and key.name.isdecimal():
            if any(item.is_star for item in items):
                raise QueryError(
                    "GROUP BY uses the number of an item beside `*`", start_of(group), "name the item."
                )
            if not 1 <= int(key.name) <= len(items):
                raise QueryError(f"GROUP BY {key.name} names no item", start_of(group))
            return items[int(key.name) - 1].unalias()
        name = key.name.lower()
        is_alias = isinstance(key, exp.Column) and len(key.parts) == 1 and name in by_name
        if is_alias and not self._scope.has(name) and name not in BARE_CALLS:
            self._scope.by_alias.add((start_of(key), name))
            return by_name[name]
        return key

    def _check_groups(self, items: list[Item], groups: list[Any]) -> None:
        """Raise QueryError for a column that is neither in GROUP BY nor in an aggregate function."""
        keys = [self._scope.key(group) for group in groups]
        for group in groups:
            self._decide(group)
        if self._scope.stream:
            for written in self._node.expressions:
                _refuse_distinct(written)
        for item in items:
            self._check_grouped(item.tree, keys)
        if (having := self._node.args.get("having")) is not None:
            self._check_having(having.this)

    def _check_grouped(self, tree: Any, keys: list[str]) -> None:
        from sqlglot import exp

        if isinstance(tree, exp.Query):  # its own rules; Spark checks the columns around it
            return
        if isinstance(tree, exp.Window):
            parts = [*function_of(tree).iter_expressions(), *(tree.args.get("partition_by") or ())]
            for part in (*parts, *filter(None, [tree.args.get("order")])):
                self._check_grouped(part, keys)
            return
        is_filtered = isinstance(tree, exp.Filter | exp.WithinGroup) and is_aggregate(tree.this)
        if self._scope.key(tree) in keys or is_aggregate(tree) or is_filtered:
            return
        if isinstance(tree, exp.Column) and self._scope.key(tree).startswith(
            tuple(f"{key}." for key in keys)
        ):
            return  # a field of a column in GROUP BY
        if isinstance(tree, exp.Column):
            is_alone = len(tree.parts) == 1
            if is_alone and tree.name.lower() in self._scope.aliases and not self._scope.has(tree.name):
                return
            raise QueryError(
                f"{tree.sql(dialect='spark')} is neither in GROUP BY nor in an aggregate function",
                start_of(tree),
                f"add it to GROUP BY, or write an aggregate function such as max({tree.name}).",
            )
        for child in tree.iter_expressions():
            self._check_grouped(child, keys)


def is_aggregated(select: Any) -> bool:
    """Return whether a SELECT has GROUP BY or an aggregate function."""
    having = select.args.get("having")
    parts = [*select.expressions, *([having] if having is not None else [])]
    return select.args.get("group") is not None or any(map(aggregates_in, parts))


def _refuse_window(condition: Any) -> None:
    """Raise QueryError for a window in a condition, because Spark computes windows only in a SELECT."""
    from sqlglot import exp

    for call in condition.find_all(exp.Anonymous):
        if str(call.name).lower() in _WINDOWS:
            problem = f"{call.name} can't stand in the condition of a JOIN"
            raise QueryError(problem, start_of(call), "select it in a subquery, and join by its name.")


def _refuse_distinct(item: Any) -> None:
    """Raise QueryError for DISTINCT in an aggregate function, which would keep all values of a stream."""
    from sqlglot import exp

    distinct = item.find(exp.Distinct)
    if distinct is not None:
        raise QueryError(
            "an aggregate function has DISTINCT, which can't be computed over a stream",
            start_of(distinct.parent),
            f"use approx_count_distinct(…) or collect_set(…){OR_CURRENT}",
        )


def _union_item(left: Item, right: Item) -> Item:
    types = left.field.type, right.field.type
    type_ = common_type(*types) if all(types) else None
    both = left.field.event_time and right.field.event_time
    parts = left.field, right.field
    return Item(Field(left.field.name, type_, both, parts), left.offset)
