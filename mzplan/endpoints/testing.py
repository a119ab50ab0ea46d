"""Contract suites. A pytest module runs a suite for its connector, built-in or not, in one line:

    TestInput = input_contract(lambda folder: InputSubject(factory=…, config=…, feed=…))
    TestOutput = output_contract(lambda folder: OutputSubject(factory=…, config=…, contents=…))

Each test calls the function with an empty folder. The function must create an upstream or target for this
test alone. Records have the columns `id BIGINT, name STRING` (`COLUMNS`). The configuration must declare
them; `config_columns()` returns them in mzplan's format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mzplan.endpoints.interface import (
    MAX_STEP,
    DurableInputEndpoint,
    DurableInputFactory,
    OutputEndpoint,
    OutputFactory,
    Step,
    StepError,
    SupportsClose,
)
from mzplan.schema.columns import parse_columns

if TYPE_CHECKING:
    from pyarrow import RecordBatch

COLUMNS = "id BIGINT, name STRING"
Row = dict[str, Any]
NO_STEPS: tuple[Any, ...] = (-1, MAX_STEP + 1, True, "0", None)


def config_columns(ddl: str = COLUMNS) -> list[dict[str, Any]]:
    """Return columns in the format of an endpoint's configuration."""
    return [{"name": c.name, "type": c.type, "nullable": c.nullable} for c in parse_columns(ddl)]


def batch_of(rows: list[Row]) -> RecordBatch:
    """Return the rows as an Arrow record batch."""
    import pyarrow as pa

    schema = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string())])
    return pa.RecordBatch.from_pylist(rows, schema=schema)


def rows(first: int, last: int) -> list[Row]:
    """Return rows with the ids first … last - 1. Some have no name."""
    return [{"id": i, "name": None if i % 5 == 4 else f"n{i}"} for i in range(first, last)]


@dataclass(frozen=True, kw_only=True)
class InputSubject:
    """An input under test.

    `feed` adds rows to the upstream. If the transport defines steps itself, each call makes one step.
    """

    factory: DurableInputFactory
    config: Mapping[str, Any]
    feed: Callable[[list[Row]], None]

    def endpoint(self) -> DurableInputEndpoint:
        return self.factory.new_endpoint("contract", self.config)


@dataclass(frozen=True, kw_only=True)
class OutputSubject:
    """An output under test. `contents` reads the target in the order in which rows were written."""

    factory: OutputFactory
    config: Mapping[str, Any]
    contents: Callable[[], list[Row]]

    def endpoint(self, compare: str = "warn") -> OutputEndpoint:
        return self.factory.new_endpoint("contract", {**self.config, "compare": compare})


@dataclass
class Recorder:
    """A consumer that stores its input. With `fails_after`, `push` raises after that many batches."""

    rows: list[Row] = field(default_factory=list)
    signals: list[str] = field(default_factory=list)
    fails_after: int | None = None

    def push(self, batch: RecordBatch) -> None:
        assert not self.signals, f"push after {self.signals}"
        if self.fails_after == 0:
            raise RuntimeError("the consumer fails")
        if self.fails_after is not None:
            self.fails_after -= 1
        self.rows += batch.to_pylist()

    def eoi(self) -> None:
        self.signals.append("eoi")

    def committed(self) -> None:
        self.signals.append("committed")


DONE = ["eoi", "committed"]


def read_step(endpoint: DurableInputEndpoint, step: Step) -> list[Row]:
    """Return the rows of a durable step. Asserts that the signals are correct."""
    recorder = Recorder()
    endpoint.read(step, recorder)
    assert recorder.signals == DONE, f"read of step {step} has signalled {recorder.signals}"
    return recorder.rows


