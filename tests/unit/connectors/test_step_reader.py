"""The adapter from a durable input to Spark's stream reader: which call of Spark's becomes which of ours."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import mzplan
from mzplan.connectors.adapter.config import as_error
from mzplan.connectors.adapter.rows import EndpointUpstream
from mzplan.connectors.adapter.step_reader import ReaderPlan, StepPartition, StepReader
from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.local.steps import LocalSteps
from mzplan.endpoints import DurableInputEndpoint, InputConsumer, Step, StepError
from mzplan.endpoints.replay import DiffersError
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.columns import parse_columns
from mzplan.warehouse.content_hash import content_hash
from mzplan.warehouse.replay import GoneError
from mzplan.warehouse.step_record import StepRecord
from tests.contract.controllers import local_source


class Upstream:
    """An input of this process: rows that are there, and how many of them each step has."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.bounds = [0]
        self.start = 0
        self.calls: list[tuple[Any, ...]] = []

    def name(self) -> str:
        return "upstream"

    def new_endpoint(self, name: str, config: Mapping[str, Any]) -> DurableInputEndpoint:
        return Endpoint(self)


class Endpoint:
    def __init__(self, upstream: Upstream):
        self.upstream = upstream
        self.pending: tuple[Step, int] | None = None

    def steps(self) -> range:
        return range(self.upstream.start, len(self.upstream.bounds) - 1)

    def read(self, step: Step, consumer: InputConsumer) -> None:
        self.upstream.calls.append(("read", step))
        durable = step in self.steps()
        bounds = self.upstream.bounds
        until = bounds[step + 1] if durable else len(self.upstream.rows)
        for value in self.upstream.rows[bounds[step] : until]:
            consumer.push(pa.RecordBatch.from_pydict({"id": pa.array([value], pa.int32())}))
        if durable:
            consumer.eoi()
            consumer.committed()
        else:
            self.pending = (step, until)

    def commit(self, step: Step) -> None:
        self.upstream.calls.append(("commit", step))
        if step in self.steps():
            return
        if self.pending is None or self.pending[0] != step:
            raise StepError(f"step {step} was not read")
        self.upstream.bounds.append(self.pending[1])

    def expire(self, step: Step) -> None:
        self.upstream.calls.append(("expire", step))


def reader(upstream: Any, resume: Step | None = None, columns: str = "id BIGINT, more STRING") -> StepReader:
    return StepReader(
        ReaderPlan(
            subject="source.s",
            name="s.g1",
            factory=upstream,
            config={},
            columns=parse_columns(columns),
            secrets=("hunter2",),
            resume=resume,
        )
    )


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
    assert rows(reader(upstream), partition) == [
        {"id": 7, "more": None, "_position": {"step": 1, "row": 0}},
        {"id": 8, "more": None, "_position": {"step": 1, "row": 1}},
    ]
    assert made.latestOffset() == {"step": 3}
    made.partitions({"step": 2}, {"step": 3})
    made.commit({"step": 2})
    assert upstream.calls[-1] == ("expire", 2)


