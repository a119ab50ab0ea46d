"""A kafka sink's records in its topic, and its steps in the step record, for `mzplan verify`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.api.targets import PLACE, Content, Recorded, incomparable, nothing_recorded
from mzplan.connectors.frames import functions as f
from mzplan.connectors.kafka.options import librdkafka_options, reader_options
from mzplan.connectors.kafka.problems import KafkaProblems, transaction_of
from mzplan.connectors.kafka.step_record import KafkaStepRecord
from mzplan.connectors.network.aws import require_packages
from mzplan.endpoints.interface import Step, Written

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ANSWER_S = 10.0
# Seconds to wait for a moment between two steps, and between two attempts to find one.
_QUIET_S = 20.0
_BETWEEN_S = 0.2

Offsets = dict[int, int]


class KafkaContent(Content):
    """The committed records of each partition, up to a moment between two steps. At that moment, no
    transaction was open and the step record didn't change. An at-least-once sink had no unfinished step in
    its checkpoint."""

    def __init__(
        self,
        query: ResolvedQuery,
        as_records: Callable[[DataFrame, ResolvedQuery], DataFrame],
        spark: SparkSession,
    ):
        if query.body["format"]["type"] == "avro":
            raise incomparable(
                query,
                "An avro record contains the id of its schema, so records of equal rows can differ.",
            )
        require_packages(spark, query)
        self._query, self._as_records = query, as_records
        self._topic: str = query.body["topic"]
        self.keys = ("key",) if query.body["mode"] == "upsert" else ()
        self.repeats = query.body["delivery"] != "exactly-once"
        self._transaction = transaction_of(query)
        self._admin = AdminClient(librdkafka_options(query.link, query.directory))
        with KafkaProblems(query).explaining(self._transaction):
            partitions = self._partitions()
            self.frontier, self._last = self._between_steps(partitions)
            self._first = self._offsets(partitions, "earliest")
            self.since = self._oldest()

    def _partitions(self) -> list[int]:
        topic = self._admin.list_topics(self._topic, timeout=_ANSWER_S).topics[self._topic]
        if topic.error is not None:
            raise KafkaException(topic.error)
        return sorted(topic.partitions)

    def _between_steps(self, partitions: Sequence[int]) -> tuple[int, Offsets]:
        """Return the last written step, and each partition's end at that step."""
        deadline = time.monotonic() + _QUIET_S
        while True:
            step = self._step()
            committed = self._offsets(partitions, "latest", IsolationLevel.READ_COMMITTED)
            including_open = self._offsets(partitions, "latest")  # includes open transactions
            if step is not None and committed == including_open and step == self._step():
                return step, committed
            if time.monotonic() > deadline:
                raise incomparable(
                    self._query,
                    f"For {_QUIET_S:g} s, topic {self._topic} was written without a pause, or a transaction "
                    "was open, so the end of a step's rows can't be determined.",
                    f"compare while the sink is paused: mzplan pause {self._query.address}",
                )
            time.sleep(_BETWEEN_S)

    def _step(self) -> int | None:
        """Return the last written step, or None while a step is unfinished."""
        if self.repeats:
            assert self._query.checkpoint is not None
            log = self._query.checkpoint.log
            return log.committed() if log.unfinished() is None else None
        text = self._transaction.read()
        record = KafkaStepRecord.parse(text) if text is not None else None
        is_own = record is not None and record.generation == self._query.description.generation
        return record.step if record is not None and is_own else -1

    def _offsets(
        self,
        partitions: Sequence[int],
        edge: Literal["earliest", "latest"],
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> Offsets:
        spec = getattr(OffsetSpec, edge)()
        wanted = {TopicPartition(self._topic, partition): spec for partition in partitions}
        futures = self._admin.list_offsets(wanted, isolation_level=isolation, request_timeout=_ANSWER_S)
        return {place.partition: future.result().offset for place, future in futures.items()}

    def _oldest(self) -> float | None:
        """Return the time since which every partition is complete. A partition that has lost records is
        complete since its oldest remaining record."""
        lossy = [p for p, first in self._first.items() if first > 0]
        if not lossy:
            return None
        if any(self._first[p] >= self._last[p] for p in lossy):
            return math.inf  # no record is left to tell
        return max(self._time_of_first(partition) for partition in lossy)

    def _time_of_first(self, partition: int) -> float:
        consumer = Consumer(self._transaction.reader_settings("read_committed"))
        try:
            consumer.assign([TopicPartition(self._topic, partition, self._first[partition])])
            message = consumer.poll(_ANSWER_S)
            if message is None:
                return math.inf
            if message.error() is not None:
                raise KafkaException(message.error())
            return float(message.timestamp()[1]) / 1000
        finally:
            consumer.close()

    def rows(self, spark: SparkSession) -> DataFrame:
        options = reader_options(self._query.link, self._query.directory) | {
            "kafka.isolation.level": "read_committed",
            "assign": json.dumps({self._topic: sorted(self._last)}),
            "startingOffsets": json.dumps({self._topic: self._first}),
            "endingOffsets": json.dumps({self._topic: self._last}),
            "groupIdPrefix": "mzplan",
            "kafkaConsumer.pollTimeoutMs": str(int(_QUIET_S * 1000)),
        }
        records = spark.read.format("kafka").options(**options).load()
        if not self.keys:
            return records.select(f.col("value").cast("binary"), _place().alias(PLACE))
        last = records.groupBy("key").agg(
            f.max_by(f.struct("value", "partition", "offset"), "offset").alias("_")
        )
        return last.where("_.value IS NOT NULL").select(
            "key", f.col("_.value").alias("value"), _place("_.").alias(PLACE)
        )

    def stored_form(self, rows: DataFrame, query: ResolvedQuery) -> DataFrame:
        """Return the rows as records (see Content)."""
        records = self._as_records(rows, query)
        names = ("key", "value") if self.keys else ("value",)
        position = [name for name in records.columns if name not in ("key", "value")]
        return records.select(*(f.col(name).cast("binary").alias(name) for name in names), *position)


def _place(of: str = "") -> Any:
    return f.concat(f.lit("partition "), f.col(f"{of}partition"), f.lit(", offset "), f.col(f"{of}offset"))


class KafkaRecorded(Recorded):
    """The steps in the sink's step record, which has the last ones."""

    def __init__(self, query: ResolvedQuery):
        if query.body["delivery"] != "exactly-once":
            why = "With `delivery: at-least-once`, Spark's Kafka writer writes it, and records no steps."
            raise nothing_recorded(query, why, has_content=True)
        self.keys = query.body["key"] if query.body["mode"] == "upsert" else ()
        transaction = transaction_of(query)
        with KafkaProblems(query).explaining(transaction):
            text = transaction.read()
            record = KafkaStepRecord.parse(text) if text is not None else None
        is_own = record is not None and record.generation == query.description.generation
        self._written = record.written() if record is not None and is_own else {}

    def step(self, step: Step) -> Written | None:
        written = self._written.get(step)
        return written if written is not None and written != Written(rows=0, digest=None) else None
