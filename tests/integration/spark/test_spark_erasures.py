"""Erased rows leave the collection, its dead letters and what follows from it; no record has their values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import parquet

from mzplan.host.failpoints import Failpoint
from mzplan.model.tasks import CONDITION, ERASURE
from mzplan.schema.description import Description
from mzplan.spark.tasks import erasures, interface
from mzplan.warehouse.damage import VacuumedError
from mzplan.warehouse.erasures import EraseConditions
from mzplan.warehouse.rows.replay import collection_hash
from tests.integration.spark.test_spark_verify_sinks import verified
from tests.integration.spark_lab import Lab, read_delta
from tests.support import Make, eventually
from tests.tasks import task

NAME = "0123456789abcdef"
WHERE = "customer = 'ann'"


def request(lab: Lab, source: Description, where: str = WHERE) -> Description:
    """The source with a requested erasure."""
    EraseConditions(str(lab.checkpoint(source))).write(NAME, where)
    return replace(lab.retried(source), tasks=(task(ERASURE, 7, "erase of rows", **{CONDITION: NAME}),))


def order(id_: int, customer: str) -> dict[str, object]:
    return {"id": id_, "customer": customer, "amount": id_}


def remembered(folder: Path) -> list[str]:
    """The files below a folder, other than data, that have the erased value."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".parquet")
    return [str(path) for path in files if b"ann" in path.read_bytes()]


def test_readers_of_a_keyed_collection_follow_an_erasure(lab: Lab, topic: Make, database: Make) -> None:
    name, shop = topic(partitions=1), database()
    lab.execute(shop, "CREATE TABLE copies (id bigint PRIMARY KEY, customer text, amount numeric)")
    source = lab.kafka_source(name, envelope={"type": "upsert", "key": ["id"]})
    upsert = {"mode": "upsert", "key": ["id"]}
    sink = lab.postgres_sink(source, shop, "copies", **upsert)
    lake = lab.delta_sink(source, lab.folder, f"{name}-lake", **upsert)
    sql = f"SELECT customer, count(*) AS n FROM {source.address.name} GROUP BY customer"
    view = lab.view(sql, "customer STRING, n BIGINT", [source], output="current", key=["customer"])
    for id_, customer in ((1, "ann"), (2, "bob"), (3, "ann")):
        lab.send(name, *[_record(id_, customer)], key=str(id_).encode())
    lab.start(source, sink, lake, view)
    lab.has_rows(shop, "copies", 3)
    eventually("the view counts", lambda: _counts(lab, view) == {"ann": 2, "bob": 1})
    lab.finish(source)
    steps = lab.last_step(source) + 1

    described = request(lab, source)
    assert lab.check(described).diagnostics == ()
    lab.start(described)
    assert lab.ids(described) == [2]
    (done,) = lab.report(described).tasks_done
    assert done.text == f"2 rows erased from its collection (step {steps})"
    assert done.facts["rows"] == 2 and done.facts["step"] == steps
    lab.has_rows(shop, "copies", 1)
    eventually("the table follows", lambda: [r["id"] for r in read_delta(lab.folder / f"{name}-lake")] == [2])
    eventually("the view follows", lambda: _counts(lab, view) == {"bob": 1})

    # The key may come again, and the erasure isn't repeated.
    lab.send(name, _record(1, "ann"), key=b"1")
    lab.has_rows(shop, "copies", 2)
    lab.finish(described)
    later = replace(lab.retried(described), tasks=described.tasks)
    lab.start(later)
    assert lab.ids(later) == [1, 2]
    found = lab.recorded(later, steps + 2)
    assert [record.task for record in found if record.task] == [("erasure", 7)]
    assert found[steps].rows == 2 and found[steps].digest is not None
    lab.read_on(later, sink)
    lab.finish(later, sink, lake, view)
    assert not verified(lab, sink).is_wrong
    assert stored_ids(lab, source) == {1, 2, 3}
    lab.executor.reclaim_files(str(lab._collection(source)), 0.0)
    assert stored_ids(lab, source) == {1, 2}, "3 is in no file, and 1 came again"
    lab.send(name, _record(4, "bob"), key=b"4")
    lab.start(later, sink, view)
    lab.has_rows(shop, "copies", 3)
    eventually("the view goes on", lambda: _counts(lab, view) == {"ann": 1, "bob": 2})
    assert remembered(lab.folder / "warehouse" / "collections" / source.id) == []
    assert remembered(lab.checkpoint(source)) == []


def stored_ids(lab: Lab, source: Description) -> set[int]:
    """The ids in any file of a collection, also in files that no version has, and in its change feed."""
    files = lab._collection(source).rglob("*.parquet")
    data = [path for path in files if "_delta_log" not in path.parts]
    return {id_ for path in data for id_ in parquet.ParquetFile(path).read()["id"].to_pylist()}


def _record(id_: int, customer: str) -> bytes:
    return f'{{"id": {id_}, "customer": "{customer}", "amount": {id_}}}'.encode()


