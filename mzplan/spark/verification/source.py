"""Reads steps of a source or view again from the upstream.

Spark parses Kafka records and lines of files again, because no other parser agrees with it on all numbers,
dates, quotes and malformed records. An endpoint reads an upstream that has rows.

Steps of a view are recomputed in batch, from the collection and the snapshots that it reads. The module
checks whether Spark recomputes a relational query to the same rows, in any order of its input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from mzplan.connectors.api.connector import SourceConnector, Upstream
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.formats.dead_letters import WORD
from mzplan.connectors.frames.row_hash import content_hash
from mzplan.connectors.frames.types import ddl, read_parquet
from mzplan.model.diagnostics import error
from mzplan.schema.columns import POSITION
from mzplan.schema.description import Description
from mzplan.schema.expectations import EXPECT, REMOVING, expectations_of
from mzplan.schema.kinds import resource_kind
from mzplan.schema.source_columns import columns_of
from mzplan.schema.sql.view_query import gives_same_rows, is_row_view, parse_view
from mzplan.spark import failures
from mzplan.spark.collections import read_table
from mzplan.spark.expectations import recomputed_rows_that_stay
from mzplan.spark.process.command_session import QueryToVerify, close_command_session
from mzplan.spark.sql.expression_trees import class_of, short_name
from mzplan.spark.sql.query_trees import analysed_plan, elements, nodes_of
from mzplan.spark.views import compute_of, own_session, rows_of_view
from mzplan.warehouse.checkpoints import collection_path
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.folder import exists
from mzplan.warehouse.rows.content_hash import ContentHash
from mzplan.warehouse.rows.replay import files_of
from mzplan.warehouse.rows.snapshot import SnapshotVersions, name_of
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# These functions add floating-point numbers; another order of rows changes the last digits.
_ADDING = frozenset(("Average", "StddevPop", "StddevSamp", "Sum", "VariancePop", "VarianceSamp"))
# Nodes of functions, whose rows depend on how the input was divided into micro-batches, or on its order.
_OWN_STATE = "keeps state of its own, so the order of the rows may decide what it returns"
_BY_BATCH = {
    "FlatMapCoGroupsInPandas": "sees the groups of one micro-batch at a time",
    "FlatMapGroupsInArrow": "sees the groups of one micro-batch at a time",
    "FlatMapGroupsInPandas": "sees the groups of one micro-batch at a time",
    "FlatMapGroupsInPandasWithState": _OWN_STATE,
    "FlatMapGroupsWithState": _OWN_STATE,
    "TransformWithState": _OWN_STATE,
    "TransformWithStateInPySpark": _OWN_STATE,
}
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
    if by_batch := next((_BY_BATCH[name] for name, _ in nodes if name in _BY_BATCH), ""):
        return Exactness(problem=f"Its function {by_batch}.")
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


class ViewUpstream:
    """The inputs of one view that reads one stream. Implements mzplan.connectors.api.connector.Upstream.

    `resolve`: resolves another description of the same view.
    `position`: the type of `_position`.
    """

    keeps_positions = True  # in a relational view, every position is NULL

    def __init__(
        self,
        spark: SparkSession,
        description: Description,
        resolve: Callable[[Description], ResolvedQuery],
        warehouse: str,
        position: str,
    ):
        ((self._stream, self._read),) = description.reads.items()
        self._spark, self._description, self._resolve = spark, description, resolve
        self._warehouse, self._position = warehouse, position
        self._collection = CollectionLog(collection_path(warehouse, *self._read.place))
        checkpoint = resolve(description).checkpoint
        assert checkpoint is not None, "verifying needs the checkpoint"
        self._descriptions, self._versions = checkpoint.descriptions(), SnapshotVersions(checkpoint.folder)
        self._kind = resource_kind(description.address.kind, description.type)

    def close(self) -> None:
        """Close the session."""
        close_command_session(self._spark)

    def content_hash(self, record: StepRecord) -> ContentHash:
        """See Upstream. The step's rows are computed with the query as it was when the step began."""
        query = self._resolve(self._description_of(record.step))
        self._require_fixed(query)
        files = files_of(self._collection, record)
        with failures.raised_as_gone("Its inputs"):
            return content_hash(recomputed_rows_that_stay(self._computed(query, files, record.step), query))

    def _description_of(self, step: int) -> Description:
        begun = self._descriptions.description_of(step)
        if begun is None:
            return self._description
        later = (entry for entry in reversed(self._descriptions.entries) if entry.step >= begun.step)
        # The newest of equal queries has the newest names of renamed collections.
        newest = next(entry for entry in later if gives_same_rows(self._kind, begun.rows, entry.rows))
        return newest.earlier(self._description)

    def _require_fixed(self, query: ResolvedQuery) -> None:
        """Raise GoneError for a row view with a part whose value changes each time."""
        if not is_row_view(self._kind, query.body):
            return
        view = parse_view(query.body[self._kind.query_property or ""])
        parts = (parsed for _, parsed in view.expressions())
        if varying := next((parsed.varies[0] for parsed in parts if parsed.varies is not None), ""):
            raise GoneError(f"Its query has {varying}, which changes each time.")

    def _computed(self, query: ResolvedQuery, files: Sequence[str], step: int) -> DataFrame:
        session = own_session(self._spark)
        schema = f"{ddl(columns_of(self._read.type, self._read.body))}, {POSITION} {self._position}"
        streams = {self._stream: read_parquet(session, files, schema)}
        compute = compute_of(Connectors(), query)
        rows = rows_of_view(session, streams, self._tables(session, step), query, self._position, compute)
        exactness = exactness_of(analysed_plan(rows))
        if exactness.problem or exactness.adds_floats:
            raise GoneError(exactness.problem or "Its query adds up floating-point numbers.")
        return rows

    def _tables(self, session: SparkSession, step: int) -> dict[str, DataFrame]:
        versions, tables = self._versions.at(step), {}
        for name, read in self._description.snapshots.items():
            version = versions.get(name_of(read.place))
            if version is None:
                raise GoneError(f"The version of {name} that the view read is no longer known.")
            tables[name] = read_table(session, collection_path(self._warehouse, *read.place), version)
        return tables


