"""A source that copies the collection of another environment, which that environment's runner writes.

It reads the collection's Delta table and the other environment's step records, and writes nothing there. The
other environment doesn't know its readers, so it may remove files that a slow copy still has to read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from mzplan.connectors.adapter.config import endpoint_name
from mzplan.connectors.api.queries import Probe, ResolvedQuery
from mzplan.connectors.api.upstreams import start_over_hint
from mzplan.connectors.delta.source import DeltaSource, file_below, place_of
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.merges import CHANGE_FEED, with_change
from mzplan.connectors.frames.row_hash import row_hash
from mzplan.connectors.frames.types import ddl, quoted
from mzplan.connectors.network.aws import uri_of
from mzplan.endpoints.interface import DurableInputEndpoint, InputConsumer, Step
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.losses import Loss
from mzplan.schema.columns import POSITION, Column, spark_type
from mzplan.warehouse.checkpoints import Checkpoint, collection_path
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.paths import absolute
from mzplan.warehouse.step_history import StepHistory
from mzplan.warehouse.step_record import StepRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LATEST = "latest"
_SHARES = 1_000_000  # a sample is exact to the ten-thousandth of a percent


def collection_of(query: ResolvedQuery) -> str:
    """Return the path or URI of the copied collection."""
    return collection_path(_warehouse(query), *_place(query))


def _warehouse(query: ResolvedQuery) -> str:
    return absolute(query.directory, query.body["collection"]["warehouse"])


def _place(query: ResolvedQuery) -> tuple[str, int]:
    collection = query.body["collection"]
    return collection["id"], int(collection["generation"])


class CollectionCopy(DeltaSource):
    """Reads a collection's rows, then follows its changes; with `as_of: STEP`, the rows as of that step."""

    def folder(self, query: ResolvedQuery) -> str:
        return collection_of(query)

    def reads_log(self, query: ResolvedQuery) -> bool:
        return True

    def too_late(self, query: ResolvedQuery, next_version: int, version: int) -> Diagnostic:
        return Diagnostic.of(
            "MZ067.copy-late",
            address=query.address,
            folder=self.folder(query),
            next_version=next_version,
            version=version,
            start_over_hint=start_over_hint(query),
        )

    def route(self, query: ResolvedQuery) -> str:
        return f"environment {query.body['from_environment']} ({collection_of(query)})"

    def probe(self, query: ResolvedQuery) -> Probe:
        """Check that the collection exists and can be read as of the wanted step."""
        step, folder = _step(query), collection_of(query)
        if step is not None and _is_read(query):
            return Probe()  # the collection may be gone
        try:
            id_ = CollectionLog(folder).table_id()
        except OSError:
            id_ = None
        if id_ is None:
            return Probe(diagnostics=(_not_there(query, folder),))
        version = _version(query, step) if step is not None else None
        place = "/".join(map(str, _place(query)))
        return Probe(
            diagnostics=(version,) if isinstance(version, Diagnostic) else (),
            upstream={"type": query.description.type, "table": id_, "collection": place},
        )

    def compare(
        self, query: ResolvedQuery, recorded: Mapping[str, Any], found: Mapping[str, Any]
    ) -> Diagnostic | None:
        """Return MZ043 for a table that was recreated.

        A new generation reads another collection on purpose, so it loses nothing."""
        if recorded.get("collection") != found.get("collection"):
            return None
        return super().compare(query, recorded, found)

    def loss(self, query: ResolvedQuery, former: Checkpoint) -> Loss | None:
        """Return None: a new generation copies what the collection has now."""
        return None

    def guard(self, query: ResolvedQuery) -> Callable[[int], None] | None:
        return super().guard(query) if _step(query) is None else None

    def stream(self, spark: SparkSession, query: ResolvedQuery) -> DataFrame:
        step, folder = _step(query), collection_of(query)
        if step is not None:
            return self._rows_as_of(spark, query, step)
        files = query.body["max_files_per_trigger"]
        reader = spark.readStream.format("delta").option("maxFilesPerTrigger", files)
        reader = reader.options(**CHANGE_FEED if query.keys else {"skipChangeCommits": "true"})
        table = reader.load(folder)
        place = place_of(file_below(uri_of(spark, folder), folder), is_feed=bool(query.keys))
        return _changes(_sampled(table.select(*_values(query), place.alias(POSITION)), query), query)

    def _rows_as_of(self, spark: SparkSession, query: ResolvedQuery, step: Step) -> DataFrame:
        """Return the rows as of a step, as a stream with one micro-batch."""
        if _is_read(query):  # its files may be gone, and aren't needed
            rows = spark.createDataFrame([], f"{ddl(query.columns)}, {POSITION} {self.position}")
        else:
            folder, version = collection_of(query), _version(query, step)
            if isinstance(version, Diagnostic):
                raise MzplanError(version)
            table = spark.read.format("delta").option("versionAsOf", version).load(folder)
            file = file_below(uri_of(spark, folder), folder)
            place = f.struct(
                f.lit(version).cast("bigint").alias("version"),
                f.lit(1).alias("is_there"),
                file.alias("file"),
                f.lit(0).cast("bigint").alias("row"),
            )
            rows = _sampled(table.select(*_values(query), place.alias(POSITION)), query)
        return _changes(f.broadcast(_one_step(spark, query)).crossJoin(rows), query)


