"""The adapter from a durable input to Spark's stream reader: which call of Spark's becomes which of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from mzplan.connectors.adapter.config import as_error
from mzplan.connectors.adapter.step_reader import ReaderPlan, StepReader
from mzplan.endpoints import DurableInputEndpoint, InputConsumer, Step, StepError
from mzplan.endpoints.replay import DiffersError
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.columns import parse_columns


class Upstream:
    """An input of this process: rows that are there, and how many of them each step has."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.bounds = [0]
        self.calls: list[tuple[Any, ...]] = []
        self.pending: tuple[Step, int] | None = None

    def name(self) -> str:
        return "upstream"

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> DurableInputEndpoint:
        return self

    def steps(self) -> range:
        return range(len(self.bounds) - 1)

    def read(self, step: Step, consumer: InputConsumer) -> None:
        self.calls.append(("read", step))
        durable = step in self.steps()
        until = self.bounds[step + 1] if durable else len(self.rows)
        for value in self.rows[self.bounds[step] : until]:
            consumer.push(pa.RecordBatch.from_pydict({"id": pa.array([value], pa.int32())}))
        if durable:
            consumer.eoi()
            consumer.committed()
        else:
            self.pending = (step, until)

    def commit(self, step: Step) -> None:
        self.calls.append(("commit", step))
        if step in self.steps():
            return
        if self.pending is None or self.pending[0] != step:
            raise StepError(f"step {step} was not read")
        self.bounds.append(self.pending[1])

    def expire(self, step: Step) -> None:
        self.calls.append(("expire", step))


def reader(upstream: Any, resume: Step | None = None, columns: str = "id BIGINT, more STRING") -> StepReader:
    given: dict[str, Any] = {"subject": "source.s", "name": "s.g1", "config": {}, "secrets": ("hunter2",)}
    return StepReader(ReaderPlan(**given, factory=upstream, columns=parse_columns(columns), resume=resume))


def rows(made: StepReader, partition: Any) -> list[Any]:
    return [row for batch in made.read(partition) for row in batch.to_pylist()]


def test_a_micro_batch_is_committed_before_it_is_read() -> None:
    upstream = Upstream()
    made = reader(upstream)
    # The first one, with nothing there: Spark's micro-batch 0 is step 0 all the same.
    assert (made.latestOffset(), made.initialOffset()) == ({"step": 1}, {"step": 0})
    (empty,) = made.partitions({"step": 0}, {"step": 1})
    assert rows(reader(upstream), empty) == []
    assert made.latestOffset() == {"step": 1}
    upstream.rows += [7, 8]
    upstream.calls.clear()
    assert made.latestOffset() == {"step": 2}
    (partition,) = made.partitions({"step": 1}, {"step": 2})
    upstream.rows.append(9)  # after the offsets were logged: of the next step
    # Spark may ask for the partitions of a batch more than once.
    assert len(made.partitions({"step": 1}, {"step": 2})) == 1
    assert upstream.calls == [("read", 1), ("commit", 1)], "what was offered is committed, and not read again"
    read = [(r["id"], r["more"], r["_position"]) for r in rows(reader(upstream), partition)]
    assert read == [(7, None, {"step": 1, "row": 0}), (8, None, {"step": 1, "row": 1})]
    assert made.latestOffset() == {"step": 3}
    made.partitions({"step": 2}, {"step": 3})
    made.commit({"step": 2})
    assert upstream.calls[-1] == ("expire", 2)


def test_a_step_logged_before_a_crash_is_read_again() -> None:
    """The offsets were logged; whether the step was committed before the crash is not known."""
    upstream = Upstream()
    upstream.rows += [7]
    (partition,) = reader(upstream, resume=1).partitions({"step": 0}, {"step": 1})
    assert upstream.bounds == [0, 1]
    upstream.rows += [8]
    made = reader(upstream, resume=1)
    (again,) = made.partitions({"step": 0}, {"step": 1})
    assert upstream.bounds == [0, 1]
    assert [r["id"] for r in rows(made, partition)] == [r["id"] for r in rows(made, again)] == [7]
    assert made.latestOffset() == {"step": 2}


@pytest.mark.parametrize(
    ("problem", "code", "said"),
    [
        (StepError("no step 5"), "MZ081", "no step 5."),
        (OSError("refused: user app, password hunter2"), "MZ082", "refused: user app, password ***"),
        (KeyError("table"), "MZ082", "KeyError: 'table'"),
        (DiffersError("step 3 differs"), "MZ088", "Step 3 differs. Between two attempts at the step, select"),
        (ValueError(""), "MZ082", "ValueError"),
    ],
)
def test_an_error_of_a_connector_is_shown_without_secrets(problem: Exception, code: str, said: str) -> None:
    found = as_error(problem, "source.s", ("hunter2",))
    assert isinstance(found, MzplanError)
    (one,) = found.diagnostics
    assert one.code == code and one.detail.startswith(said) and "hunter2" not in str(one)
    assert as_error(found, "source.s", ()) is found
