"""The passes over the state of a query: its operators that keep state, and a digest of it.

By the digest, a plan can tell whether another query can use the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mzplan.schema.relations.nodes import start_of
from mzplan.schema.relations.scopes import Relation
from mzplan.schema.relations.tree import Analysis, Block, Join, Operator
from mzplan.schema.user_functions import function_versions


def find_operators(analysis: Analysis) -> None:
    """Fill in `operators`."""
    for part in analysis.root.walk():
        analysis.operators += _of_join(part) if isinstance(part, Join) else _of_block(part)


def describe_state(analysis: Analysis) -> None:
    """Fill in `state`, if the query keeps state."""
    if not analysis.operators:
        return
    numbers = {name: number for number, name in enumerate(analysis.query.places)}
    watermarks = analysis.body.get("watermarks") or {}
    marks = sorted((numbers[name], mark["column"].lower()) for name, mark in watermarks.items())
    # Spark keeps the columns that `*` stands for and the result needs, in this order.
    starred = [column.name.lower() for column in analysis.starred if column in analysis.used]
    aliases = [("alias", name) for name in analysis.aliases]
    versions = [("function", *pair) for pair in sorted(function_versions(analysis.body).items())]
    analysis.state = analysis.query.digest(*marks, *starred, *aliases, *versions)


def _of_block(block: Block) -> Iterator[Operator]:
    if block.groups is not None and block.stream:
        scope, offset = block.scope, start_of(block.node.args.get("group") or block.node)
        timed, by_edge = (any(map(has, block.groups)) for has in (scope.keeps_time, scope.is_edge))
        yield Operator("aggregation", offset, timed, by_edge)
    if block.node.args.get("distinct") and (block.stream or block.is_union):
        fields = (item.field.parts[0] if block.is_union else item.field for item in block.items)
        yield Operator("DISTINCT", start_of(block.node), any(field.event_time for field in fields))


def _of_join(join: Join) -> Iterator[Operator]:
    if join.right.stream and any(relation.stream for relation in join.left):
        kind = "outer join" if join.side in ("LEFT", "RIGHT", "FULL") else "join"
        timed = _have_time(join.left) and _have_time([join.right])
        yield Operator(kind, start_of(join.node), timed, missing=_missing_time(join))


def _have_time(relations: Iterable[Relation]) -> bool:
    return any(column.event_time for relation in relations for column in relation.fields)


def _missing_time(join: Join) -> str:
    """Return a condition that limits the time of a join; "" if its ON or USING has a time."""
    from sqlglot import exp

    sides = [_times(join.left), _times([join.right])]
    times = {name.lower() for side in sides for _, name in side}
    condition = join.node.args.get("on")
    names = [column.name for column in condition.find_all(exp.Identifier)] if condition is not None else []
    if any(name.lower() in times for name in (*join.using, *names)):
        return ""
    a, b = (".".join(next(iter(side), (name, "ts"))) for side, name in zip(sides, "ab", strict=True))
    return f"{b} BETWEEN {a} AND {a} + INTERVAL 1 HOUR"


def _times(relations: Iterable[Relation]) -> list[tuple[str, str]]:
    """Return the relation and name of each column with a watermark or, without any, of each TIMESTAMP."""
    columns = [(relation.name, column) for relation in relations for column in relation.fields]
    marked = [(name, column.name) for name, column in columns if column.event_time]
    return marked or [(name, column.name) for name, column in columns if column.type == "TIMESTAMP"]
