"""Parses the SQL of a row view: one SELECT over one collection that computes each row from one row.

Its items and its condition are expressions like those of a sink (mzplan.schema.sql.expressions). Spark gets
only these parts, never the text itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, takewhile
from typing import Any

from mzplan.model.address import is_valid_name
from mzplan.model.resources import Body
from mzplan.schema.kinds import ResourceKind
from mzplan.schema.relations.parse import is_relational, is_same_query, with_names
from mzplan.schema.sql.expressions import Parsed, parse_select, parse_where
from mzplan.schema.sql.sql_text import SqlTextError, Token, bare, collection_name, tokens

_NOT_OF_ROWS = "it isn't SELECT … FROM a collection WHERE …, which computes each row from one row"
_BY = frozenset(["cluster", "distribute", "group", "order", "sort"])
_BEFORE_OPERAND = frozenset(["where", "and", "or", "not"])
_CLAUSES = frozenset(
    re.findall(
        r"\w+",
        "anti cluster cross distribute except full group having inner intersect join lateral left limit "
        "minus natural offset order pivot qualify right semi sort tablesample union unpivot window",
    )
)


@dataclass(frozen=True, slots=True)
class QueryPart:
    """A part of a query: its text, and its position in the query."""

    text: str
    offset: int


@dataclass(frozen=True, slots=True)
class ViewQuery:
    """The parts of a view's SQL.

    - `problem`: why the query isn't that of a row view, as a clause; then only `offset` counts.
    - `offset`: the position of the problem.
    - `collection`: the name of the collection that the query reads.
    - `named`: the start and end of each use of that name, in order, including qualifiers of columns.
    """

    problem: str = ""
    offset: int = 0
    collection: QueryPart = QueryPart("", 0)
    items: tuple[QueryPart, ...] = ()
    where: QueryPart | None = None
    named: tuple[tuple[int, int], ...] = ()

    def fault(self) -> tuple[str, int] | None:
        """Return why a row view can't have the query, and the position; None if it can."""
        if self.problem:
            return self.problem, self.offset
        faults = ((parsed.problem, part.offset + parsed.offset) for part, parsed in self.expressions())
        return next((fault for fault in faults if fault[0]), None)

    def expressions(self) -> Iterator[tuple[QueryPart, Parsed]]:
        """Yield the items and then the condition, each with its parsed form."""
        yield from ((item, parse_select(item.text)) for item in self.items)
        if self.where is not None:
            yield self.where, parse_where(self.where.text)

    def key(self, keys: Sequence[str]) -> tuple[str, ...] | None:
        """Return the names of the key columns in the view.

        Returns None unless the view selects all of them unchanged.
        """
        names: dict[str, str] = {}
        for item in self.items:
            for column, name in _copies(item.text, keys):
                names.setdefault(column, name)
        kept = tuple(names[column] for column in keys if column in names)
        return kept if len(kept) == len(keys) else None

    @property
    def body(self) -> dict[str, object]:
        """Return the expressions as `select` and `where` of a sink."""
        where = {"where": self.where.text} if self.where is not None else {}
        return {"select": [item.text for item in self.items], **where}


