"""The exactly-once kafka sink: writes a step's records and its step record in one transaction (see output).

One task writes a step, so the topic has all records of a step or none. A run's first batch claims the sink:
it writes the lease's epoch into the step record, in a transaction of its own. From then on, an older runner
sees that epoch before it uses the transactional id, and its open transaction is aborted.

Kafka drops the step record if nothing is written for `offsets.retention.minutes` (a week), or if the topic is
deleted. `delivery.json` beside the checkpoint distinguishes these cases from a new sink.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaException

from mzplan.connectors.api.queries import ResolvedQuery, SinkRun
from mzplan.connectors.api.targets import another_target, different_rows_error, unknown_step, warn_repeated
from mzplan.connectors.frames.task_code import in_one_task
from mzplan.connectors.kafka.options import route, transaction_options
from mzplan.connectors.kafka.output import REPORT, task
from mzplan.connectors.kafka.problems import FENCED, KafkaProblems, transactional_id
from mzplan.connectors.kafka.step_record import EMPTY, UNKNOWN, KafkaStepRecord
from mzplan.connectors.kafka.transaction import CHANGED, KafkaTransaction, TransactionError
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.times import milliseconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# How often to try a step while another writer, or this writer's previous attempt, uses the transactional id,
# and the seconds between two tries. In this time, a newer runner that has fenced this one records its epoch.
_TRIES = 4
_PAUSE_S = 1.0


_IDENTITY = ("cluster_id", "topic", "topic_id")


def compare_target(
    query: ResolvedQuery, delivery: Mapping[str, Any], found: Mapping[str, Any]
) -> Diagnostic | None:
    """Return MZ043 if a sink's checkpoint can't continue in the found topic, or None."""
    recorded = delivery.get("target")
    if not recorded or all(recorded.get(name) == found[name] for name in _IDENTITY):
        return None
    return another_target(query, f"{route(query)}: {_difference(recorded, found)}")


def _difference(recorded: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    if recorded.get("cluster_id") != found["cluster_id"]:
        return f"this is Kafka cluster {found['cluster_id']} instead of {recorded.get('cluster_id')}"
    ids = f"id {found['topic_id']} instead of {recorded.get('topic_id')}"
    return f"topic {found['topic']} was deleted and created again ({ids})"


class TransactionalWriter:
    """Writes the batches of one run, one after the other. `identify` returns the topic's identity, as a probe
    does. Raises MzplanError."""

    def __init__(self, run: SinkRun, identify: Callable[[], Mapping[str, Any]]):
        query = run.query
        self._run = run
        self._identify = identify
        self._unfinished_step = run.checkpoint.log.unfinished()
        self._problems = KafkaProblems(query)
        self._partitions = 1
        self._client = transaction_options(query.link, query.directory)
        self._name = transactional_id(query)
        self._topic: str = query.body["topic"]
        self._timeout_ms = milliseconds(query.body["transaction_timeout"])
        self._record: KafkaStepRecord | None = None

    def write(self, records: DataFrame, step: int) -> None:
        """Write the records of a step (`value`, optionally `key`, and their hash): all of them, or none."""
        query_id = records.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
        joined = in_one_task(records)
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE_S)
            record = self._record or self._claim(step, query_id)
            if record is not None and self._attempt(joined, record, step):
                return
        raise self._problems.outpaced(self._name)

    def _attempt(self, records: DataFrame, record: KafkaStepRecord, step: int) -> bool:
        """Write the step, and return whether that succeeded. If not, another attempt is due. `_record` is
        then None if the sink has to be claimed again."""
        match record.relation_of(step):
            case "gap":
                raise self._problems.target_restored(
                    f"the last step written there is {record.step}, and the checkpoint continues with {step}"
                )
            case "later" if step not in record.written():
                self._run.warn(unknown_step(self._run, step, record.step))
                return True
            case "write" | "replay" | "later":
                return self._push(records, record, step)

    def _push(self, records: DataFrame, record: KafkaStepRecord, step: int) -> bool:
        failpoint(Failpoint.SINK_BEFORE_STEP)
        compare = self._run.query.body["compare"]
        work = task(self._transaction(), record, step, self._partitions, compare)
        (report,) = (row.asDict() for row in records.mapInArrow(work, REPORT).collect())
        if report["outcome"] != "written":
            return self._ensure_retriable(report["outcome"], report["detail"], report["seconds"])
        self._record = self._parse(report["record"])
        if (written := self._record.written().get(step)) is not None:
            self._run.wrote(step, written.rows)
        warn_repeated(self._run, report["warnings"])
        failpoint(Failpoint.SINK_WRITTEN)
        return True

    def _ensure_retriable(self, outcome: str, detail: str, seconds: float) -> bool:
        """Return False if another attempt is due. Raises MzplanError for any other failure."""
        if outcome in FENCED and seconds * 1000 < self._timeout_ms:
            return False  # fenced by a newer runner, whose epoch the record will show, or by a stopped one
        if outcome == "differs":
            raise different_rows_error(self._run.query.address, detail)
        if outcome != CHANGED:
            raise self._problems.of(outcome, detail, self._transaction())
        # Another run writes, or the record is gone.
        self._record = None
        return False

    def _transaction(self) -> KafkaTransaction:
        return KafkaTransaction(self._client, self._name, self._topic, self._timeout_ms)

    # ── the writer of the steps

    def _claim(self, step: int, query_id: str) -> KafkaStepRecord | None:
        """Record, before `step`, that this run writes the sink. Returns the step record, or None if another
        attempt is due."""
        target = self._target()
        started_at = time.monotonic()
        transaction = self._transaction()
        try:
            text = transaction.read()
            recorded = self._parse(text) if text is not None else None
            claim = self._record_to_commit(recorded, step, query_id, target)
            if claim != recorded:
                transaction.commit_record(text, claim.step, claim.text)
        except TransactionError as problem:
            self._ensure_retriable(problem.outcome, problem.detail, time.monotonic() - started_at)
            return None
        except KafkaException as problem:
            failure = transaction.cause(problem.args[0])
            self._ensure_retriable(failure.name(), failure.str(), time.monotonic() - started_at)
            return None
        finally:
            transaction.close()
        self._record = claim
        failpoint(Failpoint.SINK_CLAIMED)
        self._record_delivery(target)
        return claim

    def _target(self) -> dict[str, Any]:
        identity = self._identify()
        self._partitions = identity["partitions"]
        return {name: identity[name] for name in _IDENTITY}

    def _record_to_commit(
        self, recorded: KafkaStepRecord | None, step: int, query_id: str, target: Mapping[str, Any]
    ) -> KafkaStepRecord:
        """Return the record to commit before this run writes. Raises MzplanError if it may not write."""
        description = self._run.query.description
        new_record = KafkaStepRecord(
            generation=description.generation,
            epoch=self._run.epoch,
            query=query_id,
            step=step - 1,
            hash=EMPTY if step == 0 else UNKNOWN,
        )
        if recorded is not None and recorded.is_newer_than(new_record):
            raise self._problems.newer(recorded)
        delivery = self._run.checkpoint.delivery()
        if delivery is None or delivery.get("delivery") != "exactly-once":
            return new_record  # a new sink, or one that was at-least-once until now and recorded no steps
        if delivery.get("target") != target:
            if self._run.query.body.get("on_target_change") == "accept":
                return new_record
            difference = _difference(delivery.get("target") or {}, target)
            raise self._problems.target_restored(f"{difference}: the rows of earlier steps are not in it")
        if recorded is None or recorded.generation < new_record.generation:
            if step == self._unfinished_step:
                raise self._problems.in_doubt(step)
            self._run.warn(self._problems.expired(step))
            return new_record
        if recorded.query != query_id:
            raise self._problems.target_restored(f"steps up to {recorded.step} come from another checkpoint")
        return replace(recorded, epoch=self._run.epoch)

    def _record_delivery(self, target: Mapping[str, Any]) -> None:
        delivery = {"delivery": "exactly-once", "target": dict(target)}
        if self._run.checkpoint.delivery() != delivery:
            self._run.checkpoint.record_delivery(delivery)

    def _parse(self, text: str) -> KafkaStepRecord:
        try:
            return KafkaStepRecord.parse(text)
        except ValueError as problem:
            raise self._problems.not_a_step_record(self._name, str(problem)) from None