def test_waiting_steps_are_one_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small steps in one task, each read once and under its own number."""
    upstream = Upstream()
    upstream.rows, upstream.bounds = [7, 8, 9, 10], [0, 1, 1, 3, 4]
    made = reader(upstream)
    assert (made.latestOffset(), made.initialOffset()) == ({"step": 4}, {"step": 0})
    upstream.rows, upstream.bounds = [*upstream.rows, 11], [*upstream.bounds, 5]  # comes too late
    (partition,) = made.partitions({"step": 0}, {"step": 4})
    where = [(row["id"], *row["_position"].values()) for row in rows(reader(upstream), partition)]
    assert where == [(7, 0, 0), (8, 2, 0), (9, 2, 1), (10, 3, 0)]
    assert [call for call in upstream.calls if call[0] == "read"] == [("read", step) for step in range(4)]
    # What Spark has logged before a crash is what it reads after it, whatever else is there by now.
    (again,) = reader(upstream, resume=4).partitions({"step": 0}, {"step": 4})
    assert (again.step, again.count) == (0, 4)
    assert made.latestOffset() == {"step": 5}
    assert made.partitions({"step": 5}, {"step": 5}) == []
    # A backlog becomes several.
    monkeypatch.setattr("mzplan.connectors.adapter.step_reader.MOST_STEPS", 2)
    assert [reader(upstream, resume=step).latestOffset()["step"] for step in (None, 2, 4)] == [2, 4, 5]


def test_an_endpoint_may_bound_what_is_read_together() -> None:
    class Bounding(Upstream):
        def new_endpoint(self, name: str, config: Mapping[str, Any]) -> DurableInputEndpoint:
            return Bounded(self)

    class Bounded(Endpoint):
        def joined(self, steps: range) -> range:
            return steps[:3]

    upstream = Bounding()
    upstream.rows, upstream.bounds = [1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]
    assert reader(upstream).latestOffset() == {"step": 3}
    assert reader(upstream, resume=3).latestOffset() == {"step": 5}


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


@pytest.mark.parametrize(("resume", "start"), [(5, 0), (1, 2)])
def test_missing_steps_are_an_error(resume: Step, start: Step) -> None:
    upstream = Upstream()
    upstream.rows, upstream.bounds, upstream.start = [1, 2, 3], [0, 1, 2, 3], start
    made = reader(upstream, resume=resume)
    for call in (made.latestOffset, lambda: made.partitions({"step": resume}, {"step": resume + 1})):
        with pytest.raises(
            RuntimeError, match=rf"^mzplan\[MZ081\]: .*step {resume} is needed, but only steps {start} to 3"
        ):
            call()


def test_steps_are_read_again_without_spark() -> None:
    """The rows and their positions are equal to those that Spark read."""
    upstream = Upstream()
    upstream.rows, upstream.bounds = [1, 2, 3], [0, 2, 3]
    columns = parse_columns("id BIGINT, more STRING")
    described = local_source("a").query
    query = ResolvedQuery(description=described, body={}, connection=None, columns=columns, directory=".")
    again = EndpointUpstream(upstream, query)
    made = reader(upstream)
    for step in range(2):
        read = content_hash(made.read(StepPartition(step)))
        start = {"step": step} if step else None
        assert again.content_hash(StepRecord(step=step, start=start, end={"step": step + 1})) == read
    both = content_hash(made.read(StepPartition(0, count=2)))
    assert again.content_hash(StepRecord(step=0, end={"step": 2})) == both
    assert {call for call, _ in upstream.calls} == {"read"}, "nothing is committed or expired"
    with pytest.raises(GoneError, match=r"step 2 is gone; only steps 0 to 2 \(excluded\) exist"):
        again.content_hash(StepRecord(step=2, start={"step": 2}, end={"step": 3}))
    with pytest.raises(GoneError, match="no longer known"):
        again.content_hash(StepRecord(step=2, end={"step": 3}))


def test_a_reader_is_pickled_without_an_endpoint() -> None:
    upstream = Upstream()
    upstream.rows = [1]
    made = pickle.loads(pickle.dumps(reader(upstream)))
    made.partitions({"step": 0}, {"step": 1})
    assert rows(made, StepPartition(0))[0]["id"] == 1


def test_an_unfit_row_is_an_error() -> None:
    upstream = Upstream()
    upstream.rows = [300]
    made = reader(upstream, columns="id TINYINT")
    (partition,) = made.partitions({"step": 0}, {"step": 1})
    with pytest.raises(RuntimeError, match=r"^mzplan\[MZ082\]: .*id is not a TINYINT"):
        rows(made, partition)


@pytest.mark.parametrize(
    ("problem", "code", "said"),
    [
        (StepError("no step 5"), "MZ081", "no step 5."),
        (OSError("refused: user app, password hunter2"), "MZ082", "refused: user app, password ***"),
        (KeyError("table"), "MZ082", "KeyError: 'table'"),
        (
            DiffersError("step 3 differs"),
            "MZ088",
            "Step 3 differs. Between two attempts at the step, select or where changed, or they contain an "
            "expression that differs each time, such as rand().",
        ),
        (ValueError(""), "MZ082", "ValueError"),
    ],
)
def test_an_error_of_a_connector_is_shown_without_secrets(problem: Exception, code: str, said: str) -> None:
    found = as_error(problem, "source.s", ("hunter2",))
    assert isinstance(found, MzplanError)
    (one,) = found.diagnostics
    assert (one.code, one.detail) == (code, said)
    assert as_error(found, "source.s", ()) is found


def test_a_step_is_read_without_pandas(tmp_path: Path) -> None:
    """Spark makes a Python process for each reader: pandas would cost it a second and 40 MB."""
    program = f"""
import sys
import pyarrow as pa
from mzplan.schema.columns import parse_columns
from mzplan.connectors.adapter.step_reader import ReaderPlan, StepPartition, StepReader
from mzplan.connectors.local.source import LocalFactory
from mzplan.connectors.local.steps import LocalSteps

columns = parse_columns("id BIGINT NOT NULL, name VARCHAR(9), more DATE")
config = {{"storage": {str(tmp_path)!r}}}
plan = ReaderPlan(subject="source.s", name="s", factory=LocalFactory(), config=config, columns=columns,
                  secrets=(), resume=None)
reader = StepReader(plan)
reader.latestOffset()
reader.partitions({{"step": 0}}, {{"step": 1}})
rows = list(reader.read(StepPartition(0)))
reader.commit({{"step": 1}})
assert rows[0].num_rows == 3, rows
sys.exit("pandas" in sys.modules)
"""
    LocalSteps(str(tmp_path)).append(pa.table({"id": [1, 2, 3], "name": ["a", None, "c"]}), "x")
    environment = {"PYTHONPATH": str(Path(mzplan.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