def _copies(item: str, columns: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the columns that an item selects unchanged, each with its name in the view."""
    parsed = parse_select(item)
    if parsed.star:
        yield from ((column, column) for column in columns if column.lower() not in parsed.without)
    if parsed.problem or parsed.name is None:
        return
    read = list(tokens(bare(item).sql))
    is_named = len(read) < 3 or (len(read) == 3 and read[1].word == "as")
    if is_named and all(token.name for token in read):
        copied = (column for column in columns if column.lower() == read[0].name)
        yield from ((c, c if c.lower() == parsed.name.lower() else parsed.name) for c in copied)


@lru_cache(maxsize=4096)
def parse_view(text: str) -> ViewQuery:
    """Parse a view's SQL."""
    body = text.rstrip()
    try:
        sql = bare(body.removesuffix(";")).sql
        return _parse(sql, list(tokens(sql)))
    except SqlTextError as refused:
        return ViewQuery(refused.problem, refused.offset)


def is_row_view(kind: ResourceKind, body: Body) -> bool:
    """Return whether a view computes each row from one row, by SQL."""
    return kind.query_property is not None and not is_relational(body)


def with_collection(text: str, name: str) -> str:
    """Return a view's SQL with another name for the collection that it reads; unchanged if it can't be
    parsed."""
    for start, end in reversed(parse_view(text).named):
        text = text[:start] + collection_name(name) + text[end:]
    return text


def referring_to(kind: ResourceKind, body: Body, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the body with new names for the resources that it refers to, also in its SQL.

    `names`: the new names, by the property that holds the reference: `from`, or `reads[0]` in a list (see
    ResourceKind.references_in).
    """
    changed: dict[str, Any] = dict(body)
    renamed: dict[str, str] = {}
    for role, name in names.items():
        property_, _, index = role.removesuffix("]").partition("[")
        if index:
            changed[property_] = [*changed[property_]]
            renamed[changed[property_][int(index)]] = name
            changed[property_][int(index)] = name
        else:
            changed[property_] = name
    if kind.query_property is not None and "from" in names:
        changed[kind.query_property] = with_collection(changed[kind.query_property], names["from"])
    elif kind.query_property is not None and any(old != new for old, new in renamed.items()):
        changed[kind.query_property] = with_names(changed[kind.query_property], renamed)
        if marks := changed.get("watermarks"):
            changed["watermarks"] = {renamed.get(name, name): mark for name, mark in marks.items()}
    return changed


def gives_same_rows(kind: ResourceKind, earlier: Body, now: Body) -> bool:
    """Return whether two versions of a query's row properties mean the same, apart from names of inputs."""
    property_ = kind.query_property
    if earlier == now or property_ is None:
        return earlier == now
    texts = earlier.get(property_), now.get(property_)
    others = ({**body, property_: ""} for body in (earlier, now))
    return next(others) == next(others) and is_same_query(*map(str, texts))


def _qualifiers(read: list[Token], name: str) -> Iterator[int]:
    """Yield the index of each token with the collection's name before a point."""
    for place in range(len(read) - 2):
        follows_point = place > 0 and read[place - 1].text == "."
        if read[place].name == name and read[place + 1].text == "." and not follows_point:
            yield place


def _parse(sql: str, read: list[Token]) -> ViewQuery:
    if not read or read[0].word != "select":
        raise SqlTextError(_NOT_OF_ROWS)
    if read[1:] and read[1].word in ("distinct", "all"):
        raise SqlTextError(_NOT_OF_ROWS, read[1].start)
    source = _from(read)
    name = read[source + 1] if source + 1 < len(read) else read[source]
    after = read[source + 2 : source + 3]
    if not is_valid_name(name.name) or (after and after[0].text in (".", "(")):
        raise SqlTextError(_NOT_OF_ROWS, name.start)
    rest, alias = _alias(read[source + 2 :])
    has_condition = _has_condition(rest)
    qualifiers = list(_qualifiers(read, alias or name.name))
    named = sorted([source + 1, *([] if alias else qualifiers)])
    sql = _drop_qualifiers(sql, read, qualifiers)
    items = tuple(_items(sql, read[1:source], read[source].start))
    if second := [item for item in items if item.text.startswith("*")][1:]:
        raise SqlTextError("it has all columns twice", second[0].offset)
    end = rest[0].end if has_condition else 0
    return ViewQuery(
        collection=QueryPart(name.name, name.start),
        items=items,
        where=QueryPart(sql[end:], end) if has_condition else None,
        named=tuple((read[place].start, read[place].end) for place in named),
    )


def _from(read: list[Token]) -> int:
    """Return the index of FROM. The FROM of IS DISTINCT FROM, and a field called `from`, don't count."""
    for place, (before, token) in enumerate(pairwise(read), 1):
        if token.word == "from" and before.word != "distinct" and before.text != ".":
            return place
    raise SqlTextError(_NOT_OF_ROWS, read[-1].end)


def _alias(rest: list[Token]) -> tuple[list[Token], str]:
    """Return the tokens after the collection's name and its alias, and the alias; "" without one."""
    says_as = bool(rest) and rest[0].word == "as"
    named = rest[1:] if says_as else rest
    if named and named[0].name and named[0].depth == 0 and named[0].word not in (*_CLAUSES, "where"):
        return named[1:], named[0].name
    if says_as:
        raise SqlTextError("no name follows AS: FROM a collection AS a name", rest[0].start)
    return rest, ""


def _has_condition(rest: list[Token]) -> bool:
    """Return whether a condition follows; nothing may come after it."""
    for before, token, after in zip([None, *rest], rest, [*rest[1:], None], strict=False):
        is_clause = token.word in _CLAUSES and (token.word not in _BY or (after and after.word == "by"))
        is_call = token.word in ("left", "right") and after and after.kind == "open"
        if is_clause and not is_call and not (before is not None and _awaits_operand(before)):
            raise SqlTextError(_NOT_OF_ROWS, token.start)
    if rest and rest[0].word != "where":
        raise SqlTextError(_NOT_OF_ROWS, rest[0].start)
    return bool(rest)


def _awaits_operand(token: Token) -> bool:
    """Return whether a column must follow this token, so that no clause can begin there."""
    return token.kind == "signs" or token.text in (".", ",") or token.word in _BEFORE_OPERAND


def _drop_qualifiers(sql: str, read: list[Token], qualifiers: Sequence[int]) -> str:
    """Return the SQL with each `o.id` replaced by a quoted `id` that ends at the same position.

    The query reads only one collection, and a quoted name can only be a column.
    """
    variables = _variables(read)
    for place in qualifiers:
        token, after = read[place], read[place + 2]
        if clash := next((part for part in (token, after) if part.name in variables), None):
            why = "is also a variable of a function, which Spark would use instead: rename one of them"
            raise SqlTextError(f"{clash.text[:40]} {why}", clash.start)
        if after.text != "*" and (not after.name or sql[after.end :].lstrip().startswith("(")):
            raise SqlTextError(f"{token.text[:40]}. is not followed by a column", token.start)
        column = f"`{after.text}`" if after.kind == "word" else after.text
        sql = sql[: token.start] + column.rjust(after.end - token.start) + sql[after.end :]
    return sql


def _variables(read: list[Token]) -> set[str]:
    """Return the names before each arrow: `x -> …`, `(x, y) -> …`."""
    variables: set[str] = set()
    for place, token in enumerate(read):
        if token.kind == "signs" and token.text.startswith("->"):
            before = reversed(read[:place])
            names = takewhile(lambda token: token.kind != "open", before)
            listed = list(names)
            variables |= {
                token.name for token in (listed if listed and listed[0].text == ")" else listed[:1])
            }
    return variables


def _items(sql: str, read: list[Token], end: int) -> Iterator[QueryPart]:
    """Yield the parts between commas outside of brackets."""
    starts = [read[0].start] if read else [end]
    starts += [token.end for token in read if token.text == "," and token.depth == 0]
    ends = [token.start for token in read if token.text == "," and token.depth == 0]
    for start, stop in zip(starts, [*ends, end], strict=True):
        text = sql[start:stop]
        yield QueryPart(text.strip(), start + len(text) - len(text.lstrip()))
