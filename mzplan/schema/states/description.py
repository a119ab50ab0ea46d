"""The description of a query's state: what Spark stores for each stateful operator, and what it means."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from mzplan.schema.relations.nodes import QueryError
from mzplan.schema.relations.parse import RelationalQuery, parse_query
from mzplan.schema.relations.tree import Input
from mzplan.schema.sql.faults import varying_in
from mzplan.schema.sql.functions import functions
from mzplan.schema.sql.sql_text import SqlTextError, function_name, tokens
from mzplan.schema.states.normal import Normal, UndecidedError, ensure_plain
from mzplan.schema.states.reading import Reading
from mzplan.schema.states.rows import Operator, Rows

_SLIDING = re.compile(r"window\(.*?, '([^']*)', '([^']*)'")


@dataclass(frozen=True, slots=True)
class Part:
    """A key or a value of an operator.

    - `text`: its normal form. `shown`: its SQL, for people.
    - `types`: the types of its fields in Spark's state; None if only Spark knows them.
    """

    text: str
    shown: str
    types: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Below:
    """The rows that an operator reads: their source, and the conditions on them with their SQL.

    - `renames`: a SELECT renames or computes columns that a condition may make NOT NULL. Spark then may store
      them as nullable, and compares that.
    """

    source: str
    filters: Mapping[str, str]
    renames: bool = False


@dataclass(frozen=True, slots=True)
class StatefulOperator:
    """What Spark keeps for one operator.

    - `values`: for an aggregation, the aggregates; for a join, the columns that each side keeps.
    - `conditions`: of a join, except those that compare its keys.
    - `certain`: of a join, the columns that each side needs apart from conditions on one side. Spark may
      evaluate such a condition before the join, and then doesn't store its columns.
    """

    kind: str
    keys: tuple[Part, ...]
    values: tuple[tuple[Part, ...], ...]
    conditions: tuple[Part, ...]
    below: tuple[Below, ...]
    certain: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column of the result: its name, its normal form, and its SQL."""

    name: str
    text: str
    shown: str


@dataclass(frozen=True, slots=True)
class StateDescription:
    """The state of a query.

    - `operators`: from the leaves up, left before right, as Spark numbers them.
    - `pushed`: conditions above all operators that Spark may evaluate below one, with their SQL.
    - `kept`: the other conditions above all operators.
    - `source`: where the rows of the result come from.
    - `paths`: the fields that the query reads in columns. Of a struct, a join may store only these.
    """

    operators: tuple[StatefulOperator, ...]
    pushed: Mapping[str, str]
    kept: Mapping[str, str]
    source: str
    columns: tuple[OutputColumn, ...]
    paths: frozenset[str] = frozenset()


def describe_state(
    sql: str, inputs: Mapping[str, Input], body: Mapping[str, Any] = MappingProxyType({})
) -> StateDescription:
    """Return the description of a query's state over these streams. Raises UndecidedError.

    `body`: the view's settings, with the functions of the user that the query calls.
    """
    try:
        query = parse_query(sql)
        _ensure_whole(query)
        reading = Reading(query, inputs, body)
        return _description(reading, reading.rows(query.tree, {}))
    except (QueryError, SqlTextError) as refused:
        raise UndecidedError(refused.problem) from None
    except RecursionError:
        raise UndecidedError("the query is nested too deep") from None


def _ensure_whole(query: RelationalQuery) -> None:
    """Raise UndecidedError unless sqlglot's tree surely has everything that decides the query's rows."""
    from sqlglot import exp

    tree, sql = query.tree, query.text.sql
    if (varying := varying_in(tree, sql)) is not None:
        raise UndecidedError(f"{varying[0]} changes each time")
    read = list(tokens(sql))
    numbers = Counter(t.text.lower().rstrip("lsyfdb") for t in read if t.kind == "number")
    literals = list(tree.find_all(exp.Literal))
    numbers -= Counter(str(literal.this).lower().rstrip("lsyfdb") for literal in literals)
    calls = Counter(
        token.word
        for token, after in itertools.pairwise(read)
        if after.text == "(" and token.word in functions() and token.word not in _WORDS
    )
    for call in tree.find_all(exp.Func):
        calls -= Counter([function_name(call, sql)])
    for node in tree.find_all(exp.Cast):
        if type(node.this).__name__ in ("Cast", "TryCast"):
            raise UndecidedError("a cast stands in a cast")
        calls -= Counter([str(node.to.sql(dialect="spark")).lower(), "cast"])
    if odd := [*numbers, *calls]:
        raise UndecidedError(f"the analysis may not see {odd[0]} as Spark does")


# Calls that sqlglot reads as a node of one class that has all their parts.
_WORDS = frozenset(
    [
        "and",
        "between",
        "case",
        "exists",
        "extract",
        "filter",
        "if",
        "ilike",
        "in",
        "like",
        "not",
        "or",
        "rlike",
        "trim",
        "when",
    ]
)