def input_contract(make: Callable[[Path], InputSubject]) -> type:
    """Return a class of pytest tests for the contract of DurableInputEndpoint."""

    class InputContract:
        def test_new_endpoint_has_no_steps(self, tmp_path: Path) -> None:
            assert make(tmp_path).endpoint().steps() == range(0)

        def test_step_can_be_read_again(self, tmp_path: Path) -> None:
            subject = make(tmp_path)
            endpoint = subject.endpoint()
            step = _feed_step(subject, endpoint, rows(0, 7))
            assert (step, endpoint.steps()) == (0, range(1))
            for again in (endpoint, endpoint, subject.endpoint()):
                assert read_step(again, 0) == rows(0, 7)

        def test_next_step_waits_for_commit(self, tmp_path: Path) -> None:
            subject = make(tmp_path)
            endpoint = subject.endpoint()
            _feed_step(subject, endpoint, rows(0, 3))
            recorder = Recorder()
            endpoint.read(1, recorder)
            assert (recorder.rows, recorder.signals) == ([], [])
            subject.feed(rows(3, 5))
            if 1 not in endpoint.steps():
                endpoint.read(1, recorder)
                assert (recorder.rows, recorder.signals) == (rows(3, 5), [])
            endpoint.commit(1)
            assert (recorder.rows, recorder.signals) == (rows(3, 5), DONE)
            assert endpoint.steps() == range(2)

        def test_each_record_is_in_exactly_one_step(self, tmp_path: Path) -> None:
            subject = make(tmp_path)
            endpoint = subject.endpoint()
            for first in range(0, 12, 4):
                _feed_step(subject, endpoint, rows(first, first + 4))
            for again in (endpoint, subject.endpoint()):
                assert [read_step(again, step) for step in (2, 0, 1)] == [rows(8, 12), rows(0, 4), rows(4, 8)]

        def test_nothing_is_durable_before_commit(self, tmp_path: Path) -> None:
            subject = make(tmp_path)
            endpoint = subject.endpoint()
            before = endpoint.steps()
            endpoint.read(before.stop, Recorder())
            assert subject.endpoint().steps() == before
            subject.feed(rows(0, 2))
            if 0 not in endpoint.steps():
                endpoint.read(0, Recorder())
                assert subject.endpoint().steps() == before
            other = subject.endpoint()
            recorder = Recorder()
            other.read(0, recorder)
            other.commit(0)
            assert (recorder.rows, recorder.signals) == (rows(0, 2), DONE)

        def test_reading_the_next_step_again_starts_over(self, tmp_path: Path) -> None:
            subject = make(tmp_path)
            endpoint = subject.endpoint()
            forgotten, recorder = Recorder(), Recorder()
            endpoint.read(0, forgotten)
            endpoint.read(0, recorder)
            endpoint.commit(0)
            assert (forgotten.signals, recorder.signals) == ([], DONE)

        def test_committing_again_changes_nothing(self, tmp_path: Path) -> None:
            subject = make(tmp_path)
            endpoint = subject.endpoint()
            _feed_step(subject, endpoint, rows(0, 3))
            subject.feed(rows(3, 4))
            before = endpoint.steps()
            for again in (endpoint, subject.endpoint()):
                again.commit(0)
                again.commit(0)
                assert again.steps() == before
                assert read_step(again, 0) == rows(0, 3)

        def test_empty_step(self, tmp_path: Path) -> None:
            subject = make(tmp_path)
            endpoint = subject.endpoint()
            recorder = Recorder()
            endpoint.read(0, recorder)
            endpoint.commit(0)
            assert (recorder.rows, recorder.signals) == ([], DONE)
            _feed_step(subject, endpoint, rows(0, 2))
            again = subject.endpoint()
            assert (read_step(again, 0), read_step(again, 1)) == ([], rows(0, 2))

        def test_failing_consumer_leaves_nothing_durable(self, tmp_path: Path) -> None:
            subject = make(tmp_path)
            endpoint = subject.endpoint()
            subject.feed(rows(0, 3))
            before = endpoint.steps()
            _assert_raises(RuntimeError, lambda: endpoint.read(0, Recorder(fails_after=0)))
            assert endpoint.steps() == before
            recorder = Recorder()
            endpoint.read(0, recorder)
            endpoint.commit(0)
            assert (recorder.rows, recorder.signals) == (rows(0, 3), DONE)

        def test_steps_continue_after_a_restart(self, tmp_path: Path) -> None:
            subject = make(tmp_path)
            for step in range(3):
                assert _feed_step(subject, subject.endpoint(), rows(step, step + 1)) == step
            assert subject.endpoint().steps() == range(3)

        def test_steps_out_of_range_are_refused(self, tmp_path: Path) -> None:
            subject = make(tmp_path)
            endpoint = subject.endpoint()
            _feed_step(subject, endpoint, rows(0, 3))
            for step in (2, 3, MAX_STEP, *NO_STEPS):
                _assert_raises(StepError, partial(endpoint.read, step, Recorder()))
                _assert_raises(StepError, partial(endpoint.commit, step))
            # Step 1 is next, but nothing has read it.
            _assert_raises(StepError, lambda: subject.endpoint().commit(1))
            for step in (5, *NO_STEPS):
                _assert_raises(StepError, partial(endpoint.expire, step))
            assert endpoint.steps() == range(1)

        def test_expire(self, tmp_path: Path) -> None:
            subject = make(tmp_path)
            endpoint = subject.endpoint()
            endpoint.expire(0)
            for step in range(4):
                _feed_step(subject, endpoint, rows(step, step + 1))
            for step in (2, 2, 1):
                endpoint.expire(step)
                for again in (endpoint, subject.endpoint()):
                    steps = again.steps()
                    assert steps.start <= 2 and steps.stop == 4
                    assert [read_step(again, s) for s in (2, 3)] == [rows(2, 3), rows(3, 4)]
                    if steps.start > 0:
                        _assert_raises(StepError, partial(again.read, 0, Recorder()))

        def test_step_numbers_continue_after_all_steps_expired(self, tmp_path: Path) -> None:
            subject = make(tmp_path)
            endpoint = subject.endpoint()
            for step in range(3):
                _feed_step(subject, endpoint, rows(step, step + 1))
            endpoint.expire(3)
            again = subject.endpoint()
            assert again.steps().stop == 3
            assert _feed_step(subject, again, rows(3, 6)) == 3
            assert read_step(subject.endpoint(), 3) == rows(3, 6)

    return InputContract


