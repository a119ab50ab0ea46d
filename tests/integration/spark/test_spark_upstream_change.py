"""Another upstream under a running source, on two real brokers: refused, or what the source says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from examples.servers import KafkaBroker, create_topic
from mzplan.model.diagnostics import ExitCode, MzplanError
from mzplan.warehouse.checkpoints import Checkpoint
from tests.integration.spark_lab import until

if TYPE_CHECKING:
    from mzplan.schema.description import Description
    from tests.integration.spark_lab import Lab

pytestmark = pytest.mark.faults

Make = Callable[..., str]
HOUR = 3_600_000
BEGAN = 1_700_000_000_000  # milliseconds since the epoch


def send(bootstrap: str, topic: str, *ids: int, partition: int = 0) -> None:
    """Records of these ids, each of the hour that its id says."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for id_ in ids:
        value = json.dumps({"id": id_}).encode()
        producer.produce(topic, value, partition=partition, timestamp=BEGAN + id_ * HOUR)
    assert producer.flush(20) == 0


def ids(lab: Lab, source: Description) -> list[int]:
    return sorted(row["id"] for row in lab.read(source))


def moved(lab: Lab, source: Description, bootstrap: str, policy: str | None) -> Description:
    """The source as it is after a change of its connection, and of nothing else."""
    found = lab.retried(source)
    found.connections["connection"].body["brokers"] = [bootstrap]  # type: ignore[index]
    body: Any = found.body
    body.pop("on_upstream_change", None)
    if policy is not None:
        body["on_upstream_change"] = policy
    return found


def commits(lab: Lab, source: Description) -> list[int]:
    folder = lab.checkpoint(source) / "spark" / "commits"
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


def test_where_a_source_goes_on(lab: Lab, topic: Make, own_kafka: KafkaBroker) -> None:
    """Rows 1, 2, 3 were read; the other cluster holds these, and later ones: Spark passes that in silence."""
    wanted: dict[str | None, list[int]] = {
        None: [],
        "accept": [1, 2, 3, 4, 5],
        "reset-earliest": [1, 1, 2, 2, 3, 3, 4, 5],
        "reset-latest": [1, 2, 3],
        "translate-timestamp": [1, 2, 3, 3, 4, 5],
    }
    sources: dict[str | None, Description] = {}
    for policy in wanted:
        name = topic(partitions=1)
        sources[policy] = lab.kafka_source(name, schema="id BIGINT")
        create_topic(own_kafka.bootstrap, name, 1)
        send(lab.kafka.bootstrap, name, 1, 2, 3)
        send(own_kafka.bootstrap, name, 1, 2, 3, 4, 5)
    lab.start(*sources.values())
    for source in sources.values():
        until("the rows are there", lambda s=source: ids(lab, s) == [1, 2, 3])  # type: ignore[misc]
    lab.finish(*sources.values())

    for policy, source in sources.items():
        last = commits(lab, source)[-1]
        after = moved(lab, source, own_kafka.bootstrap, policy)
        (found,) = lab.check(after).diagnostics
        assert found.code == "MZ043"
        if policy is None:
            assert found.severity == "error" and "on_upstream_change" in found.hint
            with pytest.raises(MzplanError):
                lab.start(after)
            assert ids(lab, source) == [1, 2, 3] and commits(lab, source)[-1] == last
            continue
        assert found.severity == "notice" and policy in found.summary
        assert commits(lab, source)[-1] == last, "a check changes nothing"
        lab.start(after)
        expected = wanted[policy]
        until(f"{policy}: {expected}", lambda a=after, e=expected: ids(lab, a) == e)  # type: ignore[misc]
        send(own_kafka.bootstrap, str(after.body["topic"]), 90)
        until(f"{policy}: what comes next", lambda a=after, e=expected: ids(lab, a) == [*e, 90])  # type: ignore[misc]
        lab.finish(after)
        # Steps go on counting, without a gap, and the Delta sink takes each of them once.
        numbers = commits(lab, source)
        assert numbers == list(range(numbers[0], numbers[-1] + 1)) and numbers[-1] > last
        assert lab.check(after).diagnostics == ()
        lab.start(after)
        until("it goes on", lambda a=after: lab.report(a).triggered)  # type: ignore[misc]
        assert ids(lab, after) == [*expected, 90]
        lab.stop(after)


