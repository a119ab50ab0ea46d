"""Failures of a Kafka sink's transactions, as errors for people."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from typing import Any

from confluent_kafka import KafkaException

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.kafka.client import allow, user_of
from mzplan.connectors.kafka.options import route, transaction_options
from mzplan.connectors.kafka.step_record import KafkaStepRecord
from mzplan.connectors.kafka.transaction import KafkaTransaction, TransactionError
from mzplan.model.diagnostics import Diagnostic, MzplanError, error

FENCED = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH", "INVALID_PRODUCER_ID_MAPPING"}
_DENIED = {
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": ("transactional id", "--transactional-id {name}", "Write"),
    "GROUP_AUTHORIZATION_FAILED": ("consumer group", "--group {name}", "Read"),
    "TOPIC_AUTHORIZATION_FAILED": ("topic", "--topic {topic}", "Write --operation Read"),
    "CLUSTER_AUTHORIZATION_FAILED": ("cluster", "--cluster", "IdempotentWrite"),
}
_TOO_LARGE = "MSG_SIZE_TOO_LARGE"
_NOT_SENT = "Unable to produce message"  # how the client begins errors of the producer itself
_UNREACHABLE = {"_TIMED_OUT", "_TRANSPORT", "_ALL_BROKERS_DOWN", "_RESOLVE", "_WAIT_COORD"} | {
    "REQUEST_TIMED_OUT",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "NETWORK_EXCEPTION",
    "BROKER_NOT_AVAILABLE",
    "LEADER_NOT_AVAILABLE",
    "NOT_ENOUGH_REPLICAS",
    "_MSG_TIMED_OUT",
}


def transactional_id(query: ResolvedQuery) -> str:
    """Return the transactional id of a sink, which is also the group of its step record."""
    return f"mzplan.{query.description.id}"


def transaction_of(query: ResolvedQuery) -> KafkaTransaction:
    """Return a transaction for reading a sink's step record. Raises OSError if a PEM file can't be read."""
    client = transaction_options(query.link, query.directory)
    return KafkaTransaction(client, transactional_id(query), query.body["topic"], timeout_ms=60_000)


class KafkaProblems:
    """The errors of one sink."""

    def __init__(self, query: ResolvedQuery):
        self._query = query
        self._where = f"{route(query)}, topic {query.body['topic']}"

    def of(self, name: str, text: str, transaction: KafkaTransaction) -> MzplanError:
        """Return mzplan's error for the Kafka error of this name and text."""
        if name in _DENIED:
            return self._denied(name, transaction.name)
        if name in _UNREACHABLE:
            return self._error("MZ050.kafka-cannot-reached", text=text or name)
        if name in ("_AUTHENTICATION", "SASL_AUTHENTICATION_FAILED", "_SSL"):
            return self._error("MZ051.kafka-refused-credentials", text=text)
        if name in ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "_UNKNOWN_PARTITION"):
            return self._error("MZ052.topic-not-exist", topic=transaction.topic, text=text)
        if name in FENCED or name == "INVALID_TRANSACTION_TIMEOUT":
            return self._too_long(name, transaction.timeout_ms)
        if name == _TOO_LARGE:
            return self._too_large(text)
        return self._error("MZ059.kafka-refused", text=text or name, name=name)

    @contextlib.contextmanager
    def explaining(self, transaction: KafkaTransaction) -> Iterator[None]:
        """Raise errors of reading as MzplanError, and close the transaction afterwards."""
        try:
            yield
        except TransactionError as problem:
            raise self.of(problem.outcome, problem.detail, transaction) from None
        except KafkaException as problem:
            failure = transaction.cause(problem.args[0])
            raise self.of(failure.name(), failure.str(), transaction) from None
        except ValueError as problem:
            raise self.not_a_step_record(transaction.name, str(problem)) from None
        finally:
            transaction.close()

    def _denied(self, name: str, id_: str) -> MzplanError:
        resource, option, operation = _DENIED[name]
        named = {"name": shlex.quote(id_), "topic": shlex.quote(self._query.body["topic"])}
        return self._error(
            "MZ054.kafka-not",
            resource=resource,
            user_of=user_of(self._query),
            id=id_,
            allow=allow(self._query),
            operation=operation,
            option=option.format(**named),
        )

    def _too_large(self, text: str) -> MzplanError:
        """Return MZ059. Only the error of the producer itself says that it didn't send the record."""
        topic = self._query.body["topic"]
        limit = f"max.message.bytes of topic {topic}"
        if text.startswith(_NOT_SENT):
            limit = f"max.request.size in the options of {self._query.link.address} (1000000 by default)"
        return self._error("MZ059.record-larger", limit=limit, text=text, setting=limit.partition(" (")[0])

    def _too_long(self, name: str, timeout_ms: int) -> MzplanError:
        if name == "INVALID_TRANSACTION_TIMEOUT":
            why = "the brokers don't allow transactions that long (their transaction.max.timeout.ms)"
            hint = "lower `transaction_timeout` in the sink."
        else:
            why = "the step took longer, so the brokers aborted its transaction. Nothing of it was committed"
            hint = (
                "raise `transaction_timeout` in the sink, or make its steps smaller with "
                "`max_files_per_trigger`."
            )
        return self._error("MZ086.transaction-exceeds", timeout=timeout_ms / 1000, why=why, how=hint)

    def outpaced(self, id_: str) -> MzplanError:
        return self._error("MZ068.another-program", id=id_)

    def newer(self, recorded: KafkaStepRecord) -> MzplanError:
        if recorded.generation > self._query.description.generation:
            return self._error("MZ068.replaced", generation=recorded.generation)
        return self._error("MZ068.written-newer", epoch=recorded.epoch)

    def target_restored(self, difference: str) -> MzplanError:
        return self._error(
            "MZ069.target-disagree",
            first_letter=difference[0].upper(),
            difference=difference[1:],
            replace_hint=self._replace_hint(),
        )

    def in_doubt(self, step: int) -> MzplanError:
        return self._error("MZ087.not-known", step=step, replace_hint=self._replace_hint())

    def expired(self, step: int) -> Diagnostic:
        return Diagnostic.of(
            "MZ087.kafka-forgotten", address=self._query.address, where=self._where, step=step
        )

    def not_a_step_record(self, id_: str, why: str) -> MzplanError:
        return self.target_restored(
            f"the consumer group {id_} has an offset whose metadata isn't a step record of mzplan ({why})"
        )

    def _replace_hint(self) -> str:
        return (
            "undo the change, or write all rows again: mzplan apply --replace "
            f"{self._query.address} --allow-replace"
        )

    def _error(self, message: str, **values: Any) -> MzplanError:
        return error(message, address=self._query.address, where=self._where, **values)
