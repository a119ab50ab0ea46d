"""Checks whether Spark recomputes a relational query to the same rows, in any order of its input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mzplan.spark.expression_trees import class_of, short_name
from mzplan.spark.query_trees import elements, nodes_of

# These functions add floating-point numbers; another order of rows changes the last digits.
_ADDING = frozenset(("Average", "StddevPop", "StddevSamp", "Sum", "VariancePop", "VarianceSamp"))
# The values of these functions don't depend on the order of rows, apart from such last digits.
_UNORDERED = _ADDING.union(
    ("AggregateExpression", "BitAndAgg", "BitOrAgg", "BitXorAgg", "BoolAnd", "BoolOr", "Count", "CountIf"),
    ("HyperLogLogPlusPlus", "Max", "Min"),
)
_CLOCKS = frozenset(
    ("CurrentBatchTimestamp", "CurrentDate", "CurrentTime", "CurrentTimestamp", "LocalTimestamp", "Now")
)
_ONE_TO_ONE = frozenset(("Filter", "Project", "SubqueryAlias"))
_PASSED_ON = frozenset(("Alias", "CreateNamedStruct", "GetStructField"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Exactness:
    """The possible differences when the query runs again over the same rows.

    `problem`: why nothing can be compared, in a sentence; "" if something can be compared.
    `adds_floats`: whether floating-point columns may differ in their last digits.
    `one_row_each`: whether a late row changes at most one row of the result.
    `filters_groups`: whether a group may leave the result (HAVING).
    """

    problem: str = ""
    adds_floats: bool = False
    one_row_each: bool = False
    filters_groups: bool = False


def exactness_of(plan: Any) -> Exactness:
    """Return the exactness of an analysed plan."""
    nodes = list(nodes_of(plan))
    aggregates = [node for name, node in nodes if name == "Aggregate"]
    expressions = [expression for _, node in nodes for expression in elements(node.expressions())]
    adds_floats = False
    for expression in expressions:
        for part in _parts(expression):
            name = _name_of(part)
            if name in _CLOCKS:
                return Exactness(problem=f"Its query has {part.prettyName()}, which changes each time.")
            if ".aggregate." in class_of(part) and name not in _UNORDERED:
                return Exactness(
                    problem=f"Its query has {part.prettyName()}, whose value may depend on the order of the "
                    "rows."
                )
            adds_floats |= name in _ADDING and _is_float(part)
        if not expression.deterministic():
            return Exactness(problem="Its query has a function that returns a different value each time.")
    if adds_floats and (len(aggregates) > 1 or _decides_by_floats(plan)):
        return Exactness(
            problem="Other values of its query follow from a sum or average of floating-point numbers, whose "
            "last digits depend on the order of the rows."
        )
    names = [name for name, _ in nodes]
    above = names[: names.index("Aggregate")] if aggregates else []
    return Exactness(
        adds_floats=adds_floats,
        one_row_each=len(aggregates) == 1 and _ONE_TO_ONE.issuperset(above),
        filters_groups="Filter" in above,
    )


def _decides_by_floats(plan: Any) -> bool:
    """Return whether another value depends on a floating-point number, at or above the aggregation."""
    for name, node in nodes_of(plan):
        for expression in elements(node.expressions()):
            if any(map(_is_made_of_floats, _parts(expression, below_aggregates=False))):
                return True
        if name == "Aggregate":
            return False
    return False


def _is_made_of_floats(part: Any) -> bool:
    if _name_of(part) in _PASSED_ON or _is_float(part):
        return False
    return any(map(_is_float, elements(part.children())))


def _is_float(part: Any) -> bool:
    return str(part.dataType().simpleString()) in ("float", "double")


def _parts(expression: Any, *, below_aggregates: bool = True) -> Iterator[Any]:
    """Yield the nodes of an expression; skip aggregates unless `below_aggregates`."""
    waiting = [expression]
    while waiting:
        part = waiting.pop()
        if not below_aggregates and _name_of(part) == "AggregateExpression":
            continue
        yield part
        waiting += elements(part.children())


def _name_of(part: Any) -> str:
    return short_name(class_of(part))
