"""Another upstream under a running source, on two real brokers: refused, or what the source says."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from examples.servers import KafkaBroker, create_topic, delete_topic
from mzplan.connectors.local.steps import LocalSteps
from mzplan.model.diagnostics import ExitCode
from mzplan.schema.description import Description
from mzplan.warehouse.checkpoints import Checkpoint
from tests.integration.spark.test_spark_backfill import holds, read, send
from tests.integration.spark.test_spark_sources import TABLE, postgres_source
from tests.integration.spark_lab import Lab
from tests.support import Make, eventually

pytestmark = pytest.mark.nightly


def moved(lab: Lab, source: Description, bootstrap: str, policy: str | None) -> Description:
    """The source as it is after a change of its connection, and of nothing else."""
    return lab.changed(source, {"brokers": [bootstrap]}, on_upstream_change=policy)


def commits(lab: Lab, source: Description) -> list[int]:
    folder = lab.checkpoint(source) / "spark" / "commits"
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdecimal())


def test_on_upstream_change_says_where_a_source_continues(
    lab: Lab, topic: Make, own_kafka: KafkaBroker
) -> None:
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
        holds(lab, source, [1, 2, 3])
    lab.finish(*sources.values())

    for policy, source in sources.items():
        last = commits(lab, source)[-1]
        after = moved(lab, source, own_kafka.bootstrap, policy)
        found = lab.finds(after, "MZ043")
        assert commits(lab, source)[-1] == last, "a check changes nothing"
        if policy is None:
            assert found.severity == "error" and "on_upstream_change" in found.hint
            lab.refused(after)
            assert lab.ids(source) == [1, 2, 3] and commits(lab, source)[-1] == last
            continue
        assert found.severity == "notice" and policy in found.summary
        lab.start(after)
        holds(lab, after, wanted[policy])
        send(own_kafka.bootstrap, str(after.body["topic"]), 90)
        holds(lab, after, [*wanted[policy], 90])
        lab.finish(after)
        # Steps go on counting, without a gap, and the Delta sink takes each of them once.
        numbers = commits(lab, source)
        assert numbers == list(range(numbers[0], numbers[-1] + 1)) and numbers[-1] > last
        # Spark has not copied the mark of the move to the step with rows.
        assert Checkpoint(str(lab.checkpoint(after))).log.last_written() == numbers[-1]
        assert lab.check(after).diagnostics == ()
        lab.start(after)
        eventually("it goes on", lambda a=after: lab.report(a).triggered)  # type: ignore[misc]
        assert lab.ids(after) == [*wanted[policy], 90]
        lab.stop(after)


def test_a_topic_that_is_recreated_while_its_source_runs(lab: Lab, topic: Make) -> None:
    """The new topic soon has more records than the old one had: Spark's offsets look valid."""
    name, interval = topic(partitions=1), 8
    source = lab.kafka_source(name, schema="id BIGINT", trigger={"interval": f"{interval}s"})
    send(lab.kafka.bootstrap, name, 1, 2, 3)
    lab.start(source)
    eventually("the rows are there", lambda: lab.ids(source) == [1, 2, 3] and lab.checkpoint_done(source))
    eventually("a trigger has just begun", lambda: time.time() % interval < 1)
    delete_topic(lab.kafka.bootstrap, name)
    create_topic(lab.kafka.bootstrap, name, 1)
    send(lab.kafka.bootstrap, name, 11, 12, 13, 14, 15)
    lab.fails(source, "MZ043", "deleted and created again")
    assert lab.ids(source) == [1, 2, 3]
    lab.stop(source)
    assert lab.refused(source).code == "MZ043"
    anew = lab.changed(source, on_upstream_change="reset-earliest")
    read(lab, anew, [1, 2, 3, 11, 12, 13, 14, 15])


