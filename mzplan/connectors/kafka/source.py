"""The kafka source: Spark's own Kafka stream.

Python tasks decode Avro and Protobuf (see decoder). Spark's own from_avro and from_protobuf need the schemas
when a query starts, so they couldn't read records whose schema is registered later. They also don't say why a
record is malformed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mzplan.connectors.api.connector import AdoptingSource, SourceConnector
from mzplan.connectors.api.queries import Probe, ResolvedQuery
from mzplan.connectors.formats import dead_letters
from mzplan.connectors.formats.binary import wire_formats
from mzplan.connectors.formats.debezium import Debezium, members, with_envelope, without_tombstones
from mzplan.connectors.formats.decoder import Task
from mzplan.connectors.formats.envelopes import Envelope, Tombstones
from mzplan.connectors.formats.parsers import (
    BINARY,
    DECODED,
    KEY_DECODED,
    ParsedRecord,
    parser_of,
    raw_format_of,
    without_frame,
)
from mzplan.connectors.formats.records import Records, check_records
from mzplan.connectors.formats.registry import ROLE, check_definition, check_source
from mzplan.connectors.frames import functions as f
from mzplan.connectors.frames.types import ddl
from mzplan.connectors.kafka.options import reader_options, route, writer_options
from mzplan.connectors.kafka.positions import KafkaPositions
from mzplan.connectors.kafka.probe import compare_upstreams, identify, named_topics, topics_in
from mzplan.connectors.network.aws import require_packages
from mzplan.model.diagnostics import Diagnostic, MzplanError
from mzplan.model.times import instant
from mzplan.schema.columns import Column
from mzplan.schema.expectations import keeps_letters
from mzplan.schema.source_columns import included_columns, record_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PASSED = ("value", "partition", "offset", "timestamp")


def decode_records(
    rows: DataFrame, query: ResolvedQuery, columns: Sequence[Column], keys: Sequence[Column] = ()
) -> DataFrame:
    """Add the column `DECODED` to a Kafka stream: the record's columns, or the reason why it has none.

    `value` becomes empty, unless it is NULL or needed for dead letters.

    `keys` are the columns of the records' keys. With them, deletes have a column `KEY_DECODED` (see
    decoder.Task). Raises MzplanError if the registry doesn't return the topic's schema.
    """
    from pyspark.sql import types as t

    topic = () if "topic" in query.body else ("topic",)
    passed_rows = rows.select(*_PASSED, *topic, *_other_columns(query))
    fields = [f"{DECODED} STRUCT<r: STRUCT<{ddl(columns)}>, e: STRING>"]
    if keys:
        fields.append(f"{KEY_DECODED} STRUCT<r: STRUCT<{ddl(keys)}>, e: STRING>")
    added_fields: Any = t.StructType.fromDDL(", ".join(fields))
    values, of_keys = wire_formats(query, columns, keys)
    task = Task(
        values=values,
        column=DECODED,
        keeps_values=query.body["on_error"] == "dead-letter",
        keys=of_keys,
        key_column=KEY_DECODED if keys else "",
        tombstones=(query.body.get("envelope") or {}).get("type") == "upsert",
    )
    return passed_rows.mapInArrow(
        task.__call__, t.StructType([*passed_rows.schema.fields, *added_fields.fields])
    )


def _other_columns(query: ResolvedQuery) -> list[str]:
    """Return which of a record's key and headers are needed.

    A record without a value deletes by its key, and a malformed record is stored with its key."""
    included = {*included_columns(query.description.type, query.body)}
    if query.keys or query.body["on_error"] == "dead-letter":
        included.add("key")
    return [name for name in ("key", "headers") if name in included]


# Milliseconds that a task waits for records that the broker has reported. Spark's default, two minutes, would
# occupy a core that long if a broker dies during a batch.
_POLL_TIMEOUT_MS = 20_000
_EARLIEST = -2  # as an offset in the options of Spark's Kafka source
_ORIGINAL = "_mzplan_original"  # a record's original value, if another form of it is read


class KafkaSource(KafkaPositions, SourceConnector):
    """Reads a topic from its start, its end or a point in time. The collection gets each record once."""

    position = "STRUCT<partition: INT, offset: BIGINT, timestamp: TIMESTAMP>"
    position_of_topics = "STRUCT<topic: STRING, partition: INT, offset: BIGINT, timestamp: TIMESTAMP>"
    can_reposition = True
    has_cheap_loss = True
    keeps_positions = True

    def position_of(self, variant: str) -> str:
        return self.position_of_topics if variant == "topics" else self.position

    def probe(self, query: ResolvedQuery) -> Probe:
        """Return the identity of the topics (see `identify`). Also check their schema in the registry, and
        the place for dead letters."""
        probe = self._probe.probe(query)
        check = check_source if ROLE in query.connections else None
        check = check_definition if "proto_file" in query.body["format"] else check
        if check is not None:
            columns = record_columns(query.description.type, query.body)
            probe = replace(probe, diagnostics=(*probe.diagnostics, *check(query, columns)))
        if query.body["on_error"] == dead_letters.WORD:
            of_topic = partial(self._probe.probe, writes=True)
            probe = replace(probe, diagnostics=(*probe.diagnostics, *dead_letters.check(query, of_topic)))
        return probe

    def route(self, query: ResolvedQuery) -> str:
        return route(query)

    def compare(
        self, query: ResolvedQuery, recorded: Mapping[str, Any], found: Mapping[str, Any]
    ) -> Diagnostic | None:
        return compare_upstreams(query, recorded, found)

    def guard(self, query: ResolvedQuery) -> Callable[[int], None] | None:
        """Return a check that compares cluster and topic id. Spark's offsets contain neither: to Spark, a
        topic that was re-created while the query runs looks like a topic that has grown."""
        checkpoint = query.checkpoint
        recorded = checkpoint.upstream() if checkpoint is not None else None
        if checkpoint is None or recorded is None:
            return None
        known = recorded

        def check(_step: int) -> None:
            nonlocal known
            found = identify(self._probe.client_of(query), query, False)
            if (difference := self.compare(query, known, found)) is not None:
                raise MzplanError(difference)
            if topics_in(found).keys() > topics_in(known).keys():  # the pattern matches a new topic
                known = {**found, "topics": {**found["topics"], **known["topics"]}}
                checkpoint.record_upstream(known)

        return check

    def stream(self, spark: SparkSession, query: ResolvedQuery) -> DataFrame:
        require_packages(spark, query)
        return self.parse(spark.readStream.format("kafka").options(**stream_options(query)).load(), query)

    def parse(self, records: DataFrame, query: ResolvedQuery) -> DataFrame:
        body, type_ = query.body, query.description.type
        included, columns = included_columns(type_, body), record_columns(type_, body)
        rows = records
        is_framed = ROLE in query.connections and body["format"]["type"] == "json"
        if is_framed:
            rows = rows.select("*", f.col("value").alias(_ORIGINAL)).withColumn(
                "value", without_frame(f.col("value"))
            )
        envelope = _envelope(query, columns, is_framed) if query.keys else None
        rows, parsed = _with_parser(rows, query, columns, envelope)
        several = "topic" not in body

        def where(at: Any) -> Any:
            topic = at["topic"] if several else f.lit(body["topic"])
            partition = f.concat(f.lit(", partition "), at["partition"])
            return f.concat(f.lit("topic "), topic, partition, f.lit(", offset "), at["offset"])

        records_read = Records(
            rows=rows,
            position=f.struct(*(("topic",) if several else ()), "partition", "offset", "timestamp"),
            where=where,
            included=tuple((column, f.col(name)) for name, column in included.items()),
            envelope=envelope,
            original=_ORIGINAL if is_framed else "",
        )
        return check_records(records_read, parsed, columns, body["on_error"], keeps_all=keeps_letters(body))

    def replay(
        self,
        spark: SparkSession,
        query: ResolvedQuery,
        start: Any,
        end: Any,
        files: Callable[[], Sequence[str]],
    ) -> DataFrame:
        require_packages(spark, query)
        options = record_options(query) | _between(start, end)
        return self.parse(spark.read.format("kafka").options(**options).load(), query)

    def send_letters(self, records: DataFrame, query: ResolvedQuery) -> None:
        """Write the records to the topic that `dead_letter` names."""
        options = writer_options(query.link, query.directory, query.body["dead_letter"]["topic"])
        records.write.format("kafka").options(**options).save()


def _with_parser(
    rows: DataFrame, query: ResolvedQuery, columns: Sequence[Column], envelope: Envelope | None
) -> tuple[DataFrame, ParsedRecord]:
    """Return the rows with the columns that parsing needs, and the parser's expressions."""
    format_ = query.body["format"]
    is_binary = format_["type"] in BINARY
    if isinstance(envelope, Debezium):
        rows = without_tombstones(rows)
        envelope_fields = members(columns)
        rows = (
            decode_records(rows, query, envelope_fields, envelope.columns)
            if is_binary
            else with_envelope(rows, columns, envelope.raw_format)
        )
        return envelope.split(rows), envelope.parsed()
    if is_binary:
        keys = envelope.columns if isinstance(envelope, Tombstones) and envelope.format == "avro" else ()
        rows = decode_records(rows, query, columns, keys)
    return rows, parser_of(format_, columns)


