"""The passes that check the rules of views: of Structured Streaming, and of current views.

Spark checks the other rules when the runner validates the view.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mzplan.schema.current.order import check_order
from mzplan.schema.current.trace import WITHOUT_ORDER, trace
from mzplan.schema.relations.allowed_parts import OR_CURRENT
from mzplan.schema.relations.nodes import QueryError, generator_of, start_of
from mzplan.schema.relations.tree import Analysis, Block, Item, Join, Operator
from mzplan.schema.sql.faults import varying_in
from mzplan.schema.user_functions import FUNCTIONS

_OUTPUTS = ("append", "update")


def check_rules(analysis: Analysis) -> None:
    """Raise QueryError for the first rule that a query breaks with the settings of its view."""
    for broken in _broken_rules(analysis):
        raise broken


def _broken_rules(analysis: Analysis) -> Iterator[QueryError]:
    operators, body = analysis.operators, analysis.body
    output = body.get("output", "append")
    if output not in _OUTPUTS:  # reported elsewhere
        return
    if not analysis.root.stream:
        yield QueryError("none of the rows come from a stream", 0, "read one collection as a stream.")
    if body.get("snapshots"):
        yield from _beside_snapshots(analysis)
    yield from _calls_in_joins(analysis)
    for operator in operators:
        if operator.kind != "outer join":
            continue
        limit = f"ON … AND {operator.missing}" if operator.missing else ""
        if not operator.timed:
            yield QueryError(
                "an outer join of two streams needs a watermark on both: otherwise a row without a match "
                "could wait forever",
                operator.offset,
                f"declare {watermarks_for(analysis)}{f', and limit the time: {limit}' if limit else ''}"
                f"{OR_CURRENT}",
            )
        elif limit:
            yield QueryError(
                "an outer join of two streams needs a limited time in ON: otherwise a row without a match "
                "could wait forever",
                operator.offset,
                f"limit it: {limit}{OR_CURRENT}",
            )
    if output == "update":
        yield from _updates(analysis)
    else:
        yield from _appends(analysis)
        if "key" in body:
            yield WrongKeyError("a view that only adds rows has no key", "remove `key`, or aggregate by it.")


def _calls_in_joins(analysis: Analysis) -> Iterator[QueryError]:
    """Yield an error for a function of the user in the condition of a join of two streams.

    Spark would keep its values in the state, beside the columns that the state description lists.
    """
    from sqlglot import exp

    own = analysis.body.get(FUNCTIONS, ())
    joins = (part for part in analysis.root.walk() if isinstance(part, Join) and part.right.stream)
    for join in joins:
        condition = join.node.args.get("on")
        if condition is None or not any(relation.stream for relation in join.left):
            continue
        for call in condition.find_all(exp.Anonymous):
            if str(call.name).lower() in own:
                yield QueryError(
                    f"the condition of a join of two streams calls {call.name}, a Python function",
                    start_of(call),
                    "select its value under a name in a subquery, and join by that name.",
                )


def _beside_snapshots(analysis: Analysis) -> Iterator[QueryError]:
    if len([name for name in analysis.query.places if analysis.inputs[name].stream]) > 1:
        yield QueryError(
            "a view with snapshots reads one stream",
            0,
            f"join the streams in a view of their own, and read that with the snapshots{OR_CURRENT}",
        )
    for operator in analysis.operators:
        yield QueryError(
            f"{_a(operator.kind)} keeps state, and a view with snapshots can't",
            operator.offset,
            f"join the snapshots in a view of their own, and read that{OR_CURRENT}",
        )


def _appends(analysis: Analysis) -> Iterator[QueryError]:
    for operator in analysis.operators:
        if operator.timed or operator.kind not in ("aggregation", "DISTINCT"):
            continue
        if operator.by_edge:
            yield QueryError(
                "GROUP BY has only the start or end of a window, and the watermark needs the whole window",
                operator.offset,
                "group by the window, and select its start or end: SELECT window(…).start AS minute, … "
                "GROUP BY window(…).",
            )
        else:
            yield _without_time(analysis, operator)


def _without_time(analysis: Analysis, operator: Operator) -> QueryError:
    """Return the error if no watermark bounds the state of an operator in append mode."""
    is_distinct = operator.kind == "DISTINCT"
    name, column = next(((n, i.event_time) for n, i in analysis.inputs.items() if i.event_time), ("", ""))
    if name:
        verb = "SELECT" if is_distinct else "GROUP BY"
        problem = f"the {verb} leaves out {column} of {name}, which has the watermark"
        why = "rows are added once the watermark has passed them, which never happens then"
        by = f"select {column}" if is_distinct else f"group by a window of it: window({column}, '1 minute')"
    else:
        problem = f"{_a(operator.kind)} in append mode needs a watermark"
        why = "rows are added once and never change, and without a watermark they are never complete"
        by = f"declare {watermarks_for(analysis)} and "
        by += "select that column" if is_distinct else "group by a window of that column"
    root = analysis.root
    columns = [item.field.name for item in root.items if is_distinct or root.groups_in(item)]
    key = f"`key: [{', '.join(columns)}]`" if columns else "`key`"
    grouped = "GROUP BY in place of DISTINCT" if is_distinct else "a GROUP BY"
    return QueryError(
        f"{problem}: {why}",
        operator.offset,
        f"{by}; or write `output: update` and {key}, with {grouped}.",
    )


def watermarks_for(analysis: Analysis) -> str:
    """Return `watermarks` for the streams of a query, each with its first TIMESTAMP column."""
    marks = []
    for name in analysis.query.places:
        if (input_ := analysis.inputs[name]).stream:
            column = next((c.name for c in input_.columns if c.type == "TIMESTAMP"), "…")
            marks.append(f"{name}: {{column: {column}, delay: 10 minutes}}")
    return f"`watermarks: {{{', '.join(marks)}}}`"


def _updates(analysis: Analysis) -> Iterator[QueryError]:
    operators = analysis.operators
    if analysis.root.groups is None:
        yield QueryError(
            "`output: update` needs a GROUP BY in the outermost SELECT, by which rows are updated",
            0,
            "remove `output: update`, or aggregate.",
        )
        return
    if len(operators) > 1:
        yield QueryError(
            f"{_a(operators[0].kind)} and {_a(operators[1].kind)} keep state, and Spark computes one such "
            "operator in update mode",
            max(operator.offset for operator in operators),
            f"put one of them into a view of its own, with `output: append`{OR_CURRENT}",
        )
    yield from _varying(analysis)
    yield from _keys(analysis.root, analysis.body)


def _varying(analysis: Analysis) -> Iterator[QueryError]:
    """Yield an error for a part whose value changes each time."""
    if (varying := varying_in(analysis.query.tree, analysis.query.text.sql)) is not None:
        problem = f"{varying[0]} changes each time, but rows of this view are computed again"
        yield QueryError(problem, varying[1], "use columns of the rows only.")


def _keys(root: Block, body: Mapping[str, Any]) -> Iterator[QueryError]:
    """Yield an error unless `key` has exactly the columns of the GROUP BY: one row for each group."""
    keys = [item for item in root.items if root.groups_in(item)]
    wanted = [item.field.name for item in keys]
    several = next((item.offset for item in root.items if generator_of(item.tree)), None)
    if not root.groups:
        yield QueryError("an aggregation of all rows has no key", 0, "group by a column.")
    elif len({group for item in keys for group in root.groups_in(item)}) < len(root.groups):
        yield QueryError(
            "the SELECT leaves out an expression of the GROUP BY, and rows are updated by all of them",
            root.items[0].offset,
            "select each expression of the GROUP BY under a name.",
        )
    elif several is not None:
        yield QueryError(
            "an item makes several rows of a group, and rows are updated by their group",
            several,
            "select the array itself; or use LATERAL VIEW, whose rows are grouped.",
        )
    elif (item := next((key for key in keys if "MAP<" in (key.field.type or "")), None)) is not None:
        yield QueryError(
            f"{item.field.name} is a MAP, and rows can't be found by one",
            item.offset,
            "group by one of its values, or by sort_array(map_entries(…)).",
        )
    elif sorted(map(str.lower, body.get("key", ()))) != sorted(map(str.lower, wanted)):
        yield WrongKeyError(
            "the key of a view with `output: update` has the columns of its GROUP BY",
            f"write `key: [{', '.join(wanted)}]`.",
        )


class WrongKeyError(QueryError):
    """A key that the query can't have."""

    def __init__(self, problem: str, hint: str):
        super().__init__(problem, 0, hint)


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'ao' else 'a'} {kind}"


