"""Parses the stateless Spark SQL expressions of `select` and `where`.

This module parses plain expressions itself (`amount * 1.2 AS gross`, `amount > 0`). Only other expressions go
to sqlglot, whose import alone takes longer than a small plan. Spark gets `Parsed.sql`, never the text itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from mzplan.schema.sql.faults import fault_of, varying_in
from mzplan.schema.sql.functions import (
    AGGREGATES,
    GENERATORS,
    WINDOWS,
    bare_calls,
    is_aggregate,
    unknown_functions,
)
from mzplan.schema.sql.sql_text import SqlTextError, bare, read_trees


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_NAME = r"(?:[A-Za-z_]\w*|`[^`]+`)"  # bare text has words of ASCII letters only
_OPERAND = rf"{_NAME}(?:\.{_NAME})*|-?(?:\d+(?:\.\d+)?|\.\d+)|'[^'\\]*'"
_TESTED = r"(?P<null>\s+[iI][sS](?:\s+[nN][oO][tT])?\s+[nN][uU][lL][lL]\b)?"
_OPERATOR = r"\s*(?:<=>|<=|>=|<>|!=|==|[-+*/%=<>])\s*|\s+(?:[aA][nN][dD]|[oO][rR])\s+"
_LINK = rf"(?:{_OPERAND}){_TESTED.replace('?P<null>', '?:')}"
_PLAIN = re.compile(
    rf"\s*(?P<chain>{_LINK}(?:(?:{_OPERATOR}){_LINK})*)(?:\s+[aA][sS]\s+(?P<alias>{_NAME}))?\s*"
)
_CHAIN = re.compile(rf"(?P<operand>{_OPERAND}){_TESTED}(?:{_OPERATOR})?")
_FIRST_NAME, _LAST_NAME = re.compile(_NAME), re.compile(rf"{_NAME}$")
# Words that are values or functions when they stand alone.
VALUES = _words(
    "current_catalog current_database current_date current_schema current_time current_timestamp "
    "current_user false localtimestamp null session_user true user"
)
# Words that may not be columns in an expression: sqlglot parses expressions with them.
_NOT_PLAIN = VALUES | _words(
    "and all any array as between binary case cast date distinct div else end escape exists extract filter "
    "from group having ilike in interval is lateral like limit map not on or order over regexp rlike "
    "select some struct then time timestamp timestamp_ltz timestamp_ntz trim try_cast union using when where "
    "window x"
)
_CALL = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
_STATELESS = "an expression here looks at one row at a time"


@dataclass(frozen=True, slots=True)
class Parsed:
    """The columns that an expression reads, and its result.

    - `problem`: why the expression isn't allowed, "" if it is; then only `offset` counts.
    - `offset`: the position of the problem in the text.
    - `sql`: the SQL for Spark.
    - `columns`: the columns that it reads, each with its position.
    - `name`: the name of the result; None without one.
    - `star`: the expression stands for all columns, except those in `without` (in lower case).
    - `varies`: a part that has another value each time, such as `now()`, and its position; None without one.
    - `bare_calls`: the functions that it calls without parentheses, each with its position.
    - `unknown`: the calls of functions that no supported Spark has, each with its position.
    """

    problem: str = ""
    offset: int = 0
    sql: str = ""
    columns: tuple[tuple[str, int], ...] = ()
    name: str | None = None
    star: bool = False
    without: frozenset[str] = frozenset()
    varies: tuple[str, int] | None = None
    bare_calls: tuple[tuple[str, int], ...] = ()
    unknown: tuple[tuple[str, int], ...] = ()


@lru_cache(maxsize=8192)
def parse_select(text: str) -> Parsed:
    """Parse one item of `select`."""
    return _parse(text, "SELECT ")


@lru_cache(maxsize=8192)
def parse_where(text: str) -> Parsed:
    """Parse a condition."""
    return _parse(text, "SELECT 1 WHERE ")


def _parse(text: str, prefix: str) -> Parsed:
    try:
        bare_text = bare(text)
        if not bare_text.sql.strip():
            return Parsed("it is empty")
        parsed = _plain(bare_text.sql, single="WHERE" not in prefix)
        if parsed is None:  # parse it as the only item, or the condition, of a query without a table
            parsed = read_trees(prefix, bare_text, _Reader(prefix, bare_text.sql).read)
    except SqlTextError as refused:
        return Parsed(refused.problem, refused.offset)
    return parsed if parsed.problem else replace(parsed, sql=bare_text.sql)


def _plain(text: str, single: bool) -> Parsed | None:
    """Parse a chain of columns, numbers and texts with operators between them, each perhaps with `IS [NOT]
    NULL`.

    Returns None for any other expression.
    """
    match = _PLAIN.fullmatch(text)
    if match is None or (match["alias"] is not None and not single):
        return None
    operands = list(_CHAIN.finditer(text, *match.span("chain")))
    is_alone = len(operands) == 1 and operands[0]["null"] is None
    refused = VALUES if is_alone else _NOT_PLAIN
    columns: list[tuple[str, int]] = []
    for operand in operands:
        first = _FIRST_NAME.match(operand["operand"])
        if first is not None:
            if first.group().lower() in refused:
                return None
            columns.append((_unquote(first.group()), operand.start()))
    name = match["alias"]
    if name is None and is_alone and columns:
        last = _LAST_NAME.search(operands[0]["operand"])
        name = last.group() if last else None
    return Parsed(columns=tuple(columns), name=_unquote(name) if name is not None else None)


def _unquote(word: str) -> str:
    return word[1:-1] if word.startswith("`") else word


class _Reader:
    """Reads an expression from sqlglot's tree of a query that consists of this expression only."""

    def __init__(self, prefix: str, text: str):
        self.text = text
        self.skipped = len(prefix)
        self.where = "WHERE" in prefix

    def read(self, statements: list[Any]) -> Parsed:
        from sqlglot import exp

        allowed = {"expressions", "where"} if self.where else {"expressions"}
        query = statements[0] if len(statements) == 1 else None
        if not isinstance(query, exp.Select) or {key for key, value in query.args.items() if value} - allowed:
            return Parsed(f"it is more than one expression; {_STATELESS}")
        if len(query.expressions) != 1:
            return Parsed("it is several expressions: write each as an item of its own")
        tree = query.args["where"].this if self.where else query.expressions[0]
        if problem := (
            self._state_fault(tree) or self._star_fault(tree) or fault_of(tree, self.text, self.skipped)
        ):
            return Parsed(*problem)
        columns = tuple(self._columns(tree))
        varies = varying_in(tree, self.text)
        unknown = tuple(unknown_functions(tree, self.text, self.skipped))
        bare_ = tuple(bare_calls(tree, self.text))
        if self.where:
            return Parsed(columns=columns, varies=varies, bare_calls=bare_, unknown=unknown)
        if isinstance(tree, exp.Star):
            left_out = tree.args.get("except_") or ()
            if (
                tree.args.get("replace")
                or tree.args.get("rename")
                or any(c.args.get("table") for c in left_out)
            ):
                return Parsed("`*` must be an item of its own, or have EXCEPT (columns)")
            without = frozenset(column.name.lower() for column in left_out)
            return Parsed(columns=columns, star=True, without=without)
        if isinstance(tree, exp.Column) and isinstance(tree.this, exp.Star):
            return Parsed("`column.*` has no fixed names: write its fields one by one")
        if isinstance(tree, exp.Aliases):
            return Parsed("it has several names")
        named = isinstance(tree, exp.Alias | exp.Column | exp.Dot)
        name = (tree.alias or tree.name) if named else None
        return Parsed(columns=columns, name=name, varies=varies, bare_calls=bare_, unknown=unknown)

    def _star_fault(self, tree: Any) -> tuple[str, int] | None:
        """Return the fault of a `*` inside an expression, where it would include mzplan's own column."""
        from sqlglot import exp

        own = tree.this if isinstance(tree, exp.Column) else tree
        for star in tree.find_all(exp.Star):
            if star is not own:
                return (
                    "`*` must be an item of its own, or have EXCEPT; in a call, name the columns",
                    self._offset(star),
                )
        return None

    def _state_fault(self, tree: Any) -> tuple[str, int] | None:
        """Return why the expression needs more than one row, and the position; None if it doesn't."""
        from sqlglot import exp

        for node in tree.walk():
            name = str(node.name).lower() if isinstance(node, exp.Anonymous) else ""
            fault, names = "", frozenset[str]()
            if isinstance(node, exp.Window | exp.RowNumber) or name in WINDOWS:
                fault = "a window function needs other rows"
            elif isinstance(node, exp.Query | exp.Subquery):
                fault = "a subquery needs other rows"
            elif isinstance(node, exp.UDTF | exp.QueryTransform) or name in GENERATORS:
                fault, names = "makes several rows of one", GENERATORS
            elif is_aggregate(node):
                fault, names = "needs other rows", AGGREGATES | WINDOWS
            elif isinstance(node, exp.Placeholder | exp.Parameter):
                fault = "a placeholder has no value here"
            if fault:
                called, offset = self._first_call(names, self._offset(node))
                return f"{called} {fault}; {_STATELESS}".lstrip(), offset
        return None

    def _first_call(self, names: frozenset[str], otherwise: int) -> tuple[str, int]:
        """Return the name of the first call of these functions, as written, and its position."""
        for call in _CALL.finditer(self.text):
            if call[1].lower() in names:
                return call[1], call.start()
        return "this" if names else "", otherwise

    def _columns(self, tree: Any) -> list[tuple[str, int]]:
        """Return the columns that the expression reads, each with its position.

        The column of `payload.address.city` is `payload`.
        """
        from sqlglot import exp

        columns = []
        for column in tree.find_all(exp.Column):
            first = next(iter(column.parts))
            if isinstance(first, exp.Identifier):
                columns.append((first.name, self._offset(first)))
        return sorted(columns, key=lambda pair: pair[1])

    def _offset(self, node: Any) -> int:
        """Return the position of a node's first identifier; sqlglot records no other positions."""
        from sqlglot import exp

        starts = [
            inner.meta["start"]
            for inner in (node, *node.find_all(exp.Identifier))
            if inner is not None and "start" in inner.meta
        ]
        return max(0, min(starts, default=self.skipped) - self.skipped)
