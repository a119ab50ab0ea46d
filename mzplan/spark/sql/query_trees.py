"""Check Catalyst's trees of a query over several relations, as parsed and as analysed.

The parsed tree is checked first, because analysis already opens files. Each relation must be an input of the
query by its name, or a CTE of the query. Only listed kinds of nodes may be in a tree.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from mzplan.spark.sql.expression_trees import (
    CATALYST,
    ExpressionCheck,
    Scope,
    class_of,
    short_name,
    time_in,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_LOGICAL = f"{CATALYST}plans.logical."
_RELATION = f"{CATALYST}analysis.UnresolvedRelation"
_WITH = f"{_LOGICAL}UnresolvedWith"
_VIEW = f"{_LOGICAL}View"
_COMMON = {
    f"{_LOGICAL}{name}"
    for name in ("Aggregate", "Distinct", "Filter", "Generate", "Join", "Project", "SubqueryAlias", "Union")
}
_PARSED = _COMMON | {
    _RELATION,
    _WITH,
    f"{CATALYST}analysis.UnresolvedHaving",
    f"{CATALYST}analysis.UnresolvedSubqueryColumnAliases",
}
# Spark turns overlapping windows into Expand.
_ANALYSED = _COMMON | {
    f"{_LOGICAL}{name}" for name in ("CTERelationDef", "CTERelationRef", "Expand", "WithCTE")
}
# A query over tables may also have these, because its rows are computed again.
_OF_TABLES = {
    f"{_LOGICAL}{name}"
    for name in (
        *("Except", "GlobalLimit", "Intersect", "LocalLimit", "Offset", "Sort", "Window"),
        "WithWindowDefinition",
    )
}
# SQL's names of the clauses that aren't allowed, by the nodes that Spark's parser makes from them.
_CLAUSES = {
    "Except": "EXCEPT",
    "GlobalLimit": "LIMIT or TABLESAMPLE",
    "Intersect": "INTERSECT",
    "LateralJoin": "LATERAL",
    "LocalRelation": "VALUES",
    "Offset": "OFFSET",
    "OneRowRelation": "a SELECT without FROM",
    "Pivot": "PIVOT",
    "RelationTimeTravel": "a version of a table",
    "RepartitionByExpression": "DISTRIBUTE BY or CLUSTER BY",
    "Sample": "TABLESAMPLE",
    "ScriptTransformation": "TRANSFORM",
    "Sort": "ORDER BY or SORT BY",
    "UnionLoop": "WITH RECURSIVE",
    "UnresolvedHint": "a hint",
    "UnresolvedInlineTable": "VALUES",
    "UnresolvedTableValuedFunction": "a table-valued function",
    "Unpivot": "UNPIVOT",
    "WithWindowDefinition": "WINDOW",
}


class QueryCheck:
    """Checks the plans of one query.

    `of_tables`: it reads tables, not streams. `functions`: the names of the user's functions that it calls.
    """

    def __init__(
        self,
        expressions: ExpressionCheck,
        *,
        of_tables: bool = False,
        functions: Collection[str] = (),
    ):
        self._expressions, self._functions = expressions, functions
        self._scope: Scope = "tables" if of_tables else "streams"
        self._parsed = _PARSED | _OF_TABLES if of_tables else _PARSED
        self._analysed = _ANALYSED | _OF_TABLES if of_tables else _ANALYSED

    def problem_of_parsed(self, plan: Any, names: Collection[str]) -> str:
        """Return a sentence about the first forbidden part of a parsed plan; "" without one.

        `names`: the names of the inputs, in lower case.
        """
        waiting = [(plan, frozenset(names))]
        while waiting:
            node, known = waiting.pop()
            class_ = class_of(node)
            if class_ not in self._parsed:
                return _not_allowed(class_)
            if class_ == _RELATION and (problem := _problem_of_relation(node, known)):
                return problem
            for expression in elements(node.expressions()):
                if problem := self._expressions.problem_of_parsed(expression, self._scope, self._functions):
                    return problem
            if class_ == _WITH:  # a CTE sees the inputs, and the CTEs before it
                if any(node.productElement(place) is True for place in range(node.productArity())):
                    return _not_allowed("UnionLoop")
                for definition in elements(node.cteRelations()):
                    waiting.append((definition._2(), known))
                    known |= {str(definition._1()).lower()}
            waiting += [(child, known) for child in _parts_of(node)]
        return ""

    def problem_of_analysed(self, plan: Any, inputs: Collection[Any]) -> str:
        """Like problem_of_parsed, for an analysed plan. `inputs`: the plans behind the temporary views."""
        waiting = [plan]
        while waiting:
            node = waiting.pop()
            class_ = class_of(node)
            if class_ == _VIEW:
                if not any(node.child().sameResult(input_) for input_ in inputs):
                    return "It reads a relation that isn't an input of the view."
                continue
            if class_ not in self._analysed:
                return _not_allowed(class_)
            if problem := self._expressions.problem_of_analysed(node, self._scope, self._functions):
                return problem
            waiting += _parts_of(node)
        return ""


def nodes_of(plan: Any) -> Iterator[tuple[str, Any]]:
    """Yield each node of an analysed query, down to the inputs, with its name such as `Join`.

    Parents come first, siblings from left to right.
    """
    waiting = [plan]
    while waiting:
        node = waiting.pop()
        class_ = class_of(node)
        yield short_name(class_), node
        if class_ != _VIEW:
            waiting += reversed(_parts_of(node))


def _parts_of(node: Any) -> list[Any]:
    """Return the children of a plan's node, then the plans of the subqueries in its expressions."""
    return [*elements(node.children()), *elements(node.subqueries())]


def analysed_plan(rows: DataFrame) -> Any:
    """Return Spark's analysed plan of the rows."""
    return rows._jdf.queryExecution().analyzed()


def time_in_plan(plan: Any) -> str:
    """Return `time_in` of the first expression in an analysed plan that has such a text."""
    found = (time_in(expression) for _, node in nodes_of(plan) for expression in elements(node.expressions()))
    return next(filter(None, found), "")


def _problem_of_relation(node: Any, known: Collection[str]) -> str:
    parts = elements(node.multipartIdentifier())
    name = str(parts[0]).lower()
    if len(parts) > 1 or name not in known or not node.options().isEmpty():
        return f"It reads {'.'.join(map(str, parts))}, which isn't an input of the view."
    return "It reads STREAM …: write the collection's name alone." if node.isStreaming() else ""


def _not_allowed(class_: str) -> str:
    name = short_name(class_)
    return f"It has {_CLAUSES.get(name, name)}, which isn't allowed in the query of a view."


def elements(sequence: Any) -> list[Any]:
    """Return the elements of a Scala sequence."""
    return [sequence.apply(place) for place in range(sequence.size())]
