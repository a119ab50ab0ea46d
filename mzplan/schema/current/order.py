"""Finds the parts of a query whose result depends on an order of rows that the query doesn't decide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mzplan.schema.current.columns import Columns, Place
from mzplan.schema.relations.nodes import (
    QueryError,
    function_of,
    generator_of,
    own_columns,
    own_nodes,
    start_of,
    windows_in,
)
from mzplan.schema.relations.scopes import Relation
from mzplan.schema.relations.tree import Analysis, Block, Input
from mzplan.schema.sql.functions import AGGREGATES, is_aggregate
from mzplan.schema.sql.sql_text import arguments_of, function_name

_FIRST = "write max(…) or min(…), or max_by(value, struct(time, value))."
_SORTED = "write sort_array({called}(…)), or count(DISTINCT …) for their number."
_EXACT = "write percentile(…), which is exact."
_NUMBER = "write count(DISTINCT …) or approx_count_distinct(…)."
_MOST = "count each value in a view with GROUP BY, and read that with ORDER BY … LIMIT."
# Aggregates whose result depends on the order in which Spark reads rows, with what to write.
_BY_ORDER: Mapping[str, str] = {
    **dict.fromkeys(("any_value", "first", "first_value", "last", "last_value"), _FIRST),
    **dict.fromkeys(("array_agg", "collect_list", "collect_set"), _SORTED),
    **dict.fromkeys(("listagg", "string_agg"), "write {called}(…) WITHIN GROUP (ORDER BY the same …)."),
    **dict.fromkeys(("approx_percentile", "percentile_approx", "histogram_numeric"), _EXACT),
    **dict.fromkeys(("approx_top_k", "approx_top_k_accumulate", "approx_top_k_combine"), _MOST),
    **{
        name: _EXACT if name.startswith("kll_") else _NUMBER
        for name in AGGREGATES
        if name.startswith(("hll_", "kll_", "theta_", "tuple_"))
    },
    "mode": "write mode() WITHIN GROUP (ORDER BY …), which returns the least of the most frequent values.",
}
_CHOOSING = ("max_by", "min_by")  # they return a value of one of the rows
# Window functions that return the same for rows that the ORDER BY doesn't tell apart.
_OF_PEERS = frozenset(["cume_dist", "dense_rank", "percent_rank", "rank"])
_BY_POSITION = frozenset(
    ["lag", "lead", "nth_value", "nthvalue", "ntile", "row_number", "rownumber", *_BY_ORDER]
)  # with the names of sqlglot's classes


def check_order(analysis: Analysis) -> None:
    """Raise QueryError for the first part whose result isn't decided by the rows of the inputs."""
    for block in blocks_of(analysis.root):
        if not block.arms:
            _Select(analysis, block).check()
        if block.is_counted:
            _check_limit(analysis, block)


def blocks_of(block: Block) -> Iterator[Block]:
    """Yield the blocks of a query, each once."""
    seen: set[int] = set()
    waiting = [block]
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [part for part in one.parts if isinstance(part, Block)]
            waiting += [below for _, below in one.subqueries]


