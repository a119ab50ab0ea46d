"""Expressions of a query as SQL over other relations, if sqlglot's tree surely has their whole meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mzplan.schema.relations.nodes import (
    argument_names,
    generator_of,
    own_columns,
    own_nodes,
    queries_in,
    start_of,
)
from mzplan.schema.sql.functions import is_aggregate
from mzplan.schema.sql.sql_text import BareText, SqlTextError, bare, read_trees, tokens

_ALIKE = {"!=": "<>", "==": "="}
_BETWEEN = "\x00"
_MOST_TOKENS = 20  # before and after the names of an expression


@dataclass(frozen=True, slots=True)
class Written:
    """The part of a text that an expression is written as."""

    sql: str
    start: int


class FaithfulSql:
    """Finds the SQL of expressions: the part of the query's text that sqlglot reads as an expression.

    sqlglot's own SQL may have other functions. It is used only for expressions without a name.
    """

    def __init__(self, text: BareText):
        self._sql = text.sql
        self._tokens = list(tokens(text.sql))
        self._words = _as_words(text.sql)
        self._parts: dict[int, Written | None] = {}

    def has(self, tree: Any) -> bool:
        """Return whether the expression has SQL that surely means the same."""
        from sqlglot import exp

        is_column = isinstance(tree.unnest(), exp.Column)
        return is_column or self._part(tree) is not None

    def with_columns(self, tree: Any, sql_of: Callable[[Any], str | None]) -> str | None:
        """Return an expression as SQL, with `sql_of` each of its columns; None if one of them has no SQL.

        `has` must return True for it.
        """
        columns = own_columns(tree)
        written = {id(column): sql_of(column) for column in columns}
        if None in written.values():
            return None
        if id(tree) in written:
            return written[id(tree)]
        if (inner := tree.unnest()) is not tree and id(inner) in written:
            return written[id(inner)]
        part = self._part(tree)
        assert part is not None, "has() has found it"
        sql = part.sql
        for column in sorted(columns, key=start_of, reverse=True):
            names = list(column.parts)
            start, end = names[0].meta["start"] - part.start, names[-1].meta["end"] + 1 - part.start
            sql = f"{sql[:start]}{written[id(column)]}{sql[end:]}"
        return sql

    def _part(self, tree: Any) -> Written | None:
        """Return the part of the text that sqlglot reads as this expression; None if it isn't found."""
        if id(tree) not in self._parts:
            found = (part for part in self._parts_around(tree) if _reads_as(part.sql, tree))
            if own_columns(tree):
                self._parts[id(tree)] = next(found, None)
            else:
                sql = str(tree.sql(dialect="spark"))
                self._parts[id(tree)] = Written(sql, 0) if _as_words(sql) in self._words else None
        return self._parts[id(tree)]

    def _parts_around(self, tree: Any) -> Iterator[Written]:
        """Yield the parts of the text with the names in an expression, and with balanced brackets."""
        spans = [node.meta for node in own_nodes(tree) if "start" in node.meta]
        first = min((span["start"] for span in spans), default=0)
        last = max((span["end"] for span in spans), default=-1)
        inside = [n for n, token in enumerate(self._tokens) if first <= token.start and token.end <= last + 1]
        if not inside:
            return
        for start in range(inside[0], max(inside[0] - _MOST_TOKENS, -1), -1):
            for end in range(inside[-1], min(inside[-1] + _MOST_TOKENS, len(self._tokens))):
                part = self._tokens[start : end + 1]
                depth = min(token.depth for token in part)
                is_open = [token.kind for token in part if token.depth == depth]
                if is_open.count("open") == is_open.count("close"):
                    yield Written(self._sql[part[0].start : part[-1].end], part[0].start)


def _reads_as(sql: str, tree: Any) -> bool:
    try:
        select = read_trees("SELECT ", bare(sql), lambda statements: statements[0])
    except SqlTextError:
        return False
    return argument_names(select) == {"expressions"} and select.expressions == [tree]


def _as_words(sql: str) -> str:
    words = (_ALIKE.get(t.text, t.text if t.kind == "quoted" else t.text.lower()) for t in tokens(sql))
    return _BETWEEN + _BETWEEN.join(words) + _BETWEEN


def conjuncts(condition: Any) -> Iterator[Any]:
    """Yield the conditions that AND connects."""
    from sqlglot import exp

    inner = condition.unnest()
    if isinstance(inner, exp.And):
        yield from conjuncts(inner.this)
        yield from conjuncts(inner.expression)
    else:
        yield inner


def is_of_one_row(tree: Any) -> bool:
    """Return whether an expression is computed from the columns of one row, into one value."""
    from sqlglot import exp

    if queries_in(tree):
        return False
    nodes = list(own_nodes(tree))
    called = {str(node.name).lower() for node in nodes if isinstance(node, exp.Anonymous)}
    return "session_window" not in called and not any(
        isinstance(node, exp.Window) or is_aggregate(node) or generator_of(node) for node in nodes
    )


def with_fields(sql: str, fields: Sequence[str]) -> str:
    """Return the SQL of a field in a struct."""
    return ".".join([f"({sql})", *map(quoted, fields)]) if fields else sql


def quoted(name: str) -> str:
    """Return a name in backquotes."""
    return "`{}`".format(name.replace("`", "``"))
