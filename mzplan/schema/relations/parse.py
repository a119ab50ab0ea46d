"""Parses the SQL of a relational view with sqlglot, and finds the collections that it reads.

Each part of sqlglot's tree must be on a list of allowed parts. Spark gets `sql_of(text)`, never the text
itself. The runner also checks Spark's own trees.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

from mzplan.model.address import is_valid_name
from mzplan.schema.faults import fault_of
from mzplan.schema.functions import NO_FUNCTION, is_aggregate, unknown_functions
from mzplan.schema.sql_text import (
    BareText,
    SqlTextError,
    bare,
    collection_name,
    plain_sql,
    read_trees,
    tokens,
)

_GENERATORS = frozenset(["Explode", "ExplodeOuter", "Posexplode", "PosexplodeOuter", "Inline", "Stack"])
_NAMED_GENERATORS = {"inline_outer": "Inline", "json_tuple": "JsonTuple"}  # sqlglot has no class for them
_SELECT = {"expressions", "from", "joins", "laterals", "where", "group", "having", "distinct", "with"}
_UNION = {"this", "expression", "distinct", "with"}
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

_MOST_READS = 100
_GROUPINGS = "ROLLUP, CUBE and GROUPING SETS aren't allowed"


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


@dataclass(frozen=True, slots=True)
class TableName:
    """A collection's name in FROM or JOIN.

    - `end`: the position after the name, and after its closing backquote.
    - `around`: the names that WITH defines at this place, in lower case.
    """

    name: str
    end: int
    has_alias: bool
    around: frozenset[str]


@dataclass(frozen=True, slots=True)
class RelationalQuery:
    """The SQL of a relational view.

    - `text`: the SQL without comments.
    - `tree`: sqlglot's tree, a Select or Union.
    - `places`: by collection, the start and end of each use of its name, including qualifiers of columns.
      Collections are in the order of the text.
    - `tables`: by position, each collection's name in FROM and JOIN.
    - `reads`: how often Spark reads each collection. Each use of a name from WITH counts.
    """

    text: BareText
    tree: Any
    places: Mapping[str, tuple[tuple[int, int], ...]]
    tables: Mapping[int, TableName]
    reads: Mapping[str, int]

    @property
    def is_plain(self) -> bool:
        """Return whether the query is a SELECT over one collection that a row view could have."""
        from sqlglot import exp

        one_row = {"expressions", "from", "where"}
        generators = (item.unalias() for item in self.tree.expressions)
        return (
            isinstance(self.tree, exp.Select)
            and not _argument_names(self.tree) - one_row
            and len(list(self.tree.find_all(exp.Query))) == 1
            and not any(map(generator_of, generators))
            and not any(alias.args.get("columns") for alias in self.tree.find_all(exp.TableAlias))
            and not any(str(call.name).lower() == "window" for call in self.tree.find_all(exp.Anonymous))
            and not any(isinstance(item, exp.Aliases) for item in self.tree.expressions)
            and not any(map(is_aggregate, self.tree.walk()))
        )

    @property
    def aliases(self) -> Mapping[str, str]:
        """Return the collections by their aliases, in lower case."""
        return {table.alias.lower(): table.name for _, table, _ in _tables(self.tree) if table.alias}

    def offset(self, name: str) -> int:
        """Return the position where the query first names a collection."""
        return self.places[name][0][0]

    def with_names(self, names: Mapping[str, str], sql: str = "") -> str:
        """Return the SQL with collections renamed by `names` (old name to new name).

        `sql`: the query's text with its comments, to keep them. Without it, the result has no comments.
        """
        sql = sql or self.text.sql
        renamed = (name for name in self.places if name in names)
        spans = [(*span, names[name]) for name in renamed for span in self.places[name]]
        for start, end, name in sorted(spans, reverse=True):
            sql = sql[:start] + collection_name(name) + sql[end:]
        return sql

    def digest(self, *more: object) -> str:
        """Return a digest of the query and these settings, independent of names, blanks and comments."""
        numbered = self.with_names({name: f"_{number}" for number, name in enumerate(self.places)})
        words = (t.text if t.kind == "quoted" else t.text.lower() for t in tokens(numbered))
        content = " ".join([*words, *map(repr, more)])
        return f"1:{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def is_relational(body: Mapping[str, Any]) -> bool:
    """Return whether this is the body of a relational view."""
    return "query" in body and "from" not in body


def sql_of(text: str) -> str:
    """Return the SQL of a view for Spark, without comments. Raises SqlTextError."""
    return _bare(text).sql


def with_names(text: str, names: Mapping[str, str]) -> str:
    """Return a relational view's SQL with collections renamed by `names`; invalid SQL is unchanged."""
    try:
        return parse_query(text).with_names(names, text)
    except QueryError:
        return text


