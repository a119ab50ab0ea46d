"""Parses the SQL of a relational view with sqlglot, and finds the collections that it reads.

Each part of sqlglot's tree must be on a list of allowed parts. Spark gets `sql_of(text)`, never the text
itself. The runner also checks Spark's own trees.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mzplan.model.address import is_valid_name
from mzplan.schema.relations.allowed_parts import AllowedParts
from mzplan.schema.relations.nodes import (
    QueryError,
    UnknownFunctionError,
    argument_names,
    from_of,
    generator_of,
    named_queries,
    queries_in,
    refuse_node,
    start_of,
)
from mzplan.schema.sql.functions import is_aggregate
from mzplan.schema.sql.sql_text import (
    BareText,
    SqlTextError,
    bare,
    collection_name,
    plain_sql,
    read_trees,
    tokens,
)

_MOST_READS = 100


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
    - `unknown`: the calls of functions that no supported Spark has, each with its position.
    """

    text: BareText
    tree: Any
    places: Mapping[str, tuple[tuple[int, int], ...]]
    tables: Mapping[int, TableName]
    reads: Mapping[str, int]
    unknown: tuple[tuple[str, int], ...] = ()

    @property
    def is_plain(self) -> bool:
        """Return whether the query is a SELECT over one collection that a row view could have."""
        from sqlglot import exp

        one_row = {"expressions", "from", "where"}
        generators = (item.unalias() for item in self.tree.expressions)
        return (
            isinstance(self.tree, exp.Select)
            and not argument_names(self.tree) - one_row
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

    def require_functions(self, names: Container[str]) -> None:
        """Raise UnknownFunctionError for a function that neither Spark nor the user has.

        `names`: the user's functions.
        """
        for name, offset in self.unknown:
            if name not in names:
                raise UnknownFunctionError(name, offset)

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


def is_current(body: Mapping[str, Any]) -> bool:
    """Return whether this is the body of a view whose rows change where its inputs change."""
    return body.get("output") == "current"


def recomputes(body: Mapping[str, Any]) -> bool:
    """Return whether this is the body of a view whose rows always follow from its newest query."""
    return is_relational(body) and is_current(body)


def sql_of(text: str) -> str:
    """Return the SQL of a view for Spark, without comments. Raises SqlTextError."""
    return _bare(text).sql


def with_names(text: str, names: Mapping[str, str]) -> str:
    """Return a relational view's SQL with collections renamed by `names`; invalid SQL is unchanged."""
    try:
        return parse_query(text, over_tables=True).with_names(names, text)
    except QueryError:
        return text


def is_same_query(earlier: str, now: str) -> bool:
    """Return whether two queries differ only in blanks, comments and names of renamed collections."""
    if plain_sql(earlier) == plain_sql(now):
        return True
    try:
        old, new = (parse_query(text, over_tables=True) for text in (earlier, now))
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
def parse_query(text: str, *, over_tables: bool = False) -> RelationalQuery:
    """Parse a view's SQL. Raises QueryError if no view can have it.

    `over_tables`: whether the query reads collections as tables, as a current view does, not as streams.
    """
    try:
        written = _bare(text)
        tree = _tree(written)
        parts = AllowedParts(written, over_tables)
        parts.query(tree)
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
    return RelationalQuery(written, tree, places, tables, reads, tuple(parts.unknown))


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
        refuse_node("it is more than one query", statements[-1] if len(statements) > 1 else None)
    return statements[0]


def _places(tree: Any) -> tuple[dict[str, tuple[tuple[int, int], ...]], dict[int, TableName]]:
    """Return `places` and `tables` of a RelationalQuery. Raises QueryError for an invalid name."""
    spans: dict[str, list[tuple[int, int]]] = {}
    tables: dict[int, TableName] = {}
    for select, table, around in _tables(tree):
        identifier = table.this
        name = identifier.name
        if not is_valid_name(name):
            problem = "it must read a source or view of the project by its name"
            refuse_node(problem, table, "name it as the project does: small letters, digits and _.")
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
        clauses = (node.args[clause] for clause in ("where", "having") if node.args.get(clause))
        parts += (query for clause in (*node.expressions, *clauses) for query in queries_in(clause))
    else:
        parts = [node.this, node.expression] if isinstance(node, exp.SetOperation) else [node.this]
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
    """Return each use of a table's name as a qualifier in one SELECT, and in the subqueries of expressions.

    Not in subqueries that have a relation of this name themselves.
    """
    from sqlglot import exp

    columns = [column for column in select.find_all(exp.Column) if _select_with(column, name) is select]
    firsts = [next(iter(column.parts)) for column in columns if len(column.parts) > 1]
    return [first for first in firsts if isinstance(first, exp.Identifier) and first.name == name]


def _select_with(column: Any, name: str) -> Any:
    """Return the innermost SELECT around a column that has a relation of this name."""
    from sqlglot import exp

    select = column.find_ancestor(exp.Select)
    while select is not None:
        relations = [from_of(select), *(join.this for join in select.args.get("joins") or ())]
        if any(relation is not None and relation.alias_or_name == name for relation in relations):
            return select
        select = select.find_ancestor(exp.Select)
    return None


def _span(identifier: Any) -> tuple[int, int]:
    return identifier.meta["start"], identifier.meta["end"] + 1