def open_upstream(verified: QueryToVerify) -> Upstream:
    """Return the upstream of a source, or the collection that a view reads.

    Opens a Spark session in this process if the records need it. Raises MzplanError, also for types that
    can't be read again.
    """
    description, query, connectors = verified.description, verified.resolve(), Connectors()
    if description.address.is_view and not query.keys:
        session, position = verified.open_session(), connectors.position(description)
        return ViewUpstream(session, description, verified.resolve, verified.warehouse, position)
    connector = connectors.source(description.type)
    upstream = connector.upstream(query)
    why = ""
    if not description.address.is_view and upstream is None and connector.keeps_positions is None:
        type_ = f"{description.address.kind} of type {description.type}"
        why = f"A {type_} keeps no positions that could be read again."
    elif query.keys:
        why = (
            "A keyed collection keeps no record that changed nothing, so a step's records can't be compared."
        )
    if upstream is not None and any(e.on_violation in REMOVING for e in expectations_of(query.body)):
        why = "Its expectations drop rows. Only Spark can check them, and its upstream is read without Spark."
    if why:
        raise error("MZ092.not-rereadable", address=query.address, why=why)
    return upstream or SparkUpstream(verified.open_session(), connector, query)


class SparkUpstream:
    """The upstream of one source with a checkpoint. Implements mzplan.connectors.api.connector.Upstream."""

    def __init__(self, spark: SparkSession, connector: SourceConnector, query: ResolvedQuery):
        checkpoint = query.checkpoint
        assert checkpoint is not None, "verifying needs the checkpoint"
        if query.body.get("on_error") == WORD:  # dead letters aren't rows of the collection
            query = replace(query, body={**query.body, "on_error": "skip"})
        self._spark = spark
        self._connector = connector
        self._query = query
        self._log, self._descriptions = checkpoint.log, checkpoint.descriptions()
        self.keeps_positions = bool(connector.keeps_positions)

    def close(self) -> None:
        """Close the session."""
        close_command_session(self._spark)

    def rows(self, record: StepRecord) -> DataFrame:
        """Return the step's rows. Raises GoneError if the step's range of the upstream is unknown."""
        if record.end is None or (record.start is None and self.keeps_positions):
            raise GoneError("The range of the upstream that it read is no longer known.")
        rows = self._connector.replay(
            self._spark, self._query, record.start, record.end, lambda: self._files(record)
        )
        return recomputed_rows_that_stay(rows, self._query_of(record.step))

    def _query_of(self, step: int) -> ResolvedQuery:
        """Return the query with the expectations under which a step began."""
        begun = self._descriptions.description_of(step)
        now = {name: value for name, value in self._query.body.items() if name != EXPECT}
        return replace(self._query, body={**now, **(begun.rows if begun is not None else {})})

    def _files(self, record: StepRecord) -> tuple[str, ...]:
        files = self._log.files(record.start, record.end)
        if not files:
            raise GoneError("The files that it read are no longer known.")
        missing = [file for file in files if not exists(file)]
        if missing:  # Spark would skip a missing file
            raise GoneError(f"The upstream: {missing[0]} is gone.")
        return tuple(map(unquote, files))  # Hadoop's paths are URIs without percent-encoding

    def content_hash(self, record: StepRecord) -> ContentHash:
        """See Upstream. Failures of the upstream raise GoneError: usually, it has deleted the records."""
        try:
            rows = self.rows(record)
            return content_hash(rows if self.keeps_positions else rows.drop(POSITION))
        except GoneError:
            raise
        except Exception as problem:
            raise GoneError(f"The upstream: {failures.of_exception(problem).text}") from None