def test_a_killed_move_is_repeated_and_a_move_can_be_undone(
    lab: Lab, topic: Make, own_kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = topic(partitions=1)
    create_topic(own_kafka.bootstrap, name, 1)
    source = lab.kafka_source(name, schema="id BIGINT")
    send(lab.kafka.bootstrap, name, 1, 2, 3)
    read(lab, source, [1, 2, 3])

    elsewhere = moved(lab, source, own_kafka.bootstrap, "reset-earliest")
    with monkeypatch.context() as patched:
        patched.setattr(Checkpoint, "record_upstream", lambda *_: (_ for _ in ()).throw(OSError("killed")))
        lab.refused(elsewhere)
    lab.start(elsewhere)
    eventually("it has looked there", lambda: lab.report(elsewhere).triggered)
    lab.stop(elsewhere)
    assert lab.executor.missing_storage(elsewhere) == (), "a step that only moves the checkpoint is no loss"
    assert lab.ids(elsewhere) == [1, 2, 3]

    # Back to where it came from, before anything was read there: to the very place where it stopped.
    send(lab.kafka.bootstrap, name, 4)
    back = moved(lab, source, lab.kafka.bootstrap, None)
    assert lab.check(back).diagnostics == ()
    read(lab, back, [1, 2, 3, 4])


def test_reset_earliest_skips_only_missing_offsets(lab: Lab, topic: Make) -> None:
    name = topic(partitions=2)
    source = lab.kafka_source(name, schema="id BIGINT")
    send(lab.kafka.bootstrap, name, 1)
    send(lab.kafka.bootstrap, name, 2, partition=1)
    read(lab, source, [1, 2])
    send(lab.kafka.bootstrap, name, 10, 11, 12)
    send(lab.kafka.bootstrap, name, 20, partition=1)
    lab.delete_records(name, 3)

    for policy in (None, "accept"):
        assert lab.finds(moved(lab, source, lab.kafka.bootstrap, policy), "MZ067").severity == "error"
    after = moved(lab, source, lab.kafka.bootstrap, "reset-earliest")
    assert lab.finds(after, "MZ067").severity == "notice"
    read(lab, after, [1, 2, 12, 20])
    assert lab.check(after).diagnostics == ()


def test_a_topic_with_fewer_partitions(lab: Lab, topic: Make, own_kafka: KafkaBroker) -> None:
    name = topic(partitions=2)
    create_topic(own_kafka.bootstrap, name, 1)
    source = lab.kafka_source(name, schema="id BIGINT")
    send(lab.kafka.bootstrap, name, 1)
    send(lab.kafka.bootstrap, name, 2, partition=1)
    send(own_kafka.bootstrap, name, 1, 3)
    read(lab, source, [1, 2])
    refused = lab.finds(moved(lab, source, own_kafka.bootstrap, None), "MZ043")
    assert refused.exit_code == ExitCode.REFUSED
    # Its offsets can't mean the same there, whatever it says; beginning anew there is another matter.
    accepting = moved(lab, source, own_kafka.bootstrap, "accept")
    found = lab.finds(accepting, "MZ067", "partition 1 doesn't exist, there are only 1")
    assert found.severity == "error"
    after = moved(lab, source, own_kafka.bootstrap, "reset-earliest")
    read(lab, after, [1, 1, 2, 3])


def losses(lab: Lab, former: Description, **body: Any) -> list[str]:
    """Of its next generation."""
    anew = replace(lab.changed(former, **body), generation=former.generation + 1)
    found = [one for one in lab.check(anew).diagnostics if one.code == "MZ292"]
    assert all(one.severity == "error" for one in found)
    allowed = lab.check(replace(anew, may_lose=True)).diagnostics
    assert [(one.code, one.severity) for one in allowed] == [("MZ292", "warning")] * len(found)
    return [f"{one.summary}: {one.detail.splitlines()[0]}" for one in found]


def test_a_replace_reports_the_records_that_it_cannot_reread(lab: Lab, topic: Make) -> None:
    name, other = topic(partitions=1), topic("other", partitions=1)
    source, empty = lab.kafka_source(name, schema="id BIGINT"), lab.kafka_source(other, schema="id BIGINT")
    lab.produce(name, *({"id": id_} for id_ in range(5)))
    assert losses(lab, source) == []  # nothing has read yet
    lab.start(source, empty)
    eventually("five rows", lambda: lab.count(source) == 5)
    eventually("it has looked", lambda: lab.report(empty).triggered)
    lab.finish(source)
    lab.stop(empty)
    assert losses(lab, empty) == losses(lab, empty, topic=name) == []
    assert losses(lab, source) == []
    (later,) = losses(lab, source, start_offsets="latest")
    assert later.startswith(f"5 of 5 records of {source.address}")
    assert later.endswith("(start_offsets: latest): partition 0: 0–4.")
    (elsewhere,) = losses(lab, source, topic=other)
    assert elsewhere.endswith(f"it would read topic {other} instead of {name}.")
    # The runner watches it.
    assert lab.executor.measure(source, lab.secrets).loss is None


def test_appended_rows_go_with_their_generation(lab: Lab) -> None:
    import pyarrow as pa

    source = lab.source("local", None, schema="id BIGINT")
    lab.start(source)
    eventually("it has looked", lambda: lab.report(source).triggered)
    assert losses(lab, source) == []  # its only step is empty
    LocalSteps(str(lab.checkpoint(source) / "steps")).append(pa.table({"id": [1, 2, 3]}), "one")
    eventually("three rows", lambda: lab.count(source) == 3)
    lab.finish(source)
    (found,) = losses(lab, source)
    assert found.startswith(f"3 of 3 appended rows of {source.address} can't be read again")


def test_a_snapshot_has_no_history(lab: Lab, database: Make) -> None:
    shop = database("history")
    lab.execute(shop, *TABLE, "INSERT INTO orders (id, amount) VALUES (1, 1), (2, 2)")
    source = postgres_source(lab, shop)
    lab.start(source)
    eventually("the snapshot is there", lambda: len(lab.read(source)) == 2, 180)
    assert losses(lab, source) == []
    lab.execute(shop, "UPDATE orders SET amount = 3 WHERE id = 1", "DELETE FROM orders WHERE id = 2")
    eventually("the changes are there", lambda: len(lab.read(source)) == 1, 180)
    lab.finish(source)
    (found,) = losses(lab, source)
    assert found.startswith(f"Changes of {source.address} can't be read again")
    assert "a snapshot of today" in found
