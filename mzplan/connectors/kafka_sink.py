"""The kafka sink: Spark's own Kafka writer, JSON values, at least once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mzplan.columns import POSITION
from mzplan.connectors.interface import Output, Probe, ResolvedQuery, SinkRun
from mzplan.connectors.kafka_options import producer_options
from mzplan.connectors.kafka_probe import KafkaProbe, place
from mzplan.connectors.latest import latest_rows
from mzplan.connectors.spark_types import quoted

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_JSON = {
    "ignoreNullFields": "false",
    # Spark's default would cut a timestamp to milliseconds.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


class KafkaSink:
    """Writes rows to a topic that exists: all of them, or of each micro-batch the latest of each key."""

    def __init__(self) -> None:
        self._probe = KafkaProbe()

    def place(self, query: ResolvedQuery) -> str:
        return place(query)

    def probe(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Probe:
        """Whether the topic is there and may be written."""
        return Probe(diagnostics=self._probe.probe(query, writes=True).diagnostics)

    def write(self, rows: DataFrame, run: SinkRun) -> DataStreamWriter:
        query = run.query
        options = writer_options(query)
        keys: Sequence[str] = query.body.get("key", ())
        if query.body["mode"] != "upsert":
            writer = as_records(rows.drop(POSITION), keys).writeStream.format("kafka")
            return writer.outputMode("append").options(**options)

        def write_batch(batch: DataFrame, step: int) -> None:
            try:
                records = as_records(latest_rows(batch, keys), keys)
                records.write.format("kafka").options(**options).save()
            except BaseException as problem:
                run.fail(problem)
                raise

        return rows.writeStream.foreachBatch(write_batch)


def as_records(rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """The columns `value`, and `key` where the sink has one, as Spark's Kafka writer wants them."""
    from pyspark.sql import functions as f

    value = f.to_json(f.struct(*(f.col(quoted(column)) for column in rows.columns)), _JSON)
    if not keys:
        return rows.select(value.alias("value"))
    return rows.select(_key(rows, keys).alias("key"), value.alias("value"))


def _key(rows: DataFrame, keys: Sequence[str]) -> Expression:
    from pyspark.sql import functions as f

    columns = [f.col(quoted(key)) for key in keys]
    if len(keys) > 1:
        return f.to_json(f.struct(*columns), _JSON)
    type_ = rows.select(columns[0]).schema.fields[0].dataType.typeName()
    if type_ in ("array", "map", "struct"):
        return f.to_json(columns[0], _JSON)
    return columns[0] if type_ == "binary" else columns[0].cast("string")


def writer_options(query: ResolvedQuery) -> dict[str, str]:
    """Options of Spark's Kafka writer."""
    options = producer_options(query.link.body, query.directory)
    return {"topic": query.body["topic"], **{f"kafka.{key}": value for key, value in options.items()}}
