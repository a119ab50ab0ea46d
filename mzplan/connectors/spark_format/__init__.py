"""Any data source of Spark, by its format and options. mzplan knows nothing of its offsets or its target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.connector import Connector, SinkConnector, SourceConnector
from mzplan.connectors.api.queries import Output, Probe, ResolvedQuery, SinkRun
from mzplan.connectors.api.targets import Recorded, nothing_recorded
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.micro_batches import micro_batch
from mzplan.connectors.frames.row_hash import with_count
from mzplan.connectors.frames.types import ddl, quoted, row_clock
from mzplan.model.diagnostics import error
from mzplan.schema.columns import POSITION, spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

_TICKS = "rate-micro-batch"


def options_of(query: ResolvedQuery) -> dict[str, str]:
    """Return the options of the data source, with secrets, as texts."""
    link = query.link.body
    given = {**link["options"], **query.body["options"], **link["secrets"]}
    return {name: _text(value) for name, value in given.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _route(query: ResolvedQuery) -> str:
    return f"Spark's data source {query.link.body['format']}"


class SparkSource(SourceConnector):
    """Reads the stream of a data source. Its offsets mean nothing to mzplan."""

    position = "STRUCT<row: BIGINT>"
    """`row` grows along the rows that one task reads."""

    def probe(self, query: ResolvedQuery) -> Probe:
        """Return an empty probe: only the data source knows its upstream."""
        return Probe()

    def route(self, query: ResolvedQuery) -> str:
        return _route(query)

    def stream(self, spark: SparkSession, query: ResolvedQuery) -> DataFrame:
        """Raise MzplanError MZ370 if the data source doesn't have the declared columns."""
        if query.body["batch"]:
            _table(query, spark)
            ticks = spark.readStream.format(_TICKS).options(rowsPerBatch=1, numPartitions=1).load()
            rows = ticks.select(*(f.lit(None).cast(spark_type(c.type)).alias(c.name) for c in query.columns))
        else:
            rows = _declared(_loaded(spark.readStream, query), query)
        return rows.withColumn(POSITION, f.struct(row_clock().alias("row")))

    def table(self, query: ResolvedQuery) -> Callable[[SparkSession], DataFrame] | None:
        return partial(_table, query) if query.body["batch"] else None


def _table(query: ResolvedQuery, spark: SparkSession) -> DataFrame:
    return _declared(_loaded(spark.read, query), query)


def _declared(rows: DataFrame, query: ResolvedQuery) -> DataFrame:
    """Return the declared columns. Raise MzplanError MZ370 if the data source doesn't have them."""
    types = {field.name.lower(): field.dataType.simpleString() for field in rows.schema.fields}
    missing = [column.name for column in query.columns if column.name.lower() not in types]
    if missing:
        raise error("MZ370.missing", address=query.address, missing=missing, names=rows.columns)
    declared = rows.sparkSession.createDataFrame([], ddl(query.columns)).schema
    for field in declared.fields:
        found = types[field.name.lower()]
        if found != field.dataType.simpleString():
            raise error(
                "MZ370.other-type",
                address=query.address,
                name=field.name,
                found=found,
                declared=spark_type(field.dataType.simpleString()),
            )
    return rows.select(*(f.col(quoted(column.name)).alias(column.name) for column in query.columns))


def _loaded(reader: DataFrameReader | DataStreamReader, query: ResolvedQuery) -> DataFrame:
    """Return the rows. Some data sources need a schema, and others refuse one."""
    reader = reader.format(query.link.body["format"]).options(**options_of(query))
    try:
        return reader.load()
    except Exception as first:
        try:
            return reader.schema(ddl(query.columns)).load()
        except Exception as second:
            raise (first if "schema" in str(second).lower() else second) from None


class SparkSink(SinkConnector):
    """Writes rows by a data source's own writer."""

    def probe(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Probe:
        """Return an empty probe: only the data source knows its target."""
        return Probe()

    def route(self, query: ResolvedQuery) -> str:
        return _route(query)

    def recorded(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Recorded:
        """Raise MzplanError MZ177: only the data source knows the target."""
        raise nothing_recorded(query, "mzplan doesn't know what the data source has written.")

    def write(self, rows: DataFrame, run: SinkRun) -> DataStreamWriter:
        query = run.query
        format_, options = query.link.body["format"], options_of(query)
        if not query.body["batch"]:
            written = with_count(rows.drop(POSITION))
            return written.writeStream.format(format_).outputMode("append").options(**options)

        def write_batch(batch: DataFrame, step: int) -> None:
            given = batch.drop(POSITION).persist()  # counted, and written
            try:
                with micro_batch(run.fail):
                    if number := given.count():
                        given.write.format(format_).options(**options).mode("append").save()
                    run.wrote(step, number)
            finally:
                given.unpersist()

        return rows.writeStream.foreachBatch(write_batch)


CONNECTOR = Connector(type="spark", source=SparkSource, sink=SparkSink)
