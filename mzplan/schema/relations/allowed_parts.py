"""Checks that each part of a query's tree is on a list of allowed parts.

A query over tables, which is a current view's, may have more parts than a query over streams.
"""

from __future__ import annotations

import re
from typing import Any

from mzplan.schema.relations.nodes import (
    QueryError,
    argument_names,
    from_of,
    generator_of,
    is_natural,
    named_queries,
    own_nodes,
    queries_in,
    refuse_node,
    start_of,
)
from mzplan.schema.sql.faults import fault_of
from mzplan.schema.sql.functions import unknown_functions
from mzplan.schema.sql.sql_text import BareText

_SELECT = {"expressions", "from", "joins", "laterals", "where", "group", "having", "distinct", "with"}
_OF_SETS = {"this", "expression", "distinct", "with"}
_OF_TABLES = {"order", "limit", "offset", "windows"}  # clauses that a query over streams can't have
_WORDS = {
    "cluster": "CLUSTER BY partitions the rows, which Spark does itself",
    "connect": "CONNECT BY isn't Spark SQL",
    "distribute": "DISTRIBUTE BY partitions the rows, which Spark does itself",
    "hint": "hints aren't allowed",
    "into": "SELECT … INTO writes a table",
    "limit": "a stream has no end: LIMIT has no rows to count",
    "offset": "a stream has no end: OFFSET has no rows to count",
    "order": "a stream has no end: ORDER BY can't put its rows in order",
    "pivots": "PIVOT and UNPIVOT can't be computed over a stream",
    "qualify": "QUALIFY compares rows of a stream that has no end",
    "sample": "TABLESAMPLE returns different rows each time",
    "sort": "a stream has no end: SORT BY can't put its rows in order",
    "windows": "window functions (OVER) can't be computed over a stream",
}

# The words for queries over tables.
_TABLE_WORDS = {
    "pivots": "PIVOT and UNPIVOT aren't allowed",
    "qualify": "QUALIFY isn't Spark SQL",
    "sort": "SORT BY puts the rows of a partition in order, and a collection has no order",
}
_GROUPINGS = "ROLLUP, CUBE and GROUPING SETS aren't allowed"