def _envelope(query: ResolvedQuery, columns: Sequence[Column], is_framed: bool) -> Envelope:
    names = {name.lower() for name in query.keys}
    key_columns = tuple(column for column in columns if column.name.lower() in names)
    included = included_columns(query.description.type, query.body).values()
    included_keys = tuple(column.name for column in included if column.name.lower() in names)
    if query.body["envelope"]["type"] == "debezium":
        return Debezium(
            key=without_frame(f.col("key")) if is_framed else f.col("key"),
            row=tuple(columns),
            columns=key_columns,
            included_keys=included_keys,
            avro=query.body["format"]["type"] == "avro",
            raw_format=raw_format_of(query.body["format"]) if query.body["format"]["type"] == "json" else "",
        )
    format_ = query.body["envelope"].get("key_format") or ("text" if len(key_columns) == 1 else "json")
    return Tombstones(
        value=f.col("value"),
        key=without_frame(f.col("key")) if is_framed and format_ == "json" else f.col("key"),
        columns=key_columns,
        included_keys=included_keys,
        format=format_,
    )


def record_options(query: ResolvedQuery) -> dict[str, str]:
    """Return the options of Spark's Kafka reader, stream or batch, without the range of records."""
    options = reader_options(query.link, query.directory) | {
        "failOnDataLoss": "true",
        "groupIdPrefix": "mzplan",
        "kafkaConsumer.pollTimeoutMs": str(_POLL_TIMEOUT_MS),
        "fetchOffset.numRetries": "3",
        "fetchOffset.retryIntervalMs": "500",
    }
    if "headers" in included_columns(query.description.type, query.body):
        options["includeHeaders"] = "true"
    return options


