"""Times of Kafka's records, on a real broker: where a source starts, and a range that is read once more."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from confluent_kafka import Producer

from mzplan.connectors.api.queries import resolve
from mzplan.model.times import instant_text
from mzplan.schema.description import Description
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.rows.replay import collection_batches
from tests.integration.spark_lab import Lab, read_delta
from tests.support import Make, eventually
from tests.tasks import backfill

HOUR = 3_600_000
BEGAN = 1_700_000_000_000  # milliseconds since the epoch


def send(bootstrap: str, topic: str, *ids: int, partition: int = 0) -> None:
    """Records of these ids, each of the hour that its id says."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for id_ in ids:
        value = json.dumps({"id": id_}).encode()
        producer.produce(topic, value, partition=partition, timestamp=BEGAN + id_ * HOUR)
    assert producer.flush(20) == 0


def hour(number: int) -> str:
    return instant_text(BEGAN + number * HOUR)


def holds(lab: Lab, source: Description, expected: list[int]) -> None:
    """Wait until the source has exactly these rows."""
    eventually(f"the rows are {expected}", lambda: lab.ids(source) == expected)


def read(lab: Lab, source: Description, expected: list[int]) -> None:
    """Run the source until it has exactly these rows."""
    lab.start(source)
    holds(lab, source, expected)
    lab.finish(source)


@pytest.mark.nightly
def test_a_source_starts_at_a_time(lab: Lab, topic: Make) -> None:
    """The first record of the time itself counts; a partition without one begins at its end."""
    name = topic(partitions=2)
    send(lab.kafka.bootstrap, name, 1, 2, 3)
    send(lab.kafka.bootstrap, name, 1, partition=1)
    source = lab.kafka_source(name, schema="id BIGINT", start_offsets=hour(2))
    assert lab.waits(source) == {"records": 2}
    lab.start(source)
    holds(lab, source, [2, 3])
    send(lab.kafka.bootstrap, name, 1, partition=1)  # whatever its time: it has come since
    holds(lab, source, [1, 2, 3])
    first = lab.recorded(source, 2)[0]
    assert first.start == {name: {"0": 1, "1": 1}}
    assert str(lab.upstream(source).content_hash(first)) == first.digest
    lab.finish(source)


def test_a_backfill_adds_its_range_once_as_a_step(lab: Lab, topic: Make) -> None:
    name = topic(partitions=2)
    source = lab.kafka_source(name, schema="id BIGINT")
    sink = lab.delta_sink(source, lab.folder, f"{name}-copy")
    send(lab.kafka.bootstrap, name, 1, 2, 3, 4)
    send(lab.kafka.bootstrap, name, 3, 5, partition=1)
    asked = backfill(7, hour(2), hour(4))
    described = replace(lab.retried(source), tasks=(asked,))
    lab.finds(described, "MZ278")  # nothing was read that it could come after
    lab.start(source, sink)
    holds(lab, source, [1, 2, 3, 3, 4, 5])
    lab.finish(source)
    steps = lab.last_step(source) + 1

    assert lab.check(described).diagnostics == ()
    lab.start(described)
    assert lab.ids(described) == [1, 2, 2, 3, 3, 3, 3, 4, 5]
    assert [done.serial for done in lab.report(described).tasks_done] == [7]
    lab.finish(described)
    # Once, however often it starts.
    later = replace(lab.retried(described), tasks=(asked,))
    lab.start(later)
    send(lab.kafka.bootstrap, name, 6)
    holds(lab, later, [1, 2, 2, 3, 3, 3, 3, 4, 5, 6])
    copied = lab.folder / f"{name}-copy"
    eventually("the sink has them", lambda: sorted(r["id"] for r in read_delta(copied)) == lab.ids(later))

    found = lab.recorded(later, steps + 2)
    assert [record.step for record in found] == list(range(steps + 2))
    assert [record.step for record in found if record.task] == [steps]
    record = found[steps]
    assert (record.rows, record.task) == (3, ("backfill", 7))
    assert (record.start, record.end) == ({name: {"0": 1, "1": 0}}, {name: {"0": 3, "1": 1}})
    assert found[steps + 1].start == found[steps - 1].end
    history = lab.history(later)
    assert sum(batch.num_rows for batch in collection_batches(history.collection, record)) == 3
    assert str(lab.upstream(later).content_hash(record)) == record.digest
    lab.finish(later, sink)


def test_a_backfill_of_missing_records_is_refused(lab: Lab, topic: Make) -> None:
    name = topic(partitions=1)
    source = lab.kafka_source(name, schema="id BIGINT")
    send(lab.kafka.bootstrap, name, 1, 2, 3)
    read(lab, source, [1, 2, 3])
    lab.delete_records(name, 1)

    def asked(first: int, last: int) -> Description:
        return replace(lab.retried(source), tasks=(backfill(7, hour(first), hour(last)),))

    from_ = instant_text(BEGAN + 2 * HOUR + 1)
    assert f"--from {from_} or later" in lab.finds(asked(1, 3), "MZ277").hint
    assert "has no records" in lab.finds(asked(10, 12), "MZ277").summary
    assert lab.codes(asked(3, 5)) == []
    # Where it has been committed all the same: nothing is written, and what ran before can run again.
    assert "may be gone" in lab.refused(asked(1, 3)).summary
    send(lab.kafka.bootstrap, name, 4)
    read(lab, source, [1, 2, 3, 4])


@pytest.mark.nightly
def test_a_backfill_that_a_killed_runner_began_adds_its_range_once(lab: Lab, topic: Make) -> None:
    """Its offsets are written down and its rows are not: another upstream position, or a backfill that was
    given up, must not be taken for it."""
    name = topic(partitions=1)
    source = lab.kafka_source(name, schema="id BIGINT")
    send(lab.kafka.bootstrap, name, 1, 2, 3)
    read(lab, source, [1, 2, 3])
    asked = backfill(7, hour(1), hour(3))
    described = replace(lab.retried(source), tasks=(asked,))
    query = resolve(described, lab.secrets, str(lab.folder), str(lab.folder / "warehouse"))
    checkpoint = Checkpoint(str(lab.checkpoint(source)))
    assert query.checkpoint == checkpoint
    from mzplan.connectors.kafka.source import KafkaSource
    from mzplan.spark.tasks.backfills import begin_backfill

    begun = begin_backfill(KafkaSource(), query, checkpoint, asked)
    send(lab.kafka.bootstrap, name, 4)
    read(lab, source, [1, 2, 3, 4])  # as when it was given up
    assert checkpoint.tasks.all() == [begun] and lab.last_step(source) > begun.step
    # A step of the query's own that a crash has interrupted is finished before.
    lab.undo_commit(source)
    lab.start(described)
    assert lab.ids(described) == [1, 1, 2, 2, 3, 4]
    lab.finish(described)