class _Select:
    """The aggregates and window functions of one SELECT."""

    def __init__(self, analysis: Analysis, block: Block):
        self._analysis, self._block, self._sql = analysis, block, analysis.query.text.sql
        self._columns = Columns(block)

    def check(self) -> None:
        clauses = (self._block.node.args.get(name) for name in ("having", "order"))
        for tree in (*self._block.node.expressions, *filter(None, clauses)):
            windows = windows_in(tree)
            for window in windows:
                self._check_window(window)
            over = {id(function_of(window)) for window in windows}
            for node in own_nodes(tree):
                if is_aggregate(node) and id(node) not in over:
                    self._check_aggregate(node)

    def _check_aggregate(self, node: Any) -> None:
        called = function_name(node, self._sql)
        if called in _CHOOSING and len(arguments_of(node)) > 1:
            value, by = arguments_of(node)[:2]
            if not self._decides(by, value):
                value_sql, *by_sql = (one.sql(dialect="spark") for one in (value, *_parts(by)))
                self._refuse(
                    f"{called} can return any of the values whose {', '.join(by_sql)} is the same",
                    node,
                    f"write {called}({value_sql}, struct({', '.join([*by_sql, value_sql])})).",
                )
        elif called in _BY_ORDER and not self._is_ordered(node, called):
            self._refuse(
                f"{called} depends on the order in which Spark reads the rows",
                node,
                _BY_ORDER[called].format(called=called),
            )

    def _is_ordered(self, node: Any, called: str) -> bool:
        """Return whether the values of an aggregate are put in order, or their order doesn't matter."""
        from sqlglot import exp

        parent = node.parent
        while isinstance(parent, exp.Filter):
            parent = parent.parent
        if isinstance(node.this, exp.Order):  # sqlglot's form of WITHIN GROUP
            return any(key.this == node.this.this for key in node.this.expressions)
        if isinstance(parent, exp.WithinGroup):
            return called == "mode"
        if called in ("array_agg", "collect_list", "collect_set"):
            around = function_name(parent, self._sql) if parent is not None else ""
            is_alone = parent is not None and len(arguments_of(parent)) == 1
            return around in ("size", "cardinality", "sort_array") or (around == "array_sort" and is_alone)
        return called == "mode" and len(arguments_of(node)) > 1

    def _decides(self, by: Any, value: Any) -> bool:
        """Return whether rows that are equal in one expression are equal in another."""
        scope, parts = self._block.scope, _parts(by)
        if scope.key(value) in map(scope.key, parts):
            return True
        columns = [part.unnest() for part in parts if type(part.unnest()).__name__ == "Column"]
        used = {place for column in own_columns(value) for place in self._places(column)}
        known = {place for column in columns for place in self._places(column)}
        return not list(self._unidentified(known, used))

    def _check_window(self, window: Any) -> None:
        named = {one.name.lower(): one for one in self._block.node.args.get("windows") or ()}
        own = named.get(window.alias.lower(), window) if window.alias else window
        called = function_name(function_of(window), self._sql)
        spec, order = (window.args.get(name) or own.args.get(name) for name in ("spec", "order"))
        if called in _CHOOSING:
            self._check_aggregate(function_of(window))
        is_by_rows = spec is not None and str(spec.args.get("kind")).upper() == "ROWS"
        if called.lower() in _OF_PEERS or not (is_by_rows or called.lower() in _BY_POSITION):
            return
        keys = [*(own.args.get("partition_by") or ()), *(key.this for key in _keys_of(order))]
        if missing := self._missing(keys):
            self._refuse(
                "a window function counts rows that its PARTITION BY and ORDER BY don't tell apart",
                window,
                f"add to its ORDER BY: {', '.join(missing)}.",
            )

    def _missing(self, keys: Sequence[Any]) -> list[str]:
        """Return the columns that ORDER BY needs so that each row has one place."""
        scope, groups = self._block.scope, self._block.groups
        if groups is not None:
            known = {scope.key(key) for key in keys}
            return [group.sql(dialect="spark") for group in groups if scope.key(group) not in known]
        columns = [key.unnest() for key in keys if type(key.unnest()).__name__ == "Column"]
        places = {place for column in columns for place in self._places(column)}
        return list(dict.fromkeys(self._unidentified(places, self._used_beside(keys))))

    def _used_beside(self, keys: Sequence[Any]) -> set[Place]:
        """Return the columns that the items use, except in expressions that are among the keys."""
        known = {self._block.scope.key(key) for key in keys}
        trees = (self._columns.tree_of(item) for item in self._block.items)
        columns = (column for tree in trees for column in self._columns_beside(tree, known))
        return {place for column in columns for place in self._places(column)}

    def _columns_beside(self, tree: Any, known: set[str]) -> Iterator[Any]:
        from sqlglot import exp

        if isinstance(tree, exp.Query):
            yield from tree.find_all(exp.Column)
        elif self._block.scope.key(tree) not in known:
            if isinstance(tree, exp.Column):
                yield tree
            for child in () if isinstance(tree, exp.Column) else tree.iter_expressions():
                yield from self._columns_beside(child, known)

    def _unidentified(self, known: set[Place], used: set[Place]) -> Iterator[str]:
        """Yield the columns of which equal values would make rows alike that `known` doesn't tell apart."""
        for number, (_, relation) in enumerate(self._block.sources):
            if number in self._columns.hidden:
                continue
            given = {position for of, position in known if of == number}
            needed = {position for of, position in used if of == number}
            keys = list(unique_keys(relation, self._analysis.inputs))
            if needed <= given or any(key <= given for key in keys):
                continue
            key = min(keys, key=len, default=needed)
            yield from (relation.fields[position].name for position in sorted(key - given))

    def _places(self, column: Any) -> Sequence[Place]:
        reference = self._columns.find(column) if type(column.this).__name__ != "Star" else None
        return reference.places if reference is not None and not reference.fields else ()

    def _refuse(self, problem: str, node: Any, hint: str) -> None:
        raise QueryError(problem, start_of(node), hint)


