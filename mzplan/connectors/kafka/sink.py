"""The kafka sink for JSON or Avro: exactly once by transactions, or at least once by Spark's Kafka writer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.connector import SinkConnector
from mzplan.connectors.api.outputs import may_be_null
from mzplan.connectors.api.queries import Output, Probe, ResolvedQuery, SinkRun
from mzplan.connectors.api.targets import Content, Recorded, unreadable
from mzplan.connectors.formats.avro_encoder import Encoder
from mzplan.connectors.formats.records import MARK
from mzplan.connectors.formats.registry import check_sink, schema_to_write
from mzplan.connectors.formats.written import row_to_json, to_json, unfit_keys
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.merges import latest_rows
from mzplan.connectors.frames.micro_batches import micro_batch
from mzplan.connectors.frames.row_hash import row_hash, with_count
from mzplan.connectors.frames.types import quoted
from mzplan.connectors.kafka.client import ClusterError
from mzplan.connectors.kafka.content import KafkaContent, KafkaRecorded
from mzplan.connectors.kafka.options import route, writer_options
from mzplan.connectors.kafka.probe import KafkaProbe, is_compacted
from mzplan.connectors.kafka.transactional_writer import TransactionalWriter, compare_target
from mzplan.connectors.network.aws import require_packages
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.schema.columns import CHANGE, DELETE, POSITION
from mzplan.warehouse.rows.content_hash import HASH

if TYPE_CHECKING:
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

UNWRITABLE = "MZ059"


class KafkaSink(SinkConnector):
    """Writes to an existing topic: all rows or, for an upsert, the latest row of each key in a
    micro-batch."""

    def __init__(self) -> None:
        self._probe = KafkaProbe()

    def route(self, query: ResolvedQuery) -> str:
        return route(query)

    def probe(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Probe:
        """Check that the topic exists and may be written, that the sink has written its steps to this topic
        so far, and that the topic's schema fits the columns."""
        probe = self._probe.probe(query, writes=True)
        more = (
            *self._other_target(query, probe),
            *self._null_key(query, probe),
            *check_sink(query, outputs),
            *(unfit_keys(query, outputs) if query.body["format"]["type"] == "json" else ()),
        )
        return replace(probe, diagnostics=(*probe.diagnostics, *more))

    def _other_target(self, query: ResolvedQuery, probe: Probe) -> tuple[Diagnostic, ...]:
        if probe.upstream is None or query.checkpoint is None or query.body["delivery"] != "exactly-once":
            return ()
        try:
            difference = compare_target(query, query.checkpoint.delivery() or {}, probe.upstream)
        except OSError as problem:
            difference = unreadable(query, problem)
        return (difference,) if difference is not None else ()

    def _null_key(self, query: ResolvedQuery, probe: Probe) -> tuple[Diagnostic, ...]:
        """Return MZ055 if a record may have no key and the topic is compacted: brokers refuse such
        records."""
        keys, topic = query.body.get("key", ()), query.body["topic"]
        if probe.upstream is None or len(keys) > 1:  # several columns make a JSON object
            return ()
        if keys and not may_be_null(query, keys[0]):
            return ()
        try:
            if not is_compacted(self._probe.client_of(query), query):
                return ()
        except ClusterError as problem:
            return problem.diagnostics
        reason = f"{keys[0]}, the sink's key, may be NULL" if keys else "the sink has no key"
        fix = f"leave such rows out: where: {keys[0]} IS NOT NULL" if keys else "add `key: [COLUMN]`"
        declare = ", or declare the column NOT NULL in the source" if keys else ""
        return (
            Diagnostic.of(
                "MZ055.topic-refuses",
                address=query.address,
                topic=topic,
                route=route(query),
                reason=reason,
                fix=fix,
                declare=declare,
            ),
        )

    def recorded(self, query: ResolvedQuery, outputs: Sequence[Output]) -> Recorded:
        """Return row counts and hashes of the last steps. Raises MzplanError MZ177 for an at-least-once
        sink."""
        return KafkaRecorded(query)

    def content(self, query: ResolvedQuery, outputs: Sequence[Output], spark: SparkSession) -> Content:
        """Return the records that the topic still keeps."""

        def records_of(rows: DataFrame, written: ResolvedQuery) -> DataFrame:
            return as_records(rows, written.body.get("key", ()), beside=(POSITION,))

        return KafkaContent(query, records_of, spark)

    def write(self, rows: DataFrame, run: SinkRun) -> DataStreamWriter:
        body = run.query.body
        keys: Sequence[str] = body.get("key", ())
        encoder = _encoder(run) if body["format"]["type"] == "avro" else None
        write_step: Callable[[DataFrame, int], None]
        if body["delivery"] == "exactly-once":
            steps = TransactionalWriter(run, lambda: self._identify(run.query))

            def write_step(batch: DataFrame, step: int) -> None:
                steps.write(as_records(batch, keys, encoder, hashed=True), step)
        else:
            # Recorded before anything is written, because Spark's Kafka writer leaves the step record
            # outdated.
            run.checkpoint.record_delivery({"delivery": body["delivery"]})
            require_packages(rows.sparkSession, run.query)
            options = writer_options(run.query.link, run.query.directory, body["topic"])
            if body["mode"] != "upsert":
                writer = with_count(as_records(rows.drop(POSITION), keys, encoder)).writeStream.format(
                    "kafka"
                )
                return writer.outputMode("append").options(**options)

            def write_step(batch: DataFrame, step: int) -> None:
                # The number of rows isn't reported: Spark's Kafka writer triggers no observation, and
                # counting reads twice.
                as_records(batch, keys, encoder).write.format("kafka").options(**options).save()

        def write_batch(batch: DataFrame, step: int) -> None:
            with micro_batch(run.fail):
                write_step(latest_rows(batch, keys) if body["mode"] == "upsert" else batch, step)

        if body["mode"] != "upsert":
            # Dropped here, not in the batch, because Spark reads only the columns that foreachBatch receives.
            rows = rows.drop(POSITION)
        return rows.writeStream.foreachBatch(run.writer_of(write_batch))

    def _identify(self, query: ResolvedQuery) -> Mapping[str, Any]:
        probe = self._probe.probe(query, writes=True)
        if probe.upstream is None:
            raise MzplanError(probe.diagnostics)
        return probe.upstream