def test_a_move_that_is_killed_is_done_again_and_one_that_is_taken_back_goes_back(
    lab: Lab, topic: Make, own_kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(partitions=1)
    create_topic(own_kafka.bootstrap, name, 1)
    source = lab.kafka_source(name, schema="id BIGINT")
    send(lab.kafka.bootstrap, name, 1, 2, 3)
    lab.start(source)
    until("the rows are there", lambda: ids(lab, source) == [1, 2, 3])
    lab.finish(source)

    elsewhere = moved(lab, source, own_kafka.bootstrap, "reset-earliest")
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "record_upstream", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        with pytest.raises(MzplanError):
            lab.start(elsewhere)
    lab.start(elsewhere)
    until("it has looked there", lambda: lab.report(elsewhere).triggered)
    lab.stop(elsewhere)
    assert ids(lab, elsewhere) == [1, 2, 3]

    # Back to where it came from, before anything was read there: to the very place where it stopped.
    send(lab.kafka.bootstrap, name, 4)
    back = moved(lab, source, lab.kafka.bootstrap, None)
    assert lab.check(back).diagnostics == ()
    lab.start(back)
    until("what was written meanwhile", lambda: ids(lab, back) == [1, 2, 3, 4])
    lab.stop(back)


def test_offsets_that_are_gone_are_passed_over_where_they_are_gone_and_nowhere_else(
    lab: Lab, topic: Make
) -> None:
    name = topic(partitions=2)
    source = lab.kafka_source(name, schema="id BIGINT")
    send(lab.kafka.bootstrap, name, 1)
    send(lab.kafka.bootstrap, name, 2, partition=1)
    lab.start(source)
    until("the rows are there", lambda: ids(lab, source) == [1, 2])
    lab.finish(source)
    send(lab.kafka.bootstrap, name, 10, 11, 12)
    send(lab.kafka.bootstrap, name, 20, partition=1)
    gone = TopicPartition(name, 0, 3)
    client = AdminClient({"bootstrap.servers": lab.kafka.bootstrap})  # kept until its future is done
    client.delete_records([gone])[gone].result(20)

    for policy in (None, "accept"):
        (found,) = lab.check(moved(lab, source, lab.kafka.bootstrap, policy)).diagnostics
        assert (found.code, found.severity) == ("MZ067", "error")
    after = moved(lab, source, lab.kafka.bootstrap, "reset-earliest")
    (found,) = lab.check(after).diagnostics
    assert (found.code, found.severity) == ("MZ067", "notice")
    lab.start(after)
    until("what is left of one, all of the other", lambda: ids(lab, after) == [1, 2, 12, 20])
    lab.finish(after)
    assert lab.check(after).diagnostics == ()


def test_a_topic_with_fewer_partitions(lab: Lab, topic: Make, own_kafka: KafkaBroker) -> None:
    name = topic(partitions=2)
    create_topic(own_kafka.bootstrap, name, 1)
    source = lab.kafka_source(name, schema="id BIGINT")
    send(lab.kafka.bootstrap, name, 1)
    send(lab.kafka.bootstrap, name, 2, partition=1)
    send(own_kafka.bootstrap, name, 1, 3)
    lab.start(source)
    until("the rows are there", lambda: ids(lab, source) == [1, 2])
    lab.finish(source)
    (found,) = lab.check(moved(lab, source, own_kafka.bootstrap, None)).diagnostics
    assert (found.code, found.exit_code) == ("MZ043", ExitCode.REFUSED)
    # Its offsets can't mean the same there, whatever it says; beginning anew there is another matter.
    (found,) = lab.check(moved(lab, source, own_kafka.bootstrap, "accept")).diagnostics
    assert (found.code, found.severity) == ("MZ067", "error")
    assert "partition 1 is not there, only 1 are" in found.detail
    after = moved(lab, source, own_kafka.bootstrap, "reset-earliest")
    lab.start(after)
    until("all of the one partition", lambda: ids(lab, after) == [1, 1, 2, 3])
    lab.stop(after)
