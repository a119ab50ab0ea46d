"""What Kafka has recorded of the steps of a sink: for `mzplan verify`."""

from __future__ import annotations

from mzplan.connectors.api.protocols import Recorded, ResolvedQuery
from mzplan.connectors.api.recorded_steps import nothing_recorded
from mzplan.connectors.kafka.problems import Problems, transaction_of
from mzplan.connectors.kafka.step_record import StepRecord
from mzplan.endpoints.interface import Step, Written


class KafkaRecorded(Recorded):
    """Reads the step record, which holds the last steps."""

    def __init__(self, query: ResolvedQuery):
        if query.body["delivery"] != "exactly-once":
            why = "With delivery: at-least-once Spark's own writer writes it."
            raise nothing_recorded(query, why, has_content=True)
        self.keys = query.body["key"] if query.body["mode"] == "upsert" else ()
        transaction = transaction_of(query)
        with Problems(query).explaining(transaction):
            text = transaction.read()
            record = StepRecord.parse(text) if text is not None else None
        ours = record is not None and record.generation == query.description.generation
        self._written = record.written() if record is not None and ours else {}

    def step(self, step: Step) -> Written | None:
        found = self._written.get(step)
        return found if found is not None and found != Written(rows=0, digest=None) else None
