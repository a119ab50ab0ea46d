"""Malformed records kept aside, in a table and in a topic, and how many there are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import Message

from mzplan.model.address import Address
from mzplan.model.tasks import TaskOutcome
from mzplan.schema.description import Description
from mzplan.spark import streams
from mzplan.spark.tasks import dead_letters
from tests.integration.committed import committed
from tests.integration.spark_lab import Lab
from tests.support import Make, eventually
from tests.tasks import letters_replay

GOOD = (b'{"id": 1, "name": "ann", "unknown": true}', b'{"id": 2, "name": "bob"}')
BAD = {
    b'{"id": "x"}': "id is not a BIGINT",
    b"\xff\x00": "the record is not UTF-8",
    b'{"name": "no id"}': "id is missing (NOT NULL)",
}


def test_malformed_records_are_kept_aside_once(
    lab: Lab, topic: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, dead = topic(partitions=1), topic("dead", 1)
    schema = "id BIGINT NOT NULL, name STRING"
    aside = {"on_error": "dead-letter", "max_offsets_per_trigger": 5}
    table = lab.kafka_source(name, schema, **aside, dead_letter={"path": "dead/letters"})
    keyed = lab.kafka_source(
        name, schema, **aside, dead_letter={"topic": dead}, envelope={"type": "upsert", "key": ["id"]}
    )
    itself = lab.kafka_source(name, schema, **aside, dead_letter={"topic": name})
    nowhere = lab.kafka_source(name, schema, **aside, dead_letter={"topic": f"{name}-none"})
    nofolder = lab.kafka_source(name, schema, **aside, dead_letter={"path": "file/dead"})
    (lab.folder / "file").touch()
    codes = [lab.codes(one) for one in (table, keyed, itself, nowhere, nofolder)]
    assert codes == [[], [], ["MZ020"], ["MZ052"], ["MZ057"]]
    lab.send(name, GOOD[0], *BAD, GOOD[1], key=b"k")
    lab.start(table, keyed)
    for source in (table, keyed):
        eventually("the good ones", lambda source=source: lab.ids(source) == [1, 2])  # type: ignore[misc]
        eventually("counted", lambda source=source: lab.report(source).left_out == 3)  # type: ignore[misc]
        eventually("timed", lambda source=source: lab.report(source).latency_seconds is not None)  # type: ignore[misc]
    read = {row["_position"]["offset"]: row["name"] for row in lab.read(table)}
    assert read == {0: "ann", 4: "bob"}
    letters = found(lab, table)
    kept = [(offset, *bad) for offset, bad in enumerate(BAD.items(), 1)]
    assert [(r.offset, bytes(r.value), r.reason) for r in letters] == kept
    places = {(r.query, r.source, r.topic, r.partition, r.step, bytes(r.key)) for r in letters}
    assert places == {(table.id, str(table.address), name, 0, letters[0].step, b"k")}
    assert None not in {value for r in letters for value in (r.timestamp, r.kept_at)}

    lab.stop(keyed)

    def letter(message: Message) -> tuple[int, bytes | None, str]:
        told: dict[str, Any] = dict(message.headers() or ())
        return int(told["mzplan.offset"]), message.value(), told["mzplan.reason"].decode()

    assert [sent for *_, sent in committed(lab.kafka.bootstrap, dead, letter)] == kept
    repeated_steps_keep_letters_once(lab, table, monkeypatch)


def repeated_steps_keep_letters_once(lab: Lab, table: Description, monkeypatch: pytest.MonkeyPatch) -> None:
    name, schema = table.body["topic"], table.body["format"]["schema"]
    # A step that is run again, because the driver was killed before Spark noted it down: nothing twice. The
    # next one stops between the two tables.
    lab.finish(table)
    lab.undo_commit(table)
    lab.send(name, b'{"id": "x"}', b'{"id": 3}', b'{"id": 4, "n": 5}', b'{"id": 5, "n": "five"}', key=b"k")
    append = streams.append

    def append_repeated(batch: Any, step: int, collection: str) -> None:
        if step:
            raise RuntimeError("as if killed")
        append(batch, step, collection)

    with monkeypatch.context() as patch:
        patch.setattr(streams, "append", append_repeated)
        lab.start(table)
        assert "as if killed" in str(lab.ended(table).error)
    assert lab.count(table) == 2
    assert [r.offset for r in found(lab, table)] == [1, 2, 3, 5]
    lab.stop(table)

    # It runs again with a column more: what is bad only now is kept.
    format_ = {**table.body["format"], "schema": f"{schema}, n INT"}
    wider = lab.retried(replace(table, body={**table.body, "format": format_}))
    lab.start(wider)
    eventually("it has the column", lambda: [r.get("n") for r in lab.read(wider)].count(5) == 1)
    lab.finish(wider)
    assert sorted(r["id"] for r in lab.read(wider)) == [1, 2, 3, 4]
    added = [(r.offset, r.reason) for r in found(lab, table)][3:]
    assert added == [(5, "id is not a BIGINT"), (8, "n is not a INT")]
    # Its steps are known, though it is not Spark's own sink that writes them.
    assert [record.rows for record in lab.history(wider).tail(None, None)] == [2, 2]


@pytest.mark.parametrize("keyed", [False, True])
def test_records_whose_rows_violate_an_expectation_are_kept_aside(lab: Lab, topic: Make, keyed: bool) -> None:
    name = topic(partitions=1)
    source = lab.kafka_source(
        name,
        "id BIGINT NOT NULL, n INT",
        on_error="dead-letter",
        dead_letter={"path": f"dead/violating-{keyed}"},
        expect={
            "positive": {"check": "n > 0", "on_violation": "dead-letter"},
            "small": {"check": "n < 9"},
        },
        **({"envelope": {"type": "upsert", "key": ["id"]}} if keyed else {}),
    )
    lab.send(name, b'{"id": 1, "n": 1}', b'{"id": 2, "n": 2}', b'{"id": "x"}', key=b"k")
    lab.start(source)
    eventually("the good ones", lambda: lab.ids(source) == [1, 2])
    lab.send(name, b'{"id": 2, "n": -2}', b'{"id": 3, "n": 10}', key=b"k")
    eventually("the next ones", lambda: 3 in lab.ids(source))
    counted = {"positive": 1, "small": 1}
    eventually("they are counted", lambda: violated(lab, source) == counted)
    assert lab.report(source).left_out == 1  # malformed records only
    lab.finish(source)
    assert lab.ids(source) == ([1, 3] if keyed else [1, 2, 3])  # a key has no row then
    letters = [(r.offset, bytes(r.value), r.reason) for r in found(lab, source)]
    assert letters == [
        (2, b'{"id": "x"}', "id is not a BIGINT"),
        (3, b'{"id": 2, "n": -2}', "it violates the expectation positive: n > 0"),
    ]


def violated(lab: Lab, source: Description) -> dict[str, int]:
    return {name: violation.rows for name, violation in lab.report(source).violations.items()}


KEPT = {"on_error": "dead-letter", "dead_letter": {"path": "dead/again"}}
FITS = {"type": "json", "schema": "id BIGINT NOT NULL"}
STAYS = (("id is not a BIGINT", 1),)


def kept_aside(lab: Lab, topic: str) -> Description:
    """A source that has read one row, and kept four records aside: three fit, when a column is dropped."""
    source = lab.kafka_source(topic, "id BIGINT NOT NULL, n INT", **KEPT)
    values = (b'{"id": 1, "n": 1}', b'{"id": 2, "n": 2.5}', b'{"id": 3, "n": 3.5}', b'{"id": "x"}')
    lab.send(topic, *values, b'{"id": 5, "n": 5.5}')
    lab.start(source)
    eventually("the letters are kept", lambda: lab.count(source) == 1 and lab.checkpoint_done(source))
    lab.finish(source)
    assert [r.offset for r in found(lab, source)] == [1, 2, 3, 4]
    return source


def outcome(serial: int, rows: int, before: int, stay: Any = ()) -> TaskOutcome:
    return dead_letters.outcome_of(letters_replay(serial), rows, before, stay)


def replayed(lab: Lab, source: Description, serial: int, where: str = "", **body: Any) -> Description:
    """The source without that column, which is to read letters once more."""
    return replace(
        lab.retried(source),
        body={**source.body, "format": FITS, **body},
        tasks=(letters_replay(serial, where),),
    )


@pytest.mark.nightly
def test_dead_letters_are_replayed(lab: Lab, topic: Make) -> None:
    source = kept_aside(lab, topic(partitions=1))
    odd = ("reflect('java.lang.Thread', 'yield') IS NULL", "value > map(1, 2)", "offset IN (SELECT 1)")
    for asked in (replayed(lab, source, 7, where) for where in odd):
        assert lab.codes(asked) == ["MZ019"], asked.tasks
        assert lab.refused(asked).code == "MZ019"
    assert lab.codes(replayed(lab, source, 7, dead_letter={"topic": topic("dead", 1)})) == ["MZ273"]
    assert lab.last_step(source) == 0 and len(found(lab, source)) == 4, "nothing has happened"

    first = replayed(lab, source, 7, "offset < 2 AND reason LIKE 'n is%'")
    assert lab.codes(first) == []
    lab.start(first)
    assert lab.ids(source) == [1, 2]
    assert [r.offset for r in found(lab, source)] == [2, 3, 4]
    assert lab.report(first).tasks_done[-1] == outcome(7, 1, 0)
    lab.send(source.body["topic"], b'{"id": 6}')
    eventually("it goes on", lambda: lab.ids(source) == [1, 2, 6])
    lab.finish(first)


@pytest.mark.nightly
def test_a_repeated_replay_of_dead_letters_adds_each_row_once(
    lab: Lab, topic: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their replay was killed before they were taken out of their table, or somebody has put them back."""
    source = kept_aside(lab, topic(partitions=1))
    letters = found(lab, source)
    first = replayed(lab, source, 7)
    with monkeypatch.context() as patch:
        patch.setattr(dead_letters, "remove_letters", Mock(side_effect=RuntimeError("as if killed")))
        assert lab.refused(first).code == "MZ279"
    assert lab.ids(source) == [1, 2, 3, 5] and found(lab, source) == letters
    # Before it goes on, the source is changed.
    other = replace(first, digest="1:c", body={**first.body, "dead_letter": {"path": "dead/other"}})
    lab.start(other)
    assert lab.report(other).tasks_done[-1] == outcome(7, 3, 0, STAYS)
    assert [r.offset for r in found(lab, source)] == [3]
    lab.finish(other)

    # Put back, kept by two steps, and kept by a source of the same name in another environment.
    elsewhere = "0123456789abcdef"
    again = [letters[0], letters[0].asDict() | {"step": 99}, letters[0].asDict() | {"query": elsewhere}]
    table = lab.spark.read.format("delta").load(str(lab.folder / "dead/again"))
    added = lab.spark.createDataFrame(again, table.schema)
    added.write.format("delta").mode("append").save(str(lab.folder / "dead/again"))
    # It has another name now.
    second = replace(replayed(lab, source, 8), address=Address("source", "renamed"))
    lab.start(second)
    assert lab.report(second).tasks_done[-1] == outcome(8, 0, 1, STAYS)
    assert [r.offset for r in found(lab, source)] == [3]
    assert [r.offset for r in found(lab, replace(source, id=elsewhere))] == [1]
    lab.send(source.body["topic"], b'{"id": 6}')
    eventually("it goes on", lambda: lab.ids(source) == [1, 2, 3, 5, 6])
    lab.finish(second)
    recorded = lab.history(source).tail(None, None)
    assert [record.step for record in recorded] == list(range(len(recorded)))
    assert [(r.task.serial, r.rows) for r in recorded if r.task] == [(7, 3), (8, 0)]


def found(lab: Lab, source: Description) -> list[Any]:
    """The letters of a source."""
    table = lab.spark.read.format("delta").load(str(lab.folder / source.body["dead_letter"]["path"]))
    return table.where(f"query = '{source.id}'").orderBy("offset").collect()