def stream_options(query: ResolvedQuery) -> dict[str, str]:
    body = query.body
    options = record_options(query) | subscription(body) | _start(body["start_offsets"])
    if "max_offsets_per_trigger" in body:
        options["maxOffsetsPerTrigger"] = str(body["max_offsets_per_trigger"])
    return options


def subscription(body: Mapping[str, Any]) -> dict[str, str]:
    """Return the option of Spark's Kafka reader that names the topics."""
    if "topic_pattern" in body:
        # Spark would also read topics that contain a match.
        return {"subscribePattern": f"^(?:{body['topic_pattern']})$"}
    return {"subscribe": ",".join(named_topics(body))}


def _start(start: str) -> dict[str, str]:
    """Return the options that set where a stream without a checkpoint begins."""
    when = instant(start)
    if when is None:
        return {"startingOffsets": start}
    # A partition without such a record begins at its end. Spark's default would be an error.
    return {"startingTimestamp": str(when), "startingOffsetsByTimestampStrategy": "latest"}


def _between(start: Any, end: Any) -> dict[str, str]:
    """Return Spark's options to read exactly the records between two offsets in one batch."""
    # A partition added after `start` was read from its beginning.
    first = {
        topic: {p: start.get(topic, {}).get(p, _EARLIEST) for p in partitions}
        for topic, partitions in end.items()
    }
    return {
        "assign": json.dumps({topic: sorted(map(int, partitions)) for topic, partitions in end.items()}),
        "startingOffsets": json.dumps(first),
        "endingOffsets": json.dumps(end),
    }


def adoption_problems(source: AdoptingSource, position: Mapping[str, Any]) -> Iterator[str]:
    """Yield why the source can't continue from a query, which must have read only the source's topic."""
    topics, wanted = sorted(position), sorted(named_topics(source.body))
    if topics == ["logOffset"] or not all(isinstance(value, dict) for value in position.values()):
        yield "It doesn't read Kafka."
    elif "topic_pattern" in source.body:
        if others := [t for t in topics if not re.fullmatch(source.body["topic_pattern"], t)]:
            yield f"It reads the topics {', '.join(others)}, which don't match topic_pattern."
    elif topics != wanted:
        yield f"It reads the topics {', '.join(topics)}, but the source reads {', '.join(wanted)}."
