"""The endpoint contract over the native sources: what there is to read and expire of them.

Their steps are made and committed by Spark's own query, so `feed` does what that does. Two tests of the
suite ask an endpoint to make a step itself, out of nothing that was fed: a native source's endpoint refuses
that, as the tests below say.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyarrow import RecordBatch

from mzplan.endpoints import DurableInputEndpoint, InputConsumer, Step, StepError
from mzplan.endpoints.testing import InputSubject, Recorder, input_contract, read_step, rows
from mzplan.schema.columns import POSITION
from tests.contract.collection_endpoint import CollectionFactory
from tests.stored_steps import StoredSource


class WithoutPositions:
    """Endpoints whose rows are compared without `_position`, which the suite knows nothing of."""

    def name(self) -> str:
        return "collection"

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> DurableInputEndpoint:
        return _Endpoint(CollectionFactory().new_endpoint(name, config))


class _Endpoint:
    def __init__(self, inner: DurableInputEndpoint):
        self.commit, self.steps, self.expire = inner.commit, inner.steps, inner.expire
        self._inner = inner

    def read(self, step: Step, consumer: InputConsumer) -> None:
        self._inner.read(step, _Consumer(consumer))


class _Consumer:
    def __init__(self, inner: InputConsumer):
        self.eoi, self.committed = inner.eoi, inner.committed
        self._inner = inner

    def push(self, batch: RecordBatch) -> None:
        self._inner.push(batch.drop_columns([POSITION]))


def native(folder: Path) -> InputSubject:
    source = StoredSource(folder / "warehouse")
    config = {"warehouse": str(source.warehouse), "id": source.place[0], "generation": source.place[1]}
    return InputSubject(factory=WithoutPositions(), config=config, feed=source.run)


class TestNativeSource(input_contract(native)):  # type: ignore[misc]
    test_empty_step = None
    test_reading_the_next_step_again_starts_over = None

    def test_a_step_is_made_by_the_sources_query_alone(self, tmp_path: Path) -> None:
        subject = native(tmp_path)
        endpoint = subject.endpoint()
        recorder = Recorder()
        endpoint.read(0, recorder)
        with pytest.raises(StepError, match="the source's own query commits it"):
            endpoint.commit(0)
        assert (recorder.signals, endpoint.steps()) == ([], range(0))
        subject.feed(rows(0, 2))
        endpoint.commit(0)
        assert (recorder.rows, recorder.signals) == (rows(0, 2), ["eoi", "committed"])

    def test_a_step_without_rows(self, tmp_path: Path) -> None:
        subject = native(tmp_path)
        for fed in ([], rows(0, 2)):
            subject.feed(fed)
        assert [read_step(subject.endpoint(), step) for step in (0, 1)] == [[], rows(0, 2)]

    def test_reading_the_next_step_again_forgets_the_consumer_before(self, tmp_path: Path) -> None:
        subject = native(tmp_path)
        endpoint = subject.endpoint()
        forgotten, recorder = Recorder(), Recorder()
        endpoint.read(0, forgotten)
        endpoint.read(0, recorder)
        subject.feed(rows(0, 1))
        endpoint.commit(0)
        assert (forgotten.signals, recorder.rows) == ([], rows(0, 1))

    def test_a_configuration_that_lacks_something(self) -> None:
        with pytest.raises(ValueError, match="has no 'id'"):
            CollectionFactory().new_endpoint("source.orders", {"warehouse": "/w"})