def is_same_query(earlier: str, now: str) -> bool:
    """Return whether two queries differ only in blanks, comments and names of renamed collections."""
    if plain_sql(earlier) == plain_sql(now):
        return True
    try:
        old, new = parse_query(earlier), parse_query(now)
    except QueryError:
        return False
    renamed = (name for name, other in zip(old.places, new.places, strict=False) if name != other)
    numbered = (
        query.with_names({name: f"_{number}" for number, name in enumerate(query.places)})
        for query in (old, new)
    )
    is_same = plain_sql(next(numbered)) == plain_sql(next(numbered))
    return is_same and not any(name in new.places for name in renamed)


def _bare(text: str) -> BareText:
    return bare(text.rstrip().removesuffix(";"))


@lru_cache(maxsize=1024)
def parse_query(text: str) -> RelationalQuery:
    """Parse a view's SQL. Raises QueryError if no view can have it."""
    try:
        written = _bare(text)
        tree = _tree(written)
        _Checks(written).query(tree)
        reads = _reads(tree, {})
    except QueryError:
        raise
    except SqlTextError as refused:
        raise QueryError(refused.problem, refused.offset) from None
    except RecursionError:
        raise QueryError("it is nested too deep") from None
    places, tables = _places(tree)
    if not places:
        raise QueryError("it reads no collection", 0, "write SELECT … FROM a source or view of the project.")
    ensure_few(sum(reads.values()))
    return RelationalQuery(written, tree, places, tables, reads)


def ensure_few(reads: int) -> None:
    """Raise QueryError if a query reads collections too often."""
    if reads > _MOST_READS:
        raise QueryError(
            f"Spark would read collections {reads:,} times for it, and at most {_MOST_READS} are allowed: it "
            "computes names in WITH and views with `materialize: false` again for each use",
            hint="make a view of a part that the query uses several times.",
        )


def _tree(written: BareText) -> Any:
    word = next(tokens(written.sql), None)
    if word is None or word.word not in ("select", "with"):
        raise QueryError("it doesn't begin with SELECT or WITH", word.start if word else 0)
    return read_trees("", written, _only_query)


def _only_query(statements: list[Any]) -> Any:
    from sqlglot import exp

    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        _refuse("it is more than one query", statements[-1] if len(statements) > 1 else None)
    return statements[0]


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


def _refuse(problem: str, node: Any = None, hint: str = "") -> NoReturn:
    raise QueryError(problem, start_of(node), hint)