def unique_keys(relation: Relation, inputs: Mapping[str, Input]) -> Iterator[frozenset[int]]:
    """Yield sets of positions of columns that no two rows of a relation have in common."""
    if isinstance(relation.of, str):
        names = [column.name.lower() for column in inputs[relation.of].columns]
        key = [name.lower() for name in inputs[relation.of].key]
        if key and set(key) <= set(names):
            yield frozenset(map(names.index, key))
    elif relation.of is not None:
        yield from _keys_of_block(relation.of, inputs)


def _keys_of_block(block: Block, inputs: Mapping[str, Input]) -> Iterator[frozenset[int]]:
    if block.node.args.get("distinct"):
        yield frozenset(range(len(block.items)))
    if block.arms or any(generator_of(item.tree) for item in block.items):
        return
    if block.groups is not None:
        numbers = range(len(block.groups))
        by_group = [{n for n, item in enumerate(block.items) if g in block.groups_in(item)} for g in numbers]
        if all(by_group):
            yield frozenset(map(min, by_group))
        return
    if len(block.sources) != 1:
        return
    columns = Columns(block)
    copies: dict[Place, int] = {}
    for number, item in enumerate(block.items):
        reference = columns.find(item.tree) if type(item.tree).__name__ == "Column" else None
        if reference is not None and not reference.fields:
            copies.setdefault(reference.places[0], number)
    for key in unique_keys(block.sources[0][1], inputs):
        if all((0, position) in copies for position in key):
            yield frozenset(copies[0, position] for position in key)


def _check_limit(analysis: Analysis, block: Block) -> None:
    """Raise QueryError unless ORDER BY decides which rows LIMIT keeps."""
    keys = [key.this.unnest() for key in block.node.args["order"].expressions]
    names = {name.lower() for key in keys for name in _items_of(block, key)}
    wanted = [item.field.name for item in block.items]
    lower = [name.lower() for name in wanted]
    unique = [{lower[position] for position in key} for key in _keys_of_block(block, analysis.inputs)]
    if block is analysis.root:
        unique.append({str(name).lower() for name in analysis.body.get("key") or ()})
    if any(key and key <= names for key in unique) or {name.lower() for name in wanted} <= names:
        return
    missing = min(unique, key=len, default={name.lower() for name in wanted}) - names
    shown = [name for name in wanted if name.lower() in missing]
    raise QueryError(
        "ORDER BY doesn't decide which of several rows LIMIT keeps",
        start_of(block.node.args["order"]),
        f"add to ORDER BY: {', '.join(shown)}.",
    )


def _keys_of(order: Any) -> Sequence[Any]:
    """Return the sort keys of an ORDER BY; none without one."""
    return order.expressions if order is not None else ()


def _parts(by: Any) -> list[Any]:
    """Return the values of a struct; the expression itself if it isn't one."""
    inner = by.unnest()
    if type(inner).__name__ != "Struct":
        return [inner]
    return [
        one.expression if type(one).__name__ == "PropertyEQ" else one.unalias() for one in inner.expressions
    ]


def _items_of(block: Block, key: Any) -> Iterator[str]:
    """Yield the names of the items by which a key of ORDER BY sorts."""
    if type(key).__name__ == "Literal" and key.name.isdecimal():
        yield from (item.field.name for item in block.items[int(key.name) - 1 : int(key.name)])
    elif type(key).__name__ == "Column" and len(key.parts) == 1:
        yield key.name
    elif type(key).__name__ == "Column" and not block.arms:
        same = block.scope.key(key)
        columns = (item for item in block.items if type(item.tree).__name__ == "Column")
        yield from (item.field.name for item in columns if block.scope.key(item.tree) == same)
