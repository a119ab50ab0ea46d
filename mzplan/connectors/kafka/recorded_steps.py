"""What Kafka has recorded of the steps of a sink: for `mzplan verify`."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaException

from mzplan.connectors.api.protocols import ResolvedQuery
from mzplan.connectors.api.recorded_steps import nothing_recorded
from mzplan.connectors.kafka.options import client_body, transaction_options
from mzplan.connectors.kafka.problems import Problems
from mzplan.connectors.kafka.step_record import StepRecord
from mzplan.connectors.kafka.transaction import StopError, Transaction
from mzplan.endpoints.interface import Step
from mzplan.endpoints.replay import Written


class KafkaRecorded:
    """Reads the step record, which holds the last steps."""

    def __init__(self, query: ResolvedQuery):
        if query.body["delivery"] != "exactly-once":
            why = "With delivery: at-least-once Spark's own writer writes it."
            raise nothing_recorded(query, why, has_content=True)
        self.keys: Sequence[str] = query.body["key"] if query.body["mode"] == "upsert" else ()
        client = transaction_options(client_body(query.link), query.directory)
        transaction = Transaction(client, f"mzplan.{query.description.id}", query.body["topic"], 60_000)
        try:
            text = transaction.read()
            record = StepRecord.parse(text) if text is not None else None
        except StopError as stop:
            raise Problems(query).of(stop.outcome, stop.detail, transaction) from None
        except KafkaException as problem:
            failure = transaction.cause(problem.args[0])
            raise Problems(query).of(failure.name(), failure.str(), transaction) from None
        except ValueError as problem:
            raise Problems(query).not_ours(transaction.name, str(problem)) from None
        finally:
            transaction.close()
        ours = record is not None and record.generation == query.description.generation
        self._written = record.written() if record is not None and ours else {}

    def step(self, step: Step) -> Written | None:
        found = self._written.get(step)
        return found if found is not None and found != Written(rows=0, digest=None) else None

    def close(self) -> None:
        """Nothing is open."""