class _Checks:
    """Checks each part of a tree, and raises QueryError for a part that isn't on the lists."""

    def __init__(self, text: BareText):
        self._text = text

    def query(self, node: Any) -> None:
        from sqlglot import exp

        self._with(node)
        if isinstance(node, exp.Subquery) and not _argument_names(node) - {"this", "alias"}:
            self.query(node.this)
        elif isinstance(node, exp.Union):
            self._arguments(node, _UNION)
            self.query(node.this)
            self.query(node.expression)
        elif isinstance(node, exp.Select):
            self._select(node)
        else:
            word = type(node).__name__.upper()
            _refuse(f"{word} can't be computed over streams", node, "use SELECT and UNION ALL.")

    def _with(self, node: Any) -> None:
        for cte in named_queries(node):
            if cte.parent.args.get("recursive"):
                _refuse("WITH RECURSIVE can't be computed over a stream", cte)
            self.query(cte.this)

    def _arguments(self, node: Any, allowed: set[str]) -> None:
        for name in sorted(_argument_names(node) - allowed):
            why = _WORDS.get(name, f"{name.replace('_', ' ').upper()} isn't allowed here")
            match = re.search(rf"\b{re.escape(name)}\b", self._text.sql, re.IGNORECASE)
            raise QueryError(why, match.start() if match else start_of(node), _HINTS.get(name, ""))

    def _select(self, node: Any) -> None:
        from sqlglot import exp

        self._arguments(node, _SELECT)
        source = from_of(node)
        if source is None:
            _refuse("a SELECT has no FROM", node, "write SELECT … FROM a source or view of the project.")
        self._relation(source)
        for join in node.args.get("joins") or ():
            others = _argument_names(join) - {"this", "on", "using", "side", "kind"}
            if others - {"method"} or (others and (not is_natural(join) or join.kind in ("SEMI", "ANTI"))):
                _refuse("this kind of JOIN isn't allowed", join, "write JOIN … ON or JOIN … USING (…).")
            self._relation(join.this)
            if join.args.get("on") is not None:
                self._expression(join.args["on"])
        for lateral in node.args.get("laterals") or ():
            if not lateral.args.get("view") or not generator_of(lateral.this):
                called = lateral.this.sql(dialect="spark").partition("(")[0][:40]
                names = "explode, posexplode, inline, json_tuple or stack"
                _refuse(f"LATERAL VIEW accepts {names}, not {called}", lateral)
            self._generator(lateral.this)
        if isinstance(node.args.get("distinct"), exp.Distinct) and node.args["distinct"].args.get("on"):
            _refuse("DISTINCT ON isn't Spark SQL", node)
        for item in node.expressions:
            self._item(item)
        for name in ("where", "having"):
            if node.args.get(name) is not None:
                self._expression(node.args[name].this)
        group = node.args.get("group")
        if group is not None and _argument_names(group) - {"expressions", "all"}:
            _refuse(_GROUPINGS, group, "write one view for each grouping.")
        for key in group.expressions if group is not None else ():
            if type(key).__name__ in ("Cube", "Rollup", "GroupingSets"):
                _refuse(_GROUPINGS, key, "write one view for each grouping.")
            self._expression(key)

    def _relation(self, node: Any) -> None:
        from sqlglot import exp

        if isinstance(node, exp.Subquery):
            if _argument_names(node) - {"this", "alias"} or not isinstance(node.this, exp.Query):
                _refuse("joins are in brackets", node, "write joins one after the other, without brackets.")
            self.query(node.this)
        elif not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            called = node.sql(dialect="spark").partition("(")[0][:40]
            _refuse(f"{called} isn't a collection: a view reads sources and views by name", node)
        else:
            self._table(node)

    def _table(self, node: Any) -> None:
        if _argument_names(node) - {"this", "alias"}:
            problem = "it must read a source or view of the project by its name"
            _refuse(problem, node, "declare what it reads as a source, and name that.")

    def _item(self, item: Any) -> None:
        from sqlglot import exp

        inner = item.this if isinstance(item, exp.Alias | exp.Aliases) else item
        is_star = isinstance(inner, exp.Column) and isinstance(inner.this, exp.Star)
        if is_star or isinstance(inner, exp.Star):
            if inner.args.get("replace") or inner.args.get("rename"):
                _refuse(
                    "`*` must be a select item of its own, or have EXCEPT",
                    inner,
                    "write other items beside it.",
                )
        elif generator_of(inner):
            self._generator(inner)
        else:
            self._expression(inner)

    def _generator(self, node: Any) -> None:
        for argument in node.iter_expressions():
            self._expression(argument)
        if (fault := fault_of(node, self._text.sql)) is not None:
            raise QueryError(*fault)

    def _expression(self, tree: Any) -> None:
        from sqlglot import exp

        for node in tree.walk():
            if isinstance(node, exp.Query | exp.Subquery):
                _refuse("an expression contains a subquery", node, "join it: … JOIN (SELECT …) AS name ON …")
            if isinstance(node, exp.Window):
                _refuse(_WORDS["windows"], node, _OVER_HINT)
            if generator_of(node) or isinstance(node, exp.UDTF | exp.QueryTransform):
                _refuse("an expression makes several rows of one", node, "use LATERAL VIEW explode(…).")
            if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Func):
                _refuse("a function has a qualifier", node, "call Spark's functions by their names only.")
            if isinstance(node, exp.Placeholder | exp.Parameter):
                _refuse("a placeholder has no value here", node)
            if isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count):
                _refuse("an expression contains `*`", node, "name the columns.")
            if isinstance(node, exp.Command | exp.DDL | exp.DML):
                _refuse("it isn't a query", node)
        if (fault := fault_of(tree, self._text.sql)) is not None:
            raise QueryError(*fault)
        for name, offset in unknown_functions(tree, self._text.sql):
            raise UnknownFunctionError(name, offset)


