"""The rows that a sink's target should hold, computed from the collection up to a step.

The rows of each step pass through the sink's select and where as they were when the step began.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.connectors.api.targets import PLACE, Content
from mzplan.connectors.frames.types import FieldsDifferError, cast_by_name, ddl, quoted, read_parquet
from mzplan.schema.columns import POSITION, spark_type
from mzplan.schema.kinds import resource_kind
from mzplan.spark.collections import read_table
from mzplan.spark.sql.projection import project
from mzplan.spark.streams import read_changes
from mzplan.spark.verification.former_reads import OLDEST, FileSteps, FormerReads, steps_of_files
from mzplan.warehouse.checkpoints import StepDescription
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.rows.replay import files_of, versions_of
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType

    from mzplan.schema.description import Description

MUST = "_must"
# The first fields of `_position`: the last and the first step with which the row may have come.
STEP, NOT_BEFORE, ORDER = "_step", "_not_before", "_order"
ROW = "_row"
"""The last field of `_position`, on request: the row as the sink writes it now."""


@dataclass(frozen=True, slots=True)
class _Description:
    """The sink's description from step `first_step` on."""

    first_step: int
    query: ResolvedQuery


class WantedContent:
    """The wanted content of one sink.

    `position`: the type of `_position` in the sink's collection.
    `carried`: the columns of ROW; empty if `_position` shouldn't include ROW.
    """

    def __init__(
        self,
        query: ResolvedQuery,
        resolve: Callable[[Description], ResolvedQuery],
        collection: CollectionLog,
        position: str,
        spark: SparkSession,
        carried: Sequence[Output] = (),
    ):
        self._query, self._resolve, self._collection = query, resolve, collection
        self._spark, self._carried = spark, carried
        self._schema = f"{ddl(query.columns)}, {POSITION} {position}"

    def empty(self, content: Content) -> DataFrame:
        return content.stored_form(project(_positioned(self._empty(), None), self._query), self._query)

    def _empty(self) -> DataFrame:
        return self._spark.createDataFrame([], self._schema)

    def rows(self, read: FormerReads, content: Content, first: int) -> DataFrame:
        """Return the rows that the target should hold, with `_position` and MUST.

        MUST: whether the target must hold the row; it may have lost rows of steps before `first`.
        """
        from pyspark.sql import functions as f

        records = read.records
        descriptions = self._descriptions(records[-1].step)
        boundaries = [description.first_step for description in descriptions[1:]]
        if boundaries and boundaries[0] < read.first_current:
            raise GoneError(
                f"The sink's select or where was changed at step {boundaries[0]}, and its steps up to "
                f"{read.first_current - 1} have read a former generation of the source: which of its rows "
                "came before the change is no longer known."
            )
        descriptions = self._with_former_types(descriptions, read)
        boundaries = [description.first_step for description in descriptions[1:]]
        if self._query.keys:
            rows = self._latest_of_collection(records[-1], boundaries, first)
        else:
            steps = steps_of_files(self._collection, records)
            self._require_separable(steps, boundaries)
            rows = self._added(records[-1], steps)
        parts = []
        for i, description in enumerate(descriptions):
            part = rows
            if i > 0:
                part = part.where(f.col(f"{POSITION}.{STEP}") >= description.first_step)
            if i + 1 < len(descriptions):
                part = part.where(f.col(f"{POSITION}.{STEP}") < descriptions[i + 1].first_step)
            projected = project(self._as_then(part, description.query), description.query)
            parts.append(content.stored_form(self._carrying(projected), description.query))
        held = reduce(lambda union, part: union.unionByName(part), parts)
        if content.keys:
            held = _last_of_each(held, content.keys)
        # A row from before all known steps must be in the target if the target has lost no step.
        return held.withColumn(MUST, f.col(f"{POSITION}.{NOT_BEFORE}") >= first if first > 0 else f.lit(True))

    def keys_of(self, records: Sequence[StepRecord], keys: Sequence[str]) -> DataFrame:
        """Return each key of the target that these steps (in order) of a keyed collection changed.

        Raises GoneError.
        """
        all_steps = replace(records[-1], step=records[0].step, start=records[0].start)
        feed = read_changes(self._spark, self._collection, all_steps, self._query.columns)
        return project(feed, self._query).select(*map(quoted, keys)).distinct()

    def _carrying(self, rows: DataFrame) -> DataFrame:
        """Add ROW to the rows' `_position` on request."""
        from pyspark.sql import functions as f
        from pyspark.sql import types as t

        if not self._carried:
            return rows
        names = {name.lower(): name for name in rows.columns}
        values = []
        for output in self._carried:
            name = names.get(output.name.lower())
            value = f.col(quoted(name)) if name is not None else f.lit(None)
            if output.type:
                before = rows.schema[name].dataType if name is not None else t.NullType()
                value = _cast(value, before, output)
            values.append(value.alias(output.name))
        fields = [f.col(f"{POSITION}.{name}") for name in (STEP, NOT_BEFORE, ORDER)]
        return rows.withColumn(POSITION, f.struct(*fields, f.struct(*values).alias(ROW)))

    def _descriptions(self, last: int) -> list[_Description]:
        """Return the descriptions under which the sink wrote its steps up to `last`, in order."""
        now = self._query.description
        names = resource_kind("sink", now.type).row_properties
        begun = self._query.checkpoint.descriptions().entries if self._query.checkpoint is not None else ()
        rows_now = {name: now.body[name] for name in names if name in now.body}
        changes: list[tuple[StepDescription, int]] = []
        for record in begun:
            if record.step <= last and (not changes or changes[-1][0].rows != record.rows):
                changes.append((record, record.step))
        if not changes or (changes[0][1] > 0 and changes[0][0].rows != rows_now):
            before = [_Description(OLDEST, self._query)]  # from before the recorded history
        else:
            before, changes[0] = [], (changes[0][0], OLDEST)
        later = (_Description(step, self._resolve(record.earlier(now))) for record, step in changes)
        return [*before, *later]

    def _with_former_types(self, descriptions: list[_Description], read: FormerReads) -> list[_Description]:
        """Give the first description the former column types, for the steps that read former generations.

        Later descriptions began after these steps.
        """
        if read.columns is None:
            return descriptions
        oldest, *later = descriptions
        then = _Description(oldest.first_step, replace(oldest.query, columns=read.columns))
        if any(description.first_step == read.first_current for description in later) or not any(
            record.step >= read.first_current for record in read.records
        ):
            return [then, *later]
        return [then, _Description(read.first_current, oldest.query), *later]

    def _as_then(self, rows: DataFrame, query: ResolvedQuery) -> DataFrame:
        """Cast the rows to the types that the query saw: narrower types that can hold these values."""
        from pyspark.sql import functions as f

        now = {column.name: column.type for column in self._query.columns}
        then = [column for column in query.columns if now.get(column.name, column.type) != column.type]
        return rows.withColumns(
            {column.name: f.col(quoted(column.name)).cast(spark_type(column.type)) for column in then}
        )

    def _require_separable(self, steps: FileSteps, boundaries: Sequence[int]) -> None:
        """Raise GoneError if a file has rows of steps that began under different descriptions."""
        for boundary in boundaries:
            merged = any(first < boundary <= last for first, last in steps.spans.values())
            if merged or boundary < steps.known_from:
                raise GoneError(
                    f"The sink's select or where, or the type of a column, was changed at step {boundary}, "
                    "and which rows of the collection came before that is no longer known: their files "
                    "were merged, or the logs of these steps are gone."
                )

    def _added(self, record: StepRecord, steps: FileSteps) -> DataFrame:
        """Return the rows of an append-only collection, up to a step."""
        from pyspark.sql import functions as f

        schema = "file STRING, last INT, first INT"
        spans = [(name, last, first) for name, (first, last) in steps.spans.items()]
        known = f.broadcast(self._spark.createDataFrame(spans, schema))
        parts = [_of_files(part, self._query) for part in self._tables(record)]
        rows = reduce(lambda union, part: union.unionByName(part), parts) if parts else None
        if rows is None:
            return _positioned(self._empty(), None)
        joined = rows.join(known, rows[PLACE] == known["file"], "left")
        return _positioned(joined, (f.col("last"), f.col("first"))).drop(PLACE, "file", "last", "first")

    def _tables(self, record: StepRecord) -> Iterator[DataFrame]:
        """Yield the rows that a sink has read up to a step: one version, then files of the next version."""
        end, log = record.end, self._collection
        if not isinstance(end, dict) or "reservoirVersion" not in end:
            raise GoneError(f"Which part of {log.collection} step {record.step} has read is no longer known.")
        version, index = int(end["reservoirVersion"]), int(end["index"])
        start: dict[str, Any] | None = {"reservoirVersion": version, "index": -1}
        if end.get("isStartingVersion"):
            start = None
        elif version > 0:
            yield read_table(self._spark, log.collection, version - 1)
        if index < 0:
            return
        begun = StepRecord(step=0 if start is None else record.step, start=start, end=end)
        if files := files_of(log, begun):
            yield read_parquet(self._spark, files, self._schema)

    def _latest_of_collection(self, record: StepRecord, boundaries: Sequence[int], first: int) -> DataFrame:
        """Return the rows of a keyed collection after a step, without deleted and replaced rows."""
        if boundaries:
            raise GoneError(
                f"The sink's select or where, or the type of a column, was changed at step {boundaries[-1]}, "
                "and which rows of a keyed collection it had written before that is unknown."
            )
        if first > 0:
            raise GoneError("Which rows of a keyed collection the target may have lost is unknown.")
        lost = {name.lower() for name in self._query.keys} - {
            name.lower() for name in self._query.body.get("key", ())
        }
        if lost:
            raise GoneError(
                f"The sink's key is missing {', '.join(sorted(lost))} of its source's key: several rows then "
                "share a key, and deletions decided which of them the target kept."
            )
        version = _whole_version(self._collection, record)
        return _positioned(read_table(self._spark, self._collection.collection, version), None)