def _encoder(run: SinkRun) -> Encoder:
    """Return an encoder with the latest schema of the subject. Raises MzplanError."""
    subject = schema_to_write(run.query, run.outputs)
    return Encoder(schemas=subject.schemas, id=subject.id, mark=f"{MARK}[{UNWRITABLE}]")


def as_records(
    rows: DataFrame,
    keys: Sequence[str],
    encoder: Encoder | None = None,
    *,
    hashed: bool = False,
    beside: Sequence[str] = (),
) -> DataFrame:
    """Return the columns `key` (if the sink has one) and `value`, as Spark's Kafka writer takes them.

    A deleted row becomes a tombstone: a record without a value. `hashed` adds the row's content hash. The
    columns `beside` stay beside the record and aren't part of it.
    """
    from pyspark.sql import types as t

    names = [name for name in rows.columns if name not in (CHANGE, *beside)]
    value = f.struct(*map(quoted, names)) if encoder is not None else row_to_json(rows, names)
    if CHANGE in rows.columns:
        value = f.when(f.col(CHANGE) != DELETE, value)
    fields = [_key(rows, keys).alias("key")] if keys else []
    fields.append(value.alias("value"))
    if hashed:
        fields.append(row_hash(rows).alias(HASH))
    records = rows.select(*fields, *beside)
    if encoder is None:
        return records
    encoded = (t.StructField("value", t.BinaryType()) if x.name == "value" else x for x in records.schema)
    return records.mapInArrow(encoder.__call__, t.StructType(list(encoded)))


def _key(rows: DataFrame, keys: Sequence[str]) -> Expression:
    key_rows = rows.select(*map(quoted, keys))
    if len(keys) > 1:
        return row_to_json(key_rows, key_rows.columns)
    column, type_ = f.col(quoted(keys[0])), key_rows.schema.fields[0].dataType
    if type_.typeName() in ("array", "map", "struct"):
        return to_json(column, type_)
    return column if type_.typeName() == "binary" else column.cast("string")
