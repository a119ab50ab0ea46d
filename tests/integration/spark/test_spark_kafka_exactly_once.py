"""The kafka sink, exactly once, on a real broker: whatever is repeated, pushed aside or taken away."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from examples.servers import create_topic, delete_topic
from mzplan.connectors.kafka.step_record import KafkaStepRecord
from tests.integration.committed import committed, step_record
from tests.integration.spark_lab import Lab
from tests.support import Make, eventually


class Pipe:
    """A source of orders and a sink of them into a topic."""

    def __init__(self, lab: Lab, topic: Make, **body: Any):
        self.lab = lab
        self.input, self.output = topic(partitions=1), topic()
        self.source = lab.kafka_source(self.input)
        self.sink = lab.kafka_sink(self.source, self.output, **body)
        self.produced = 0

    def change(self, **body: Any) -> None:
        """Start the sink with another body: the same id, generation and checkpoint."""
        self.sink = self.lab.changed(self.sink, **body)
        self.lab.start(self.sink)

    def repeat(self, **body: Any) -> None:
        """Change the sink as after a crash between the target and the checkpoint."""
        self.done(self.record()["step"])
        self.lab.stop(self.sink)
        self.lab.undo_commit(self.sink)
        self.lab.forget_begun(self.sink)
        self.change(**body)

    def stop(self) -> None:
        self.lab.stop(self.source, self.sink)

    def produce(self, count: int) -> None:
        first, self.produced = self.produced, self.produced + count
        self.lab.produce(
            self.input, *({"id": i, "customer": f"c{i % 7}"} for i in range(first, first + count))
        )

    def seen(self) -> Counter[int]:
        """How often each id is there, committed."""
        return Counter(value["id"] for _, _, value in committed(self.lab.kafka.bootstrap, self.output))

    def has(self, count: int) -> None:
        """Wait until ids 0 … count - 1 are there, each once."""
        eventually(f"{count} rows", lambda: self.seen() == Counter(range(count)))

    def record(self) -> dict[str, Any]:
        found = step_record(self.lab.kafka.bootstrap, self.output, self.sink.id)
        assert found is not None
        return found

    def step_record(self) -> KafkaStepRecord:
        return KafkaStepRecord.parse(json.dumps(self.record()))

    def forget(self) -> None:
        """As the brokers do after offsets.retention.minutes."""
        admin = AdminClient({"bootstrap.servers": self.lab.kafka.bootstrap})
        admin.delete_consumer_groups([f"mzplan.{self.sink.id}"])[f"mzplan.{self.sink.id}"].result(20)

    def done(self, step: int) -> None:
        eventually(f"step {step} is reported", lambda: self.lab.report(self.sink).step >= step)


@pytest.mark.nightly
def test_delivery_can_change_and_keeps_the_checkpoint(lab: Lab, topic: Make) -> None:
    pipe = Pipe(lab, topic, delivery="at-least-once")
    pipe.produce(10)
    lab.start(pipe.source, pipe.sink)
    pipe.has(10)
    lab.finish(pipe.sink)

    pipe.change(delivery="exactly-once")
    pipe.produce(10)
    pipe.has(20)
    first = pipe.record()["step"]
    pipe.done(first)
    lab.stop(pipe.sink)

    # Without steps for a while: what the record says of steps then is not the whole truth.
    pipe.change(delivery="at-least-once")
    for count in (30, 40):
        pipe.produce(10)
        pipe.has(count)
    lab.finish(pipe.sink)
    assert pipe.record()["step"] == first

    pipe.change(delivery="exactly-once")
    pipe.produce(10)
    pipe.has(50)
    assert pipe.record()["step"] > first + 2
    pipe.stop()


@pytest.mark.nightly
def test_a_newer_runner_is_not_disturbed_by_an_older_one(lab: Lab, topic: Make) -> None:
    from mzplan.connectors.api.queries import resolve
    from mzplan.connectors.kafka.options import transaction_options
    from mzplan.connectors.kafka.output import report
    from mzplan.connectors.kafka.transaction import KafkaTransaction

    pipe = Pipe(lab, topic)
    pipe.produce(10)
    lab.start(pipe.source, pipe.sink, epoch=5)
    pipe.has(10)
    before = pipe.step_record()
    link = resolve(pipe.sink, lab.secrets, str(lab.folder)).link

    def transaction() -> KafkaTransaction:
        options = transaction_options(link, ".")
        return KafkaTransaction(options, f"mzplan.{pipe.sink.id}", pipe.output, 60_000)

    # A runner of epoch 6 has noted down that it writes; this one is of epoch 5, and learns of it before it
    # has fenced anybody.
    newer = replace(before, epoch=6)
    claimed = transaction()
    claimed.commit_record(before.text, newer.step, newer.text)
    claimed.close()
    pipe.produce(10)
    lab.fails(pipe.sink, "MZ068")
    assert pipe.seen() == Counter(range(10))
    assert pipe.step_record() == newer

    # One that woke up between its first look and init_transactions: it looks again, and writes nothing.
    late = transaction()
    looks = iter([before.text])
    read = late.read
    late.read = lambda: next(looks, None) or read()  # type: ignore[method-assign]
    found = report(late, before, before.step + 1, (), partitions=2, compare="warn")
    assert (found["outcome"], found["record"]) == ("changed", newer.text)
    assert pipe.step_record() == newer
    lab.start(pipe.sink, epoch=7)  # and the newest goes on, although its transactional id was taken meanwhile
    pipe.has(20)
    pipe.stop()


@pytest.mark.nightly
@pytest.mark.parametrize("compare", ["warn", "fail", "off"])
def test_a_repeated_step_is_compared_with_the_written_records(lab: Lab, topic: Make, compare: str) -> None:
    pipe = Pipe(lab, topic, where="id < 10", compare=compare)
    pipe.produce(20)
    lab.start(pipe.source)
    eventually("the rows are there", lambda: lab.count(pipe.source) == 20)
    lab.start(pipe.sink)
    pipe.has(10)
    record = pipe.record()
    pipe.repeat(where="id < 15")  # the same rows, and more behind them: those are appended
    pipe.has(15)
    longer = pipe.record()
    assert (longer["step"], longer["rows"]) == (record["step"], 15)
    pipe.done(record["step"])
    assert lab.report(pipe.sink).warning is None

    pipe.repeat(where="id >= 5")  # others: what is written stays
    if compare == "fail":
        lab.fails(pipe.sink, "MZ088")
    else:
        pipe.produce(1)
        eventually("it goes on", lambda: 20 in pipe.seen())
        assert pipe.seen() == Counter([*range(15), 20])
        warning = lab.report(pipe.sink).warning or ""
        assert ("MZ088" in warning) == (compare == "warn"), warning
    pipe.stop()


@pytest.mark.nightly
def test_a_step_record_that_kafka_has_forgotten(lab: Lab, topic: Make) -> None:
    pipe = Pipe(lab, topic)
    pipe.produce(10)
    lab.start(pipe.source, pipe.sink)
    pipe.has(10)

    def is_told(count: int) -> None:
        pipe.has(count)
        assert "MZ087" in (lab.report(pipe.sink).warning or "")
        pipe.done(pipe.record()["step"])

    pipe.done(pipe.record()["step"])
    pipe.forget()  # while it runs, idle
    pipe.produce(10)
    is_told(20)
    lab.stop(pipe.sink)

    pipe.forget()  # no step is under way: nothing is in doubt
    pipe.produce(10)
    lab.start(pipe.sink)
    is_told(30)
    lab.stop(pipe.sink)

    pipe.forget()
    lab.undo_commit(pipe.sink)
    lab.start(pipe.sink)
    lab.fails(pipe.sink, "MZ087")
    assert pipe.seen() == Counter(range(30))
    pipe.stop()


@pytest.mark.nightly
def test_a_recreated_topic_and_an_older_checkpoint(lab: Lab, topic: Make) -> None:
    pipe = Pipe(lab, topic)
    pipe.produce(10)
    lab.start(pipe.source, pipe.sink)
    pipe.has(10)
    pipe.done(pipe.record()["step"])
    for _ in range(2):
        step = pipe.record()["step"]
        pipe.produce(1)
        pipe.done(step + 1)
    lab.stop(pipe.sink)
    lab.undo_commit(pipe.sink)
    last = lab.undo_commit(pipe.sink)
    (lab.checkpoint(pipe.sink) / "spark" / "offsets" / str(last + 1)).unlink()
    lab.start(pipe.sink)  # its steps are in the topic already, with others behind them
    eventually("it is told", lambda: "MZ069" in (lab.report(pipe.sink).warning or ""))
    lab.stop(pipe.sink)

    delete_topic(lab.kafka.bootstrap, pipe.output)
    create_topic(lab.kafka.bootstrap, pipe.output, 2)
    pipe.produce(1)
    lab.start(pipe.sink)
    lab.fails(pipe.sink, "MZ069", "created again")
    pipe.stop()