def _cast(value: Expression, before: DataType, output: Output) -> Expression:
    """Cast a value to the current column type. Raises GoneError."""
    from pyspark.sql import types as t

    after = t.StructType.fromDDL(f"`one` {output.type}")
    assert isinstance(after, t.StructType)
    try:
        return cast_by_name(value, before, after.fields[0].dataType)
    except FieldsDifferError as problem:
        raise GoneError(f"{output.name} was written in another form: {problem}.") from None


def _whole_version(log: CollectionLog, record: StepRecord) -> int:
    """Return the last version of a keyed collection that a sink read completely, or raise GoneError."""
    end = record.end
    if not isinstance(end, dict) or not end.get("isStartingVersion"):
        return versions_of(log, replace(record, step=0, start=None))[1]
    begun = replace(record, step=0, start=None)
    if len(files_of(log, begun)) < len(files_of(log, replace(begun, end={**end, "index": 2**63}))):
        raise GoneError(f"Step {record.step} has read only a part of the sink's first snapshot.")
    return int(end["reservoirVersion"])


def _of_files(rows: DataFrame, query: ResolvedQuery) -> DataFrame:
    """Return the collection's columns and the name of each row's file."""
    from pyspark.sql import functions as f

    names = {name.lower() for name in rows.columns}
    columns = []
    for column in query.columns:
        has_column = column.name.lower() in names
        value = f.col(quoted(column.name)) if has_column else f.lit(None).cast(spark_type(column.type))
        columns.append(value.alias(column.name))
    return rows.select(*columns, POSITION, f.col("_metadata.file_name").alias(PLACE))


def _positioned(rows: DataFrame, span: tuple[Expression, Expression] | None) -> DataFrame:
    """Prepend the last and the first step to `_position`, so that they survive a `select`."""
    from pyspark.sql import functions as f

    unknown = f.lit(OLDEST if span is not None else 0)
    last, first = span if span is not None else (unknown, unknown)
    fields = [
        f.coalesce(last, unknown).alias(STEP),
        f.coalesce(first, unknown).alias(NOT_BEFORE),
        f.col(POSITION).alias(ORDER),
    ]
    return rows.withColumn(POSITION, f.struct(*fields))


def _last_of_each(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as f

    order = f.struct(f.col(f"{POSITION}.{STEP}"), f.col(f"{POSITION}.{ORDER}"))
    grouped = rows.groupBy(*(f.col(quoted(key)).alias(f"_key{i}") for i, key in enumerate(keys)))
    last = grouped.agg(f.max_by(f.struct(*(quoted(name) for name in rows.columns)), order).alias("_last"))
    return last.select(*(f.col(f"_last.{quoted(name)}").alias(name) for name in rows.columns))
