"""Errors of queries, and the nodes of sqlglot's trees that several passes look for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NoReturn

from mzplan.schema.sql.functions import NO_FUNCTION, is_aggregate
from mzplan.schema.sql.sql_text import SqlTextError

_GENERATORS = frozenset(["Explode", "ExplodeOuter", "Posexplode", "PosexplodeOuter", "Inline", "Stack"])
_NAMED_GENERATORS = {"inline_outer": "Inline", "json_tuple": "JsonTuple"}  # sqlglot has no class for them


class QueryError(SqlTextError):
    """Raised for a query that isn't allowed.

    - `problem`: the reason, phrased as a clause.
    - `hint`: the suggested fix, or "" to use the default hint.
    """

    def __init__(self, problem: str, offset: int = 0, hint: str = "", summary: str = ""):
        super().__init__(problem, offset)
        self.hint, self.summary = hint, summary


class UnknownFunctionError(QueryError):
    """Raised for a function that no supported Spark has."""

    def __init__(self, name: str, offset: int):
        super().__init__(NO_FUNCTION, offset, "use functions of Spark SQL.")
        self.name = name


def start_of(node: Any) -> int:
    """Return the position of a node's first name; sqlglot records no other positions."""
    starts = [inner.meta["start"] for inner in node.walk() if "start" in inner.meta] if node else []
    return min(starts, default=0)


def named_queries(node: Any) -> list[Any]:
    """Return the queries that the WITH of a query names."""
    with_ = node.args.get("with_") or node.args.get("with")  # sqlglot has renamed it
    return list(with_.expressions) if with_ is not None else []


def from_of(select: Any) -> Any:
    """Return the node of the first relation in the FROM of a SELECT; None without a FROM."""
    source = select.args.get("from_") or select.args.get("from")
    return source.this if source is not None else None


def is_natural(join: Any) -> bool:
    """Return whether this is a NATURAL JOIN."""
    return str(join.args.get("method") or "").upper() == "NATURAL"


def generator_of(node: Any) -> str:
    """Return the kind of a generator such as explode(…), by sqlglot's classes; "" for another node."""
    kind = type(node).__name__
    if kind == "Anonymous":
        return _NAMED_GENERATORS.get(str(node.name).lower(), "")
    return kind if kind in _GENERATORS else ""


def queries_in(tree: Any) -> list[Any]:
    """Return the outermost queries in an expression: a Subquery, Select or SetOperation of sqlglot."""
    from sqlglot import exp

    walked = tree.walk(prune=lambda node: isinstance(node, exp.Query))
    return [node for node in walked if isinstance(node, exp.Query)]


def own_nodes(tree: Any) -> Iterator[Any]:
    """Yield the nodes of an expression, without the queries in it."""
    from sqlglot import exp

    walked = tree.walk(prune=lambda node: isinstance(node, exp.Query))
    return (node for node in walked if not isinstance(node, exp.Query))


def own_columns(tree: Any) -> list[Any]:
    """Return the columns in an expression, without those in its queries."""
    from sqlglot import exp

    columns = (node for node in own_nodes(tree) if isinstance(node, exp.Column))
    return [column for column in columns if not isinstance(column.this, exp.Star)]


def windows_in(tree: Any) -> list[Any]:
    """Return the window functions (OVER) in an expression."""
    from sqlglot import exp

    return [node for node in own_nodes(tree) if isinstance(node, exp.Window)]


def function_of(window: Any) -> Any:
    """Return the function that a window function calls, without FILTER and IGNORE NULLS."""
    from sqlglot import exp

    called = window.this
    while isinstance(called, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        called = called.this
    return called


def aggregates_in(tree: Any) -> list[Any]:
    """Return the aggregate functions in an expression; a window function isn't one."""
    over = {id(function_of(window)) for window in windows_in(tree)}
    return [node for node in own_nodes(tree) if is_aggregate(node) and id(node) not in over]


def argument_names(node: Any) -> set[str]:
    """Return the names of a node's arguments that have a value."""
    return {name.rstrip("_") for name, value in node.args.items() if value}


def refuse_node(problem: str, node: Any = None, hint: str = "") -> NoReturn:
    raise QueryError(problem, start_of(node), hint)
