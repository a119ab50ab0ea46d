"""Joins of two streams: Spark matches keys that are NULL, unless a condition excludes them.

Spark's state store finds the rows of the other stream by the bytes of their key, and NULL has bytes, too.
Spark excludes NULL only if the key is a column. It doesn't for DOUBLE and FLOAT, for types that contain them,
and for expressions such as `nullif(a, 0)`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mzplan.spark.expression_trees import class_of, short_name
from mzplan.spark.query_trees import analysed_plan, elements, nodes_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def joins_streams(name: str, node: Any) -> bool:
    """Return whether a node of an analysed plan, with this name, is a join of two streams."""
    return bool(name == "Join" and node.left().isStreaming() and node.right().isStreaming())


def without_null_matches(rows: DataFrame) -> DataFrame:
    """Return the rows of a query, without those that a join of streams matches by `NULL = NULL`.

    Each condition `a = b` of the query becomes `a = b AND a IS NOT NULL AND b IS NOT NULL`, which SQL's `=`
    already means. So an outer join still has its rows without a match, and `<=>` still matches NULL.
    """
    plan = analysed_plan(rows)
    if not any(joins_streams(name, node) for name, node in nodes_of(plan)):
        return rows
    from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

    session: Any = rows.sparkSession
    dataset = session._jvm.org.apache.spark.sql.classic.Dataset
    return ClassicDataFrame(dataset.ofRows(session._jsparkSession, _Guard(session).plan(plan)), session)


class _Guard:
    """Adds `IS NOT NULL` to the conditions of an analysed plan."""

    def __init__(self, session: Any):
        self._jvm = session._jvm
        self._expressions = self._jvm.org.apache.spark.sql.catalyst.expressions

    def plan(self, node: Any) -> Any:
        """Return the plan with guarded conditions in ON and WHERE; Spark also joins by those in WHERE."""
        name = short_name(class_of(node))
        if name == "View":
            return node
        node = self._with_children(node, self.plan)
        if joins_streams(name, node) and node.condition().isDefined():
            condition = self._jvm.scala.Some(self._condition(node.condition().get()))
            return node.copy(node.left(), node.right(), node.joinType(), condition, node.hint())
        if name == "Filter" and node.isStreaming():
            return node.copy(self._condition(node.condition()), node.child())
        return node

    def _condition(self, expression: Any) -> Any:
        """Return a condition that holds for the same rows, and in which each = excludes NULL."""
        name = short_name(class_of(expression))
        if name in ("And", "Or"):
            return self._with_children(expression, self._condition)
        if name == "Not" and short_name(class_of(expression.child())) == "Not":
            return self._condition(expression.child().child())
        if name == "EqualTo":
            for side in elements(expression.children()):
                if side.nullable() and side.deterministic():
                    expression = self._expressions.And(expression, self._expressions.IsNotNull(side))
        return expression

    def _with_children(self, node: Any, changed: Callable[[Any], Any]) -> Any:
        children = elements(node.children())
        now = [changed(child) for child in children]
        if all(one is other for one, other in zip(children, now, strict=True)):
            return node
        return node.withNewChildren(self._jvm.PythonUtils.toSeq(now))
