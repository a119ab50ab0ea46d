"""Relational views as streams: whether Spark can run a query as one, and its joins of two streams.

The plan checks most of Spark's rules (see schema.relations.rules). Before a commit, Spark itself is asked, so
that a violation is found which the SQL alone doesn't show.

A join of two streams also matches keys that are NULL, unless a condition excludes them: Spark's state store
finds the rows of the other stream by the bytes of their key, and NULL has bytes, too. Spark excludes NULL
only if the key is a column. It doesn't for DOUBLE and FLOAT, for types that contain them, and for expressions
such as `nullif(a, 0)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.model.diagnostics import MzplanError, error
from mzplan.spark.failures import spark_message
from mzplan.spark.sql.expression_trees import class_of, short_name
from mzplan.spark.sql.query_trees import analysed_plan, elements, nodes_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Rules with a piece of Spark's message, the rule in plain words, and the fix.
_RULES = (
    (
        r"correctness.* issue|multiple streaming aggregations",
        "With output: update, a query has only one operator that keeps state.",
        "set output: append, with `watermarks`; or make two views of it.",
    ),
    (
        r"session window",
        "A session grows when a row arrives, so output: update can't tell which row of the view to replace.",
        "set output: append, with `watermarks`.",
    ),
    (
        r"LeftAnti joins? with a streaming .* on the right",
        "A stream has no end, so a row may still find a match in it.",
        "use LEFT JOIN with a limited time, and keep the rows with NULL in a second view.",
    ),
)

# Nodes that only functions make, and what they do.
_OWN_STATE = "a function that keeps state"
_KEEPING = {
    "Deduplicate": "a removal of duplicates",
    "DeduplicateWithinWatermark": "a removal of duplicates",
    "FlatMapGroupsInPandasWithState": _OWN_STATE,
    "FlatMapGroupsWithState": _OWN_STATE,
    "GlobalLimit": "a limit",
    "TransformWithState": _OWN_STATE,
    "TransformWithStateInPySpark": _OWN_STATE,
}


def require_stream(rows: DataFrame, query: ResolvedQuery) -> None:
    """Raise MzplanError MZ019 if Spark can't stream these rows in the view's output mode.

    `rows`: the rows of a relational view, computed from streams and tables.
    """
    operators = {_operator(name, node) for name, node in nodes_of(analysed_plan(rows))} - {""}
    if query.body.get("state") == "none" and operators:
        raise _refused(
            query,
            f"It says that it keeps no state (state: none), but it has {' and '.join(sorted(operators))}.",
            "remove `state: none`.",
        )
    if query.description.snapshots and operators:
        raise _refused(
            query,
            f"A query with snapshots computes each micro-batch by itself; this one has "
            f"{' and '.join(sorted(operators))} of streams, which needs earlier micro-batches.",
            "join the snapshot in a view of its own, above or below this one.",
        )
    spark: Any = rows.sparkSession
    modes = spark._jvm.org.apache.spark.sql.streaming.OutputMode
    mode = modes.Update() if query.body.get("output") == "update" else modes.Append()
    checker = spark._jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(analysed_plan(rows), mode)
    except Exception as problem:
        raise _refused_by_spark(query, spark_message(problem)) from None
    # Spark reports this only in the first micro-batch.
    if "a join" in operators and _joins_without_equality(rows):
        raise _refused(
            query,
            "Spark joins two streams only by equality: otherwise it would compare each row with all others.",
            "compare a column of each with = in ON.",
        )


def _operator(name: str, node: Any) -> str:
    """Return the name of a stateful operator; "" for a stateless node."""
    if name in ("Aggregate", "Distinct") and node.isStreaming():
        return "aggregation"
    if name in _KEEPING and node.isStreaming():
        return _KEEPING[name]
    return "a join" if _joins_streams(name, node) else ""


def _joins_without_equality(rows: DataFrame) -> bool:
    """Return whether two streams are joined without equality, after Spark's optimization."""
    spark: Any = rows.sparkSession
    keys = spark._jvm.org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys
    optimized = spark._jsparkSession.sessionState().optimizer().execute(analysed_plan(rows))
    return any(
        _operator(name, node) == "a join" and keys.unapply(node).isEmpty()
        for name, node in nodes_of(optimized)
    )


def _refused_by_spark(query: ResolvedQuery, message: str) -> MzplanError:
    sentence = message.partition(";")[0].strip()
    for pattern, rule, fix in _RULES:
        if re.search(pattern, message, re.I):
            return _refused(query, f"{rule} Spark: {sentence}", fix)
    return _refused(query, sentence, "rewrite the query, or split it into two views.")


def _refused(query: ResolvedQuery, rule: str, fix: str) -> MzplanError:
    return error(
        "MZ019.no-stream", address=query.address, rule=rule if rule.endswith(".") else f"{rule}.", fix=fix
    )


def _joins_streams(name: str, node: Any) -> bool:
    """Return whether a node of an analysed plan, with this name, is a join of two streams."""
    return bool(name == "Join" and node.left().isStreaming() and node.right().isStreaming())


def without_null_matches(rows: DataFrame) -> DataFrame:
    """Return the rows of a query, without those that a join of streams matches by `NULL = NULL`.

    Each condition `a = b` of the query becomes `a = b AND a IS NOT NULL AND b IS NOT NULL`, which SQL's `=`
    already means. So an outer join still has its rows without a match, and `<=>` still matches NULL.
    """
    plan = analysed_plan(rows)
    if not any(_joins_streams(name, node) for name, node in nodes_of(plan)):
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
        if _joins_streams(name, node) and node.condition().isDefined():
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
