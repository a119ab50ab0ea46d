"""Check before a commit that Spark can run a relational view's query as a stream.

Spark's own check looks at the analysed plan. It can't see that a join of two streams has no equality: Spark
reports that only in the first micro-batch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.model.diagnostics import MzplanError, error
from mzplan.spark.failures import spark_message
from mzplan.spark.query_trees import nodes_of
from mzplan.spark.view_sql import analysed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_UPDATE = "set output: update with `key`, or declare `watermarks` and group by a window of that column."


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule of Spark, recognised by a piece of its message, with plain words for it and the fix.

    `fix`: `{watermarks}` stands for the declaration of the watermarks that are missing, if any."""

    pattern: re.Pattern[str]
    rule: str
    fix: str


def _rule(pattern: str, rule: str, fix: str) -> _Rule:
    return _Rule(re.compile(pattern, re.I), rule, fix)


_RULES = (
    _rule(
        r"aggregations without watermark",
        "With output: append, a group is complete only when the watermark has passed it: without GROUP BY "
        "over a column with a watermark, or a window of it, that is never.",
        _UPDATE,
    ),
    _rule(
        r"session window",
        "A session grows when a row comes, so output: update can't tell which row of the view it replaces.",
        "set output: append, with `watermarks`.",
    ),
    _rule(
        r"distinct aggregations",
        "A stream can't count distinct values: the state would hold each value forever.",
        "use approx_count_distinct(…).",
    ),
    _rule(
        r"correctness.* issue|multiple streaming aggregations",
        "With output: update, a query has only one operator that keeps state.",
        "set output: append, with `watermarks`; or make two views of it.",
    ),
    _rule(
        r"in Update output mode, only in Append",
        "An outer join of two streams can't take back a row that had no match, so it needs output: append.",
        "set output: append; to aggregate the joined rows, make a second view of it.",
    ),
    _rule(
        r"Stream-stream \w+ join .*without a watermark",
        "The join must know when a row can't find a match any more.",
        "{watermarks}limit the time in ON: b.ts BETWEEN a.ts AND a.ts + INTERVAL 1 HOUR.",
    ),
    _rule(
        r"LeftAnti joins? with a streaming .* on the right",
        "A stream has no end, so a row may still find a match in it.",
        "use LEFT JOIN with a limited time, and keep the rows with NULL in a second view.",
    ),
    _rule(
        r"Union between streaming and batch",
        "A snapshot has no new rows that could be added to a stream.",
        "take the snapshot's name out of `snapshots`, or join it.",
    ),
    _rule(
        r"join.* static ",
        "A join with a snapshot can keep all rows of the stream, but not all rows of the snapshot.",
        "put the stream on the side that keeps all rows: FROM the stream LEFT JOIN the snapshot.",
    ),
    _rule(
        r"Queries without streaming sources",
        "The query reads no collection as a stream.",
        "take a collection that it reads out of `snapshots`.",
    ),
)


def require_stream(rows: DataFrame, query: ResolvedQuery) -> None:
    """Raise MzplanError MZ019 if Spark can't stream these rows in the view's output mode.

    `rows`: the rows of a relational view, computed from streams and tables.
    """
    if problem := _problem_of_body(query) or _problem_of_state(rows, query):
        raise _refused(query, *problem)
    spark: Any = rows.sparkSession
    modes = spark._jvm.org.apache.spark.sql.streaming.OutputMode
    mode = modes.Update() if query.body["output"] == "update" else modes.Append()
    checker = spark._jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    try:
        checker.checkForStreaming(analysed(rows), mode)
    except Exception as refused:
        raise _refused(query, *_in_plain_words(spark_message(refused), query)) from None
    if _joins_without_equality(rows):
        raise _refused(
            query,
            "Two streams are joined only by equality: else each row would be compared with all others.",
            "compare a column of each with = in ON.",
        )


def _problem_of_body(query: ResolvedQuery) -> tuple[str, str] | None:
    updates, description = query.body["output"] == "update", query.description
    if updates and description.snapshots:
        return (
            "With output: update, a query keeps state; one with snapshots keeps none.",
            "set output: append.",
        )
    if updates and not query.keys:
        return (
            "With output: update, rows are updated by their key.",
            "declare `key`: the columns of the GROUP BY.",
        )
    if description.snapshots and len(description.reads) > 1:
        others = " and ".join(description.reads)
        return (
            f"Beside snapshots, a query reads one stream; this one reads {others}.",
            "unite or join the streams in a view of their own, or add all but one to `snapshots`.",
        )
    return None


def _problem_of_state(rows: DataFrame, query: ResolvedQuery) -> tuple[str, str] | None:
    operators = {_operator(name, node) for name, node in nodes_of(analysed(rows))} - {""}
    if query.body["output"] == "update" and "aggregation" not in operators:
        return "With output: update, a query aggregates.", "add GROUP BY, or set output: append."
    if query.description.snapshots and operators:
        return (
            f"A query with snapshots computes each micro-batch by itself; this one has "
            f"{' and '.join(sorted(operators))} of streams, which needs earlier micro-batches.",
            "join the snapshot in a view of its own, above or below this one.",
        )
    return None


def _operator(name: str, node: Any) -> str:
    """Return the name of a stateful operator; "" for a stateless node."""
    if name in ("Aggregate", "Distinct") and node.isStreaming():
        return "aggregation"
    joins = name == "Join" and node.left().isStreaming() and node.right().isStreaming()
    return "a join" if joins else ""


def _joins_without_equality(rows: DataFrame) -> bool:
    """Return whether two streams are joined without equality, after Spark's optimization."""
    spark: Any = rows.sparkSession
    plan = analysed(rows)
    if not any(_operator(name, node) == "a join" for name, node in nodes_of(plan)):
        return False
    keys = spark._jvm.org.apache.spark.sql.catalyst.planning.ExtractEquiJoinKeys
    optimized = spark._jsparkSession.sessionState().optimizer().execute(plan)
    return any(
        _operator(name, node) == "a join" and keys.unapply(node).isEmpty()
        for name, node in nodes_of(optimized)
    )


def _in_plain_words(message: str, query: ResolvedQuery) -> tuple[str, str]:
    """Return a plain sentence for Spark's rule, followed by Spark's sentence, and the fix."""
    sentence = message.partition(";")[0].strip()
    unmarked = [name for name in query.description.reads if name not in query.body.get("watermarks", {})]
    watermarks = f"declare `watermarks` for {' and '.join(unmarked)}, and " if unmarked else ""
    for rule in _RULES:
        if rule.pattern.search(message):
            return f"{rule.rule} Spark: {sentence}", rule.fix.replace("{watermarks}", watermarks)
    return sentence, "rewrite the query, or split it into two views."


def _refused(query: ResolvedQuery, rule: str, fix: str) -> MzplanError:
    return error(
        "MZ019",
        f"The query of {query.address} can't run as a stream",
        rule if rule.endswith(".") else f"{rule}.",
        fix,
        address=query.address,
        kind="unfit",
    )
