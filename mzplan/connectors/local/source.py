"""The local source: an EndpointSource whose durable steps are the appends of one generation."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from mzplan.connectors.adapter.source import EndpointSource
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.local.appender import StaleStepError
from mzplan.connectors.local.steps import RESERVED, LocalSteps
from mzplan.endpoints.arrow import arrow_schema, columns_of_config
from mzplan.endpoints.interface import InputConsumer, Step, StepError, checked_step
from mzplan.model.losses import Loss
from mzplan.warehouse.checkpoints import Checkpoint


class LocalSource(EndpointSource):
    """Reads the rows that `mzplan append` has written."""

    def __init__(self) -> None:
        super().__init__(LocalFactory())

    def loss(self, query: ResolvedQuery, former: Checkpoint) -> Loss | None:
        """Return all appended rows, because they belong to the earlier generation."""
        rows = LocalSteps(former.steps).appended()
        where = "they were appended to the earlier generation, and are removed with it"
        return Loss(lost=rows, read=rows, unit="appended rows", where=where) if rows else None


class LocalEndpoint:
    """A DurableInputEndpoint over the appended steps. The step after them becomes the next append. If it is
    committed before an append, it becomes an empty step."""

    def __init__(self, storage: str, config: Mapping[str, Any]):
        self._steps = LocalSteps(storage)
        self._config = config
        self._pending: tuple[Step, InputConsumer] | None = None

    def steps(self) -> range:
        return self._steps.steps()

    def read(self, step: Step, consumer: InputConsumer) -> None:
        steps = self.steps()
        if checked_step(step) == steps.stop:
            self._pending = (step, consumer)
        elif step in steps:
            self._feed(step, consumer)
        else:
            raise StepError(
                f"step {step} can't be read: only steps {steps.start} to {steps.stop} (excluded) exist"
            )

    def commit(self, step: Step) -> None:
        pending, self._pending = self._pending, None
        if pending is not None and pending[0] == step:
            if step not in self.steps():
                empty = arrow_schema(columns_of_config(self._config)).empty_table()
                # A concurrent append becomes the step instead.
                with contextlib.suppress(StaleStepError):
                    self._steps.append(empty, f"{RESERVED}empty step {step}", expect=step)
            self._feed(step, pending[1])
        elif step not in self.steps():
            raise StepError(f"step {step} can't be committed: it isn't the step that was read last")

    def expire(self, step: Step) -> None:
        self._steps.expire(checked_step(step))

    def rows(self, steps: range) -> int:
        return self._steps.rows(steps)

    def joined(self, steps: range) -> range:
        return self._steps.joined(steps)

    def _feed(self, step: Step, consumer: InputConsumer) -> None:
        for batch in self._steps.batches(step):
            consumer.push(batch)
        consumer.eoi()
        consumer.committed()


class LocalFactory:
    """Makes LocalEndpoints from `config["storage"]` and `config["columns"]`."""

    def name(self) -> str:
        return "local"

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> LocalEndpoint:
        return LocalEndpoint(config["storage"], config)