def _description(reading: Reading, rows: Rows) -> StateDescription:
    needed, certain = _needed(reading, rows), _needed(reading, rows, least=True)
    operators = []
    for operator in reading.operators:
        _ensure_order(operator, needed)
        described = _operator(operator, needed)
        sides = tuple(tuple(v.text for ref, v in side.items() if ref in certain) for side in operator.kept)
        operators.append(replace(described, certain=sides))
    pushed, kept = _above(reading, rows)
    return StateDescription(
        tuple(operators),
        pushed,
        kept,
        rows.source,
        tuple(OutputColumn(o.name, o.value.text, o.value.shown or o.name) for o in rows.outputs),
        frozenset(reading.paths),
    )


def _needed(reading: Reading, rows: Rows, *, least: bool = False) -> set[str]:
    """Return the columns that the result, a key or a condition needs, at any depth.

    `least`: leave out the conditions that read one side of a join.
    """
    open_ = [ref for output in rows.outputs for ref in output.value.refs] + list(reading.needed)
    conditions = list(rows.filters)
    for operator in reading.operators:
        open_ += [ref for key in operator.keys for ref in key.refs]
        conditions += [*operator.conditions, *(f for side in operator.sides for f in side.filters)]
    open_ += [ref for one in conditions if not least or _sides(one) != 1 for ref in one.refs]
    needed: set[str] = set()
    while open_:
        ref = open_.pop()
        if ref not in needed:
            needed.add(ref)
            open_ += reading.needs.get(ref, ())
    return needed


def _ensure_order(operator: Operator, needed: set[str]) -> None:
    """Raise UndecidedError if Spark may store the aggregates in another order than that of the text."""
    own = [ref for ref in operator.values if ref in needed]
    for order in operator.orders:
        named = [ref for ref in order if ref in needed]
        if named != [ref for ref in own if ref in named]:
            raise UndecidedError("a query above an aggregation puts its aggregates in another order")
    texts = [tuple(sorted(re.split(r"[(), ]+", operator.values[ref].text))) for ref in own]
    if len(set(texts)) < len(texts):
        raise UndecidedError("Spark may keep two aggregates as one")


def _operator(operator: Operator, needed: set[str]) -> StatefulOperator:
    aggregates = tuple(
        Part(value.text, value.shown, operator.buffers[ref])
        for ref, value in operator.values.items()
        if ref in needed
    )
    kept = tuple(
        tuple(_part(value) for ref, value in side.items() if ref in needed) for side in operator.kept
    )
    return StatefulOperator(
        "aggregation" if operator.kind == "DISTINCT" else operator.kind,
        tuple(_key(operator, key) for key in operator.keys),
        kept or (aggregates,),
        tuple(map(_part, operator.conditions)),
        tuple(replace(_below(side), renames=_may_be_null(operator, side)) for side in operator.sides),
    )


def _key(operator: Operator, key: Normal) -> Part:
    """Return a key. A join's key has the type of the columns that it compares.

    Spark computes overlapping windows by another plan, in which they may be NULL, and compares that too.
    """
    if (sliding := _SLIDING.match(key.text)) and sliding[1] != sliding[2]:
        return Part(key.text, key.shown, (f"{key.type}, which may be NULL",) if key.type else None)
    if not operator.kept:
        return _part(key)
    sides = {ref: value for side in operator.kept for ref, value in side.items()}
    types = {sides[ref].type for ref in key.refs}
    is_plain = key.text.startswith("EQ(") and len(key.refs) == 2 and len(types) == 1
    type_ = types.pop() if is_plain else None
    return Part(key.text, key.shown, (type_,) if type_ else None)


def _part(value: Normal) -> Part:
    return Part(value.text, value.shown, (value.type,) if value.type else None)


def _may_be_null(operator: Operator, rows: Rows) -> bool:
    """Return `renames` of a Below."""
    stored = {ref for key in operator.keys for ref in key.refs}
    has_condition = any(not stored.isdisjoint(one.refs) for one in rows.filters)
    return rows.renames and (bool(operator.kept) or rows.is_united or has_condition)


def _below(rows: Rows) -> Below:
    """Return the rows below an operator.

    Conditions that compare both sides of a join keep their order, because Spark may add them to the join's
    keys.
    """
    several = [one for one in rows.filters if _sides(one) > 1]
    for condition in several:
        ensure_plain(condition)
    filters = {f"{several.index(one) if one in several else ''}{one.text}": one.shown for one in rows.filters}
    return Below(rows.source, filters)


def _sides(condition: Normal) -> int:
    """Return how many sides of joins a condition reads."""
    of_operators = (ref.partition(".") for ref in condition.refs if ref.startswith("op"))
    return len({operator + column[0] for operator, _, column in of_operators})


def _above(reading: Reading, rows: Rows) -> tuple[dict[str, str], dict[str, str]]:
    """Return `pushed` and `kept` of a StateDescription.

    A condition on aggregates alone stays above its aggregation; Spark evaluates others as early as it can.
    """
    values = {ref for operator in reading.operators for ref in operator.values}
    of_values = {one.text: one.shown for one in rows.filters if one.refs and values.issuperset(one.refs)}
    others = _below(rows).filters
    pushed = {text: shown for text, shown in others.items() if text not in of_values}
    mixes = any(not values.isdisjoint(one.refs) for one in rows.filters if one.text not in of_values)
    return (dict(others), {}) if mixes else (pushed, of_values)