def _counts(lab: Lab, view: Description) -> dict[str, int]:
    return {row["customer"]: row["n"] for row in lab.read(view)}


def test_readers_of_a_growing_collection_skip_an_erasure(lab: Lab, topic: Make) -> None:
    name = topic(partitions=1)
    source = lab.kafka_source(name)
    copy = lab.delta_sink(source, lab.folder, f"{name}-copy")
    sql = f"SELECT customer, count(*) AS n FROM {source.address.name} GROUP BY customer"
    view = lab.view(sql, "customer STRING, n BIGINT", [source], output="current", key=["customer"])
    lab.produce(name, *(order(id_, customer) for id_, customer in ((1, "ann"), (2, "bob"), (3, "ann"))))
    lab.start(source, copy, view)
    eventually("the view counts", lambda: _counts(lab, view) == {"ann": 2, "bob": 1})
    lab.produce(name, order(4, "bob"))
    eventually("the sink has all", lambda: _ids(lab, name) == [1, 2, 3, 4])
    lab.finish(source)
    steps = lab.last_step(source) + 1

    described = request(lab, source)
    assert lab.check(described).diagnostics == ()
    lab.start(described)
    assert lab.ids(described) == [2, 4]
    assert lab.report(described).tasks_done[0].facts["rows"] == 2
    eventually("the view follows", lambda: _counts(lab, view) == {"bob": 2})
    lab.produce(name, order(5, "eva"))
    eventually("the sink goes on", lambda: _ids(lab, name) == [1, 2, 3, 4, 5])
    eventually("so does the view", lambda: _counts(lab, view) == {"bob": 2, "eva": 1})
    assert lab.waits(copy) == {"steps": 0, "rows": 0}
    lab.read_on(described, copy)
    found = lab.recorded(described, steps + 2)
    assert [(record.task, record.rows) for record in found[steps:]] == [(("erasure", 7), 2), (None, 1)]
    assert lab.report(copy).error is None
    lab.finish(described, copy, view)

    history = lab.history(described)
    assert history.newest_foreign() is None and history.foreign_commits(found[0]) == []
    for record in found:
        assert str(collection_hash(history.collection, record)) == record.digest
    result = verified(lab, copy)
    assert not result.is_wrong and len(result.equal_steps) >= 2
    assert stored_ids(lab, source) == {1, 2, 3, 4, 5}
    lab.executor.reclaim_files(str(lab._collection(source)), 0.0)
    assert stored_ids(lab, source) == {2, 4, 5}
    late = lab.delta_sink(described, lab.folder, f"{name}-late")
    lab.produce(name, order(6, "eva"))
    lab.start(described, copy, view, late)
    eventually("the sink goes on", lambda: _ids(lab, name) == [1, 2, 3, 4, 5, 6])
    eventually("so does the view", lambda: _counts(lab, view) == {"bob": 2, "eva": 2})
    rows = lab.folder / f"{name}-late"
    eventually("a new sink reads what is left", lambda: len(read_delta(rows)) == 4)
    lab.finish(described, copy, view, late)
    with pytest.raises(VacuumedError, match="an erasure"):
        collection_hash(history.collection, found[0])
    assert remembered(lab.folder / "warehouse" / "collections" / source.id) == []
    assert remembered(lab.checkpoint(source)) == []


def _ids(lab: Lab, name: str) -> list[int]:
    return sorted(row["id"] for row in read_delta(lab.folder / f"{name}-copy"))


def test_dead_letters_of_erased_rows_are_erased(lab: Lab, topic: Make) -> None:
    """Letters that the columns don't fit stay, and the outcome says so."""
    name = topic(partitions=1)
    source = lab.kafka_source(
        name,
        "id BIGINT, customer STRING, amount INT",
        on_error="dead-letter",
        dead_letter={"path": f"dead/{name}"},
        expect={"positive": {"check": "amount > 0", "on_violation": "dead-letter"}},
    )
    lab.send(
        name, b'{"id": 1, "customer": "ann", "amount": 1}', b'{"id": 2, "customer": "ann", "amount": -1}'
    )
    lab.send(name, b'{"id": 3, "customer": "bob", "amount": -1}', b'{"id": "x", "customer": "ann"}')
    lab.start(source)
    eventually("it has the row", lambda: lab.ids(source) == [1])
    lab.finish(source)
    described = request(lab, source)
    lab.start(described)
    (done,) = lab.report(described).tasks_done
    assert (done.facts["rows"], done.facts["dead_letters"], done.facts["unreadable_dead_letters"]) == (
        1,
        1,
        1,
    )
    letters = lab.spark.read.format("delta").load(str(lab.folder / "dead" / name)).collect()
    assert sorted(letter["offset"] for letter in letters) == [2, 3]
    assert lab.ids(described) == []