def _values(query: ResolvedQuery) -> list[Any]:
    return [f.col(quoted(c.name)).cast(spark_type(c.type)).alias(c.name) for c in query.columns]


def _sampled(rows: DataFrame, query: ResolvedQuery) -> DataFrame:
    """Return the sample of the rows. The same values are always in it, or never."""
    sample = query.body.get("sample")
    if sample is None:
        return rows
    names = query.keys or [column.name for column in query.columns]
    share = int(Decimal(sample.removesuffix("%")) * _SHARES / 100)
    return rows.where(f.pmod(row_hash(rows.select(*map(quoted, names))), f.lit(_SHARES)) < share)


def _changes(rows: DataFrame, query: ResolvedQuery) -> DataFrame:
    return with_change(rows, "is_there") if query.keys else rows


def _step(query: ResolvedQuery) -> Step | None:
    """Return the step as of which the rows are read; None to follow the collection."""
    as_of = query.body["as_of"]
    return None if as_of == _LATEST else int(as_of)


def _is_read(query: ResolvedQuery) -> bool:
    """Return whether the rows as of a step are read and written."""
    return query.checkpoint is not None and query.checkpoint.log.committed() >= 0


def _version(query: ResolvedQuery, step: Step) -> int | Diagnostic:
    """Return the version of the collection after a step; MZ390 if it can't be read as of that step."""
    history = StepHistory(_warehouse(query), _place(query))
    try:
        steps = history.read(1)
        if steps.since <= step < steps.upper:
            return _written(history.committed(step, step)) or _written(history.committed(0, step)) or 0
    except OSError:
        return _not_there(query, collection_of(query))
    return Diagnostic.of(
        "MZ390.no-step",
        address=query.address,
        environment=query.body["from_environment"],
        name=query.body["source"],
        step=step,
        since=steps.since,
        last=steps.upper - 1,
    )


def _written(records: Sequence[StepRecord]) -> int | None:
    """Return the version that the last of these steps has written; None if none has written anything."""
    versions = (record.version for record in reversed(records))
    return next((version for version in versions if version is not None), None)


def _not_there(query: ResolvedQuery, folder: str) -> Diagnostic:
    return Diagnostic.of(
        "MZ390.not-there",
        address=query.address,
        environment=query.body["from_environment"],
        name=query.body["source"],
        folder=folder,
    )


def _one_step(spark: SparkSession, query: ResolvedQuery) -> DataFrame:
    """Return a stream without columns that has one row, in its first micro-batch."""
    from mzplan.connectors.adapter.source import step_of  # only the runner has pyspark
    from mzplan.connectors.adapter.step_reader import ReaderPlan, data_source

    assert query.checkpoint is not None, "a stream has a checkpoint"
    log = query.checkpoint.log
    logged = log.entry(log.newest())
    columns = (Column("step", "BIGINT"),)
    plan = ReaderPlan(
        subject=str(query.address),
        name=endpoint_name(query),
        factory=OneStepFactory(),
        config={},
        columns=columns,
        secrets=(),
        resume=step_of(logged) if logged else None,
    )
    source = data_source(plan)
    spark.dataSource.register(source)
    schema = f"{ddl(columns)}, {POSITION} STRUCT<step: BIGINT, row: BIGINT>"
    return spark.readStream.format(source.name()).schema(schema).load().select()


class OneStep:
    """A DurableInputEndpoint with one step of one row."""

    def steps(self) -> range:
        return range(1)

    def read(self, step: Step, consumer: InputConsumer) -> None:
        if step in self.steps():
            import pyarrow as pa

            consumer.push(pa.RecordBatch.from_pydict({"step": pa.array([step], pa.int64())}))
            consumer.eoi()
            consumer.committed()

    def commit(self, step: Step) -> None:
        return

    def expire(self, step: Step) -> None:
        return


@dataclass(frozen=True, slots=True)
class OneStepFactory:
    def name(self) -> str:
        return "one step"

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> DurableInputEndpoint:
        return OneStep()