def output_contract(make: Callable[[Path], OutputSubject]) -> type:
    """Return a class of pytest tests for the contract of OutputEndpoint, including the output rule."""

    class OutputContract:
        def test_steps_are_written_in_order(self, tmp_path: Path) -> None:
            subject = make(tmp_path)
            endpoint = subject.endpoint()
            for step in range(3):
                write_step(endpoint, step, rows(step * 4, step * 4 + 4), 3)
                assert subject.contents() == rows(0, step * 4 + 4)

        def test_empty_and_skipped_steps(self, tmp_path: Path) -> None:
            subject = make(tmp_path)
            for step, pushed in ((5, rows(0, 2)), (6, []), (9, rows(2, 3)), (6, [])):
                write_step(subject.endpoint(), step, pushed)
            assert subject.contents() == rows(0, 3)

        def test_repeated_step_is_discarded(self, tmp_path: Path, caplog: Any) -> None:
            subject = make(tmp_path)
            endpoint = subject.endpoint("fail")
            write_step(endpoint, 0, rows(0, 7), 2)
            for again, size in ((endpoint, 2), (endpoint, 7), (subject.endpoint("fail"), 3)):
                write_step(again, 0, rows(0, 7), size)
                assert subject.contents() == rows(0, 7)
            assert not caplog.messages

        def test_last_step_grows_beyond_its_written_length(self, tmp_path: Path) -> None:
            subject = make(tmp_path)
            write_step(subject.endpoint(), 0, rows(0, 2))
            write_step(subject.endpoint(), 1, rows(2, 5))
            for last in (9, 12, 12):
                write_step(subject.endpoint("fail"), 1, rows(2, last), 4)
                assert subject.contents() == rows(0, last)

        def test_earlier_step_does_not_grow(self, tmp_path: Path, caplog: Any) -> None:
            subject = make(tmp_path)
            endpoint = subject.endpoint()
            write_step(endpoint, 0, rows(0, 2))
            write_step(endpoint, 3, rows(2, 4))
            caplog.clear()
            write_step(subject.endpoint("fail"), 0, [*rows(0, 2), *rows(90, 95)])
            assert subject.contents() == rows(0, 4)
            assert any("steps up to 3" in message for message in caplog.messages), caplog.messages

        def test_different_records_are_reported(self, tmp_path: Path, caplog: Any) -> None:
            subject = make(tmp_path)
            write_step(subject.endpoint(), 0, rows(0, 4))
            caplog.clear()
            other = [*rows(0, 3), {"id": 3, "name": "other"}, *rows(4, 6)]
            write_step(subject.endpoint("off"), 0, other[:4])
            assert not caplog.messages
            write_step(subject.endpoint("warn"), 0, other[:4])
            assert any("differ" in message for message in caplog.messages), caplog.messages
            _assert_raises(Exception, lambda: write_step(subject.endpoint("fail"), 0, other))
            assert subject.contents() == rows(0, 4)

        def test_nothing_is_appended_to_different_records(self, tmp_path: Path, caplog: Any) -> None:
            subject = make(tmp_path)
            write_step(subject.endpoint(), 0, [{"id": i, "name": f"name {i}"} for i in (1, 3, 5)])
            contents = list(subject.contents())
            for compare in ("warn", "off"):
                write_step(subject.endpoint(compare), 0, rows(1, 6), 2)
                assert subject.contents() == contents
            write_step(subject.endpoint("fail"), 1, rows(6, 8))
            assert subject.contents() == [*contents, *rows(6, 8)]

        def test_fewer_records_are_reported(self, tmp_path: Path, caplog: Any) -> None:
            subject = make(tmp_path)
            write_step(subject.endpoint(), 0, rows(0, 4))
            caplog.clear()
            write_step(subject.endpoint("warn"), 0, rows(0, 3))
            assert any("3 rows" in message for message in caplog.messages), caplog.messages
            _assert_raises(Exception, lambda: write_step(subject.endpoint("fail"), 0, rows(0, 3)))
            assert subject.contents() == rows(0, 4)
            write_step(subject.endpoint("fail"), 0, rows(0, 4))
            assert subject.contents() == rows(0, 4)

        def test_abandoned_step_is_written_once(self, tmp_path: Path) -> None:
            subject = make(tmp_path)
            write_step(subject.endpoint(), 0, rows(0, 2))
            for _ in range(2):
                killed = subject.endpoint()
                killed.start_step(1)
                killed.push_buffer(batch_of(rows(2, 5)))
                _close(killed)
            endpoint = subject.endpoint()
            endpoint.start_step(1)
            endpoint.push_buffer(batch_of(rows(2, 4)))
            write_step(endpoint, 1, rows(2, 7), 2)
            assert subject.contents() == rows(0, 7)

        def test_calls_out_of_order_are_refused(self, tmp_path: Path) -> None:
            endpoint = make(tmp_path).endpoint()
            _assert_raises(StepError, lambda: endpoint.push_buffer(batch_of(rows(0, 1))))
            _assert_raises(StepError, endpoint.finish_step)
            for step in NO_STEPS:
                _assert_raises(StepError, partial(endpoint.start_step, step))
                _assert_raises(StepError, partial(endpoint.expire_step, step))
            write_step(endpoint, 0, rows(0, 1))
            _assert_raises(StepError, lambda: endpoint.push_buffer(batch_of(rows(0, 1))))
            _assert_raises(StepError, endpoint.finish_step)

        def test_expire_forgets_positions_not_records(self, tmp_path: Path) -> None:
            subject = make(tmp_path)
            endpoint = subject.endpoint()
            for step in range(4):
                write_step(endpoint, step, rows(step, step + 1))
            for step in (2, 2, 1, 0):
                endpoint.expire_step(step)
            again = subject.endpoint("fail")
            _assert_raises(StepError, lambda: write_step(again, 0, rows(0, 1)))
            for step in (2, 3):
                write_step(again, step, rows(step, step + 1))
            write_step(again, 4, rows(4, 5))
            assert subject.contents() == rows(0, 5)

    return OutputContract


def write_step(endpoint: OutputEndpoint, step: Step, pushed: list[Row], size: int = 100) -> None:
    """Push a step in batches of `size` rows."""
    endpoint.start_step(step)
    for first in range(0, len(pushed), size):
        endpoint.push_buffer(batch_of(pushed[first : first + size]))
    endpoint.finish_step()


def _feed_step(subject: InputSubject, endpoint: DurableInputEndpoint, fed: list[Row]) -> Step:
    """Feed rows, make them the next step, and return its number."""
    step = endpoint.steps().stop
    subject.feed(fed)
    recorder = Recorder()
    if step not in endpoint.steps():
        endpoint.read(step, recorder)
        assert recorder.signals == [], f"signalled {recorder.signals} before commit"
        endpoint.commit(step)
    else:
        endpoint.read(step, recorder)
    assert (recorder.rows, recorder.signals) == (fed, DONE)
    return step


def _close(endpoint: object) -> None:
    if isinstance(endpoint, SupportsClose):
        endpoint.close()


def _assert_raises(kind: type[Exception], call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"no {kind.__name__} was raised")