@pytest.mark.parametrize("written", [False, True])
def test_an_erasure_is_done_once_after_a_kill(
    lab: Lab, topic: Make, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    name = topic(partitions=1)
    source = lab.kafka_source(name)
    lab.produce(name, order(1, "ann"), order(2, "bob"))
    lab.start(source)
    eventually("it has the rows", lambda: lab.ids(source) == [1, 2])
    lab.finish(source)
    described = request(lab, source)
    at = Failpoint.ERASURE_WRITTEN if written else Failpoint.ERASURE_JOURNALED

    def killed(point: Failpoint) -> None:
        if point is at:
            raise RuntimeError("as if killed")

    with monkeypatch.context() as patch:
        patch.setattr(erasures, "failpoint", killed)
        assert lab.refused(described).code in ("MZ279", "MZ402")
    assert lab.ids(source) == ([2] if written else [1, 2])
    lab.start(described)
    assert lab.ids(described) == [2]
    assert lab.report(described).tasks_done[0].facts["rows"] == 1
    assert remembered(lab.checkpoint(source)) == []
    lab.finish(described)
    lab.start(lab.retried(described))
    lab.finish(described)
    assert [r.task for r in lab.recorded(source, 2)] == [None, ("erasure", 7)]


def test_an_erasure_without_rows_is_done_after_a_kill(
    lab: Lab, topic: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no commit, and its step was passed over."""
    name = topic(partitions=1)
    source = lab.kafka_source(name)
    lab.produce(name, order(1, "bob"))
    lab.start(source)
    eventually("it has the row", lambda: lab.ids(source) == [1])
    lab.finish(source)
    described = request(lab, source)

    def killed(point: Failpoint) -> None:
        if point is Failpoint.TASK_PASSED_OVER:
            raise RuntimeError("as if killed")

    with monkeypatch.context() as patch:
        patch.setattr(interface, "failpoint", killed)
        assert lab.refused(described).code == "MZ279"
    lab.start(described)
    assert lab.ids(described) == [1]
    assert lab.report(described).tasks_done[0].facts["rows"] == 0
    lab.finish(described)


def test_a_condition_that_spark_refuses_is_found_before_anything_stops(lab: Lab, topic: Make) -> None:
    name = topic(partitions=1)
    source = lab.kafka_source(name)
    lab.produce(name, order(1, "ann"))
    lab.start(source)
    eventually("it has the row", lambda: lab.ids(source) == [1])
    lab.finish(source)
    lab.finds(request(lab, source, "amount > map(1, 2)"), "MZ402")
    described = request(lab, source)
    EraseConditions(str(lab.checkpoint(source))).remove(NAME)
    lab.finds(described, "MZ402")


def test_an_error_of_spark_says_nothing_about_the_condition(lab: Lab, topic: Make) -> None:
    name = topic(partitions=1)
    source = lab.kafka_source(name)
    lab.produce(name, order(1, "ann"))
    lab.start(source)
    eventually("it has the row", lambda: lab.ids(source) == [1])
    lab.finish(source)
    refused = lab.refused(request(lab, source, "id = 'ann'"))
    assert refused.code == "MZ402" and "CAST_INVALID_INPUT" in refused.summary, refused
    assert "ann" not in f"{refused.summary}{refused.detail}{refused.hint}"
    assert lab.ids(source) == [1]


def test_negative_zero_is_another_value(lab: Lab, topic: Make) -> None:
    """To Spark, both zeros are equal, also in a condition; but their texts differ."""
    name = topic(partitions=1)
    source = lab.kafka_source(name, "id BIGINT, amount DOUBLE, place STRUCT<x: DOUBLE>")
    for id_, amount in ((1, "0.0"), (2, "-0.0"), (3, "1.0")):
        lab.send(name, f'{{"id": {id_}, "amount": {amount}, "place": {{"x": {amount}}}}}'.encode())
    lab.start(source)
    eventually("it has the rows", lambda: lab.ids(source) == [1, 2, 3])
    lab.finish(source)
    described = request(lab, source, "CAST(amount AS STRING) = '-0.0' AND place.x = 0")
    lab.start(described)
    assert lab.ids(described) == [1, 3]
    assert lab.report(described).tasks_done[0].facts["rows"] == 1
    lab.finish(described)


def test_files_that_a_killed_runner_left_are_removed(lab: Lab, topic: Make) -> None:
    """The log of the table doesn't know them."""
    name = topic(partitions=1)
    source = lab.kafka_source(name)
    lab.produce(name, order(1, "ann"))
    lab.start(source)
    eventually("it has the row", lambda: lab.ids(source) == [1])
    lab.finish(source)
    collection = lab._collection(source)
    left = collection / "part-00000-11111111-1111-1111-1111-111111111111-c000.snappy.parquet"
    left.write_bytes(b"ann")
    lab.executor.reclaim_files(str(collection), 0.0)
    assert left.exists()
    lab.executor.reclaim_files(str(collection), 0.0, uncommitted=True)
    assert not left.exists()
    assert lab.ids(source) == [1]