class AllowedParts:
    """Checks each part of a tree, and raises QueryError for a part that isn't on the lists.

    `unknown`: the calls of functions that no supported Spark has, each with its position.
    """

    def __init__(self, text: BareText, over_tables: bool):
        self._text, self._over_tables = text, over_tables
        self.unknown: list[tuple[str, int]] = []

    def query(self, node: Any) -> None:
        from sqlglot import exp

        self._with(node)
        if isinstance(node, exp.Subquery) and not argument_names(node) - {"this", "alias"}:
            self.query(node.this)
        elif isinstance(node, exp.Union) or (self._over_tables and isinstance(node, exp.SetOperation)):
            self._arguments(node, _OF_SETS)
            self._check_order(node)
            self.query(node.this)
            self.query(node.expression)
        elif isinstance(node, exp.Select):
            self._select(node)
        else:
            word = type(node).__name__.upper()
            hint = f"use SELECT and UNION ALL{OR_CURRENT if isinstance(node, exp.SetOperation) else '.'}"
            refuse_node(f"{word} can't be computed over streams", node, hint)

    def _with(self, node: Any) -> None:
        for cte in named_queries(node):
            if cte.parent.args.get("recursive"):
                refuse_node("WITH RECURSIVE isn't allowed", cte, "write the query without recursion.")
            self.query(cte.this)

    def _arguments(self, node: Any, allowed: set[str]) -> None:
        allowed = allowed | _OF_TABLES if self._over_tables else allowed
        words = {**_WORDS, **_TABLE_WORDS} if self._over_tables else _WORDS
        for name in sorted(argument_names(node) - allowed):
            why = words.get(name, f"{name.replace('_', ' ').upper()} isn't allowed here")
            match = re.search(rf"\b{re.escape(name)}\b", self._text.sql, re.IGNORECASE)
            raise QueryError(why, match.start() if match else start_of(node), _HINTS.get(name, ""))

    def _check_order(self, node: Any) -> None:
        """Raise QueryError unless ORDER BY and LIMIT come together, with a number of rows."""
        order, counts = node.args.get("order"), [node.args.get("limit"), node.args.get("offset")]
        counts = [count for count in counts if count is not None]
        if counts and order is None:
            hint = "write ORDER BY … LIMIT, with the columns of the key in the order."
            place = re.search(r"\b(?:limit|offset)\b", self._text.sql, re.IGNORECASE)
            problem = "LIMIT and OFFSET without ORDER BY return different rows each time"
            raise QueryError(problem, place.start() if place else 0, hint)
        if order is None:
            return
        if not counts:
            problem = "ORDER BY without LIMIT has no effect, because a collection has no order"
            refuse_node(problem, order, "remove it; put rows in order when you read the view.")
        if not all(type(count.expression).__name__ == "Literal" for count in counts):
            refuse_node("LIMIT and OFFSET need numbers", order, "write LIMIT 10.")
        for key in order.expressions:
            self._expression(key.this)

    def _select(self, node: Any) -> None:
        from sqlglot import exp

        self._arguments(node, _SELECT)
        self._check_order(node)
        source = from_of(node)
        if source is None:
            refuse_node("a SELECT has no FROM", node, "write SELECT … FROM a source or view of the project.")
        self._relation(source)
        for join in node.args.get("joins") or ():
            others = argument_names(join) - {"this", "on", "using", "side", "kind"}
            if others - {"method"} or (others and (not is_natural(join) or join.kind in ("SEMI", "ANTI"))):
                refuse_node("this kind of JOIN isn't allowed", join, "write JOIN … ON or JOIN … USING (…).")
            self._relation(join.this)
            if join.args.get("on") is not None:
                self._expression(join.args["on"])
        for lateral in node.args.get("laterals") or ():
            if not lateral.args.get("view") or not generator_of(lateral.this):
                called = lateral.this.sql(dialect="spark").partition("(")[0][:40]
                names = "explode, posexplode, inline, json_tuple or stack"
                refuse_node(f"LATERAL VIEW accepts {names}, not {called}", lateral)
            self._generator(lateral.this)
        if isinstance(node.args.get("distinct"), exp.Distinct) and node.args["distinct"].args.get("on"):
            refuse_node("DISTINCT ON isn't Spark SQL", node)
        for item in node.expressions:
            self._item(item)
        for name in ("where", "having"):
            if node.args.get(name) is not None:
                self._expression(node.args[name].this, queries=self._over_tables)
        for window in node.args.get("windows") or ():
            for part in _parts_of(window):
                self._expression(part)
        group = node.args.get("group")
        if group is not None and argument_names(group) - {"expressions", "all"}:
            refuse_node(_GROUPINGS, group, "write one view for each grouping.")
        for key in group.expressions if group is not None else ():
            if type(key).__name__ in ("Cube", "Rollup", "GroupingSets"):
                refuse_node(_GROUPINGS, key, "write one view for each grouping.")
            self._expression(key)

    def _relation(self, node: Any) -> None:
        from sqlglot import exp

        if isinstance(node, exp.Subquery):
            if argument_names(node) - {"this", "alias"} or not isinstance(node.this, exp.Query):
                refuse_node(
                    "joins are in brackets", node, "write joins one after the other, without brackets."
                )
            self.query(node.this)
        elif not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            called = node.sql(dialect="spark").partition("(")[0][:40]
            refuse_node(f"{called} isn't a collection: a view reads sources and views by name", node)
        else:
            self._table(node)

    def _table(self, node: Any) -> None:
        if argument_names(node) - {"this", "alias"}:
            problem = "it must read a source or view of the project by its name"
            refuse_node(problem, node, "declare what it reads as a source, and name that.")

    def _item(self, item: Any) -> None:
        from sqlglot import exp

        inner = item.this if isinstance(item, exp.Alias | exp.Aliases) else item
        is_star = isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star)
        if is_star or isinstance(inner, exp.Star):
            if inner.args.get("replace") or inner.args.get("rename"):
                refuse_node(
                    "`*` must be a select item of its own, or have EXCEPT",
                    inner,
                    "write other items beside it.",
                )
        elif generator_of(inner):
            self._generator(inner)
        else:
            self._expression(inner, queries=self._over_tables, windows=self._over_tables)

    def _generator(self, node: Any) -> None:
        for argument in node.iter_expressions():
            self._expression(argument)
        if (fault := fault_of(node, self._text.sql)) is not None:
            raise QueryError(*fault)

    def _expression(self, tree: Any, *, queries: bool = False, windows: bool = False) -> None:
        """Check an expression. `queries`, `windows`: whether it may have subqueries and window functions."""
        from sqlglot import exp

        for query in queries_in(tree):
            if not queries:
                hint = f"join it: … JOIN (SELECT …) AS name ON …{'.' if self._over_tables else OR_CURRENT}"
                refuse_node("an expression contains a subquery", query, hint)
            if not (type(query) is exp.Subquery or isinstance(query.parent, exp.Exists)):
                refuse_node("a subquery must stand in brackets, in EXISTS or in IN", query)
            self.query(query)
        for node in own_nodes(tree):
            if isinstance(node, exp.Window) and not windows:
                problem = "a window function (OVER) must be an item of SELECT"
                problem = problem if self._over_tables else _WORDS["windows"]
                refuse_node(problem, node, "" if self._over_tables else _OVER_HINT)
            if isinstance(node, exp.Window) and argument_names(node) - _OF_WINDOW:
                refuse_node("this OVER isn't allowed", node, "write OVER (PARTITION BY … ORDER BY …).")
            if generator_of(node) or isinstance(node, exp.UDTF | exp.QueryTransform):
                refuse_node("an expression makes several rows of one", node, "use LATERAL VIEW explode(…).")
            if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Func):
                refuse_node("a function has a qualifier", node, "call Spark's functions by their names only.")
            if isinstance(node, exp.Placeholder | exp.Parameter):
                refuse_node("a placeholder has no value here", node)
            if isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count):
                refuse_node("an expression contains `*`", node, "name the columns.")
            if isinstance(node, exp.Command | exp.DDL | exp.DML):
                refuse_node("it isn't a query", node)
        if (fault := fault_of(tree, self._text.sql)) is not None:
            raise QueryError(*fault)
        self.unknown += unknown_functions(tree, self._text.sql)


def _parts_of(window: Any) -> list[Any]:
    """Return the expressions of a window: PARTITION BY and ORDER BY."""
    order = window.args.get("order")
    keys = [key.this for key in order.expressions] if order is not None else []
    return [*(window.args.get("partition_by") or ()), *keys]


_OVER_HINT = (
    "aggregate by time: GROUP BY window(column, '1 minute'); or keep a row of each key: SELECT key, "
    "max_by(column, time) AS column … GROUP BY key, with `output: update` and `key`; or write "
    "`output: current` and `key`."
)
_REMOVE = "remove it; put rows in order when you read the view."
_HINTS = {
    "limit": "remove it; or write ORDER BY … LIMIT with `output: current` and `key`.",
    **dict.fromkeys(("offset", "order", "sort"), _REMOVE),
}
OR_CURRENT = "; or write `output: current` and `key`."
_OF_WINDOW = {"this", "partition_by", "order", "spec", "alias", "over"}