def check_current(analysis: Analysis) -> None:
    """Raise QueryError for the first rule of current views that a query breaks: a key, and rows that follow
    from the inputs alone."""
    for broken in _varying(analysis):
        raise broken
    _check_key(analysis)
    check_order(analysis)
    if analysis.body.get("refresh") == "incremental" and (why := trace(analysis).why_full):
        problem = f"`refresh: incremental` can't find the rows that a change affects: {why}"
        raise QueryError(
            problem, 0, "remove it; then each step computes all rows, and writes the difference."
        )


def _check_key(analysis: Analysis) -> None:
    """Raise WrongKeyError unless `key` names columns by which rows can be found."""
    items = {item.field.name.lower(): item for item in analysis.root.items}
    keys = analysis.body.get("key")
    if not isinstance(keys, list) or not keys:
        wanted = ", ".join(item.field.name for item in _identifying(analysis.root)) or "…"
        raise WrongKeyError(
            "a view with `output: current` needs a key, by which its rows are updated and deleted",
            f"write `key: [{wanted}]`, with columns that no two rows have in common.",
        )
    for name in keys:
        item = items.get(str(name).lower())
        if item is None:
            columns = ", ".join(item.field.name for item in items.values())
            raise WrongKeyError(f"the key has {name}, and the query selects {columns}", f"select {name}.")
        if any(part in (item.field.type or "") for part in WITHOUT_ORDER):
            problem = f"{name} is {item.field.type}, and rows can't be found by such a value"
            raise WrongKeyError(problem, "use columns of other types as the key.")


def _identifying(root: Block) -> list[Item]:
    """Return the items that surely identify a row; none if that isn't known."""
    if root.groups is not None:
        return [item for item in root.items if root.groups_in(item)]
    return root.items if root.node.args.get("distinct") else []