_OVER_HINT = (
    "aggregate by time: GROUP BY window(column, '1 minute'); or keep a row of each key: SELECT key, "
    "max_by(column, time) AS column … GROUP BY key, with `output: update` and `key`."
)
_HINTS = dict.fromkeys(
    ("limit", "offset", "order", "sort"), "remove it; put rows in order when you read the view."
)


def _argument_names(node: Any) -> set[str]:
    """Return the names of a node's arguments that have a value."""
    return {name.rstrip("_") for name, value in node.args.items() if value}


def _places(tree: Any) -> tuple[dict[str, tuple[tuple[int, int], ...]], dict[int, TableName]]:
    """Return `places` and `tables` of a RelationalQuery. Raises QueryError for an invalid name."""
    spans: dict[str, list[tuple[int, int]]] = {}
    tables: dict[int, TableName] = {}
    for select, table, around in _tables(tree):
        identifier = table.this
        name = identifier.name
        if not is_valid_name(name):
            problem = "it must read a source or view of the project by its name"
            _refuse(problem, table, "name it as the project does: small letters, digits and _.")
        span = _span(identifier)
        spans.setdefault(name, []).append(span)
        tables[span[0]] = TableName(name, span[1], bool(table.alias), around)
        if not table.alias:
            spans[name] += map(_span, _qualifiers(select, name))
    return {name: tuple(sorted(set(found))) for name, found in spans.items()}, tables


def _tables(tree: Any) -> Iterator[tuple[Any, Any, frozenset[str]]]:
    """Yield each table in order, with the SELECT that reads it, and the names that WITH defines around it.

    Names from WITH aren't tables.
    """
    from sqlglot import exp

    for table in sorted(tree.find_all(exp.Table), key=start_of):
        around = _names_around(table)
        if table.name.lower() not in around:
            yield table.find_ancestor(exp.Select), table, around


def _reads(node: Any, names: Mapping[str, Counter[str]]) -> Counter[str]:
    """Return how often a query reads each collection. `names`: the reads of the names in WITH around it."""
    from sqlglot import exp

    if isinstance(node, exp.Table):
        return names.get(node.name.lower()) or Counter([node.name])
    for cte in named_queries(node):
        names = {**names, cte.alias.lower(): _reads(cte.this, names)}
    if isinstance(node, exp.Select):
        source = from_of(node)
        parts = [source] if source is not None else []
        parts += (join.this for join in node.args.get("joins") or ())
    else:
        parts = [node.this, node.expression] if isinstance(node, exp.Union) else [node.this]
    return sum((_reads(part, names) for part in parts), Counter())


def _names_around(table: Any) -> frozenset[str]:
    """Return the names that WITH defines around a table, in lower case."""
    from sqlglot import exp

    names: set[str] = set()
    node = table
    while node is not None:
        parent = node.parent
        if isinstance(node, exp.CTE):  # it can use the names before it
            for earlier in parent.expressions:
                if earlier is node:
                    break
                names.add(earlier.alias.lower())
            node = parent.parent
            parent = node.parent
        elif isinstance(node, exp.Query):
            names |= {cte.alias.lower() for cte in named_queries(node)}
        node = parent
    return frozenset(names)


def _qualifiers(select: Any, name: str) -> Sequence[Any]:
    """Return each use of a table's name as a qualifier in one SELECT, without its subqueries."""
    from sqlglot import exp

    columns = [column for column in select.find_all(exp.Column) if column.find_ancestor(exp.Select) is select]
    firsts = [next(iter(column.parts)) for column in columns if len(column.parts) > 1]
    return [first for first in firsts if isinstance(first, exp.Identifier) and first.name == name]


def _span(identifier: Any) -> tuple[int, int]:
    return identifier.meta["start"], identifier.meta["end"] + 1
