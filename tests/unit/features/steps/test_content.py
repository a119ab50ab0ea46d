"""verify --content without Spark: the command, its output, and how PostgreSQL's values are compared. Whether
a task has all rows of a step. The content hash, which test_spark_content_hash.py compares with Spark's."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from mzplan.connectors.api.targets import ComparisonResult
from mzplan.connectors.delta.table import last_step
from mzplan.connectors.frames.task_code import CutShortError, until_end
from mzplan.connectors.postgres.sink.comparison import Form, canonical_json, form_of, sql_text
from mzplan.connectors.postgres.types import TargetColumn
from mzplan.features.steps.content import compared_to_json, render_compared
from mzplan.model.address import Address
from mzplan.spark.verification.former_reads import OLDEST, steps_of_files
from mzplan.spark.verification.sink_content import require_steps
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.rows.content_hash import HASH, ContentHash, content_hash
from mzplan.warehouse.step_record import StepRecord
from tests.stored_steps import StoredSink, StoredSource, named
from tests.support import refusal
from tests.unit.cli_runs import apply, mzplan, write

EQUAL = ComparisonResult(
    address=Address("sink", "out"),
    target="connection.pg (db:5432, database shop), table orders",
    first=0,
    last=41,
    expected_rows=1000,
    target_rows=1000,
    examples={"missing": (), "doubled": (), "more": ()},
)


EXTRA = "3 rows are extra in the target: changed by hand, or written by others (k1)."


def column(type_: str, **other: Any) -> TargetColumn:
    known: dict[str, Any] = {"type_schema": "pg_catalog", "category": "X", "typmod": -1, "shown": type_}
    return TargetColumn(name="c", type=type_, required=False, writable=True, **{**known, **other})


def test_equal_content_is_shown_with_what_was_not_compared() -> None:
    text = render_compared(EQUAL, shared=False)
    assert "sink.out, steps 0..41: 1,000 rows of the collection, 1,000 in the target" in text
    assert "The target holds the expected rows." in text
    for changed, said in (
        ({"first": 7}, "it may have lost rows of steps before 7"),
        ({"not_compared": ("columns of these types: place (inet)",)}, "Not compared: columns"),
        ({"last": -1}, "has written nothing yet"),
        ({"first": None}, "no longer keeps all rows of any step up to 41"),
    ):
        assert said in render_compared(replace(EQUAL, **changed), shared=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "shared", "equal", "line"),
    [
        ({"missing": 2}, True, False, "2 rows are missing in the target (k1)."),
        ({"doubled": 1}, False, False, "1 row is more than once in the target (k1)."),
        ({"doubled": 1, "repeats": True}, False, True, "1 row is more than once in the target (k1)."),
        ({"more": 3}, False, False, EXTRA),
        ({"more": 3}, True, True, EXTRA),
    ],
)
def test_differences_are_counted(found: dict[str, Any], shared: bool, equal: bool, line: str) -> None:
    (kind,) = found.keys() - {"repeats"}
    compared = replace(EQUAL, **found, examples={kind: ("k1",)})
    assert compared.is_equal(shared=shared) == equal
    assert line in render_compared(compared, shared=shared).splitlines()
    document = compared_to_json(compared, shared=shared)
    assert (document["equal"], document[kind], document["examples"]) == (equal, found[kind], {kind: ["k1"]})


def test_a_sink_that_cannot_be_compared_is_an_error(tmp_path: Path) -> None:
    apply(write(tmp_path))
    for words, code, reported in (
        ("sink.out --content", 1, "MZ177"),  # a console has no content
        ("source.orders --content", 64, "MZ094"),
        ("sink.out --content --steps 1", 64, None),
        ("source.orders --shared", 64, None),
    ):
        ran = mzplan(tmp_path, "verify", *words.split(), "--json")
        assert ran.code == code and (reported is None or ran.error()["code"] == reported), words


def test_merged_files_keep_their_steps(tmp_path: Path) -> None:
    source = StoredSource(tmp_path)
    sink = StoredSink(source)
    for step in range(4):
        source.run(named(2 * step, 2 * step + 2))
        sink.run(step + 2)
    records = sink.history.read().records
    found = steps_of_files(sink.history.collection, records)
    assert sorted(found.spans.values()) == [(step, step) for step in range(4)] and found.known_from == 0
    source.merge()
    source.run(named(8, 10))
    sink.run(7)
    records = sink.history.read().records
    merged = "part-00000-merged-5.snappy.parquet"
    found = steps_of_files(StoredSink(source).history.collection, records)
    assert found.spans[merged] == (0, 3)
    # What the logs do not know any more is older than what they know.
    cut_off = [replace(records[0], end=None), *records[1:]]
    found = steps_of_files(StoredSink(source).history.collection, cut_off)
    assert (found.spans[merged], found.known_from) == ((OLDEST, 3), 1)
    assert steps_of_files(StoredSink(source).history.collection, records[2:]).known_from == 2


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ('{"b": 1.50, "a": [1, null]}', '{"a": [1, null], "b": 1.5}', True),
        ('{"a": 1}', '{"a": "1"}', False),
        ("[0.1]", "[0.10000000000000000001]", False),
        ("no json", "no json", True),
    ],
)
def test_json_is_compared_by_its_meaning(one: str, other: str, equal: bool) -> None:
    assert (canonical_json(one) == canonical_json(other)) == equal
    assert canonical_json(None) is None


TEXTS: list[tuple[str, str, Form, str]] = [
    ("at", "timestamp", "time", "(at AT TIME ZONE 'UTC')::text"),
    ("raw", "bytea", "bytes", "encode(raw, 'hex')"),
    ("words", "_text", "array", "array_to_json(words)::text"),
    ("n", "int4", "number", "n::text"),
]


def test_columns_are_compared_by_type() -> None:
    assert [form_of(column(type_)) for type_ in ("jsonb", "_text", "inet")] == ["json", "array", None]
    for name, type_, form, expected in TEXTS:
        assert sql_text(name, column(type_), form) == expected
    assert form_of(column("mood", type_schema="public", category="E")) == "text"
    assert form_of(column("text", type_schema="mine", category="U")) is None


def test_a_delta_table_keeps_the_last_step_longer_than_its_log(tmp_path: Path) -> None:
    ours = CommitProperties(app_transactions=[Transaction("ours", 7)])
    row = pa.table({"id": [1]})
    write_deltalake(tmp_path, row)
    write_deltalake(tmp_path, row, mode="append", commit_properties=ours)
    assert last_step(CollectionLog(str(tmp_path)), "ours") == (1, 7)
    write_deltalake(tmp_path, row, mode="append")
    table = DeltaTable(tmp_path)
    table.create_checkpoint()
    write_deltalake(tmp_path, row, mode="append")
    for version in (0, 1):  # as Delta removes them
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    assert last_step(CollectionLog(str(tmp_path)), "ours") == (3, 7)
    assert last_step(CollectionLog(str(tmp_path)), "another") == (3, -1)
    assert last_step(CollectionLog(str(tmp_path / "none")), "ours") == (-1, -1)


RECORDS = [StepRecord(step=step, rows=rows) for step, rows in enumerate((2, 3, 0, 0))]


@pytest.mark.parametrize(
    ("frontier", "done", "records", "why"),
    [
        (1, 3, RECORDS, None),  # steps without rows leave no trace in some targets
        (2, 1, RECORDS, None),  # written, and Spark has not seen it through
        (-1, -1, RECORDS[:1], None),
        (4, 3, RECORDS, "only has steps up to 3"),
        (0, 3, RECORDS, "only the steps up to 0, but not step 1, which the checkpoint has"),
        (-1, 3, RECORDS, "none of the sink's steps, but not step 1, which the checkpoint has"),
        (0, 0, RECORDS[1:], "no longer knows what step 0, the target's last one, has read"),
        (0, 1, [replace(RECORDS[1], rows=None)], "only the steps up to 0"),
    ],
)
def test_a_target_without_the_steps_of_the_checkpoint_is_refused(
    frontier: int, done: int, records: list[StepRecord], why: str | None
) -> None:
    query: Any = SimpleNamespace(address=Address("sink", "out"))
    require = partial(require_steps, query, records, frontier, done)
    if why is None:
        require()
    else:
        found = refusal(require)
        assert found.code == "MZ177" and why in found.detail


def batch(*hashes: int | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": pa.array(hashes), HASH: pa.array(hashes, pa.int64())})


def rows(*batches: pa.RecordBatch) -> list[list[int]]:
    return [one.column(HASH).to_pylist() for one in until_end(batches)]


def test_the_end_mark_is_no_row_and_must_come_last() -> None:
    assert rows(batch(1, 2), batch(3, None)) == [[1, 2], [3]]
    assert rows(batch(1, 2), batch(None), batch()) == [[1, 2]]
    assert rows(batch(None)) == []
    for given in ((), (batch(),), (batch(1, 2),), (batch(1, 2), batch(3))):
        with pytest.raises(CutShortError, match="not all rows"):
            rows(*given)
    with pytest.raises(CutShortError, match="after the end"):
        rows(batch(1, None), batch(2, None))


# --- the content hash


def test_the_sum_of_any_parts_is_the_hash_of_the_whole() -> None:
    count = 50
    numbers = range(count)
    rows = pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "text": [None if i % 5 == 0 else "t" * i for i in numbers],
            "list": pa.array([None if i % 7 == 0 else list(range(i % 4)) for i in numbers]),
            "map": pa.array([[(f"k{i}", i)] * (i % 3) for i in numbers], pa.map_(pa.string(), pa.int32())),
            "wide": pa.array([Decimal(i * 10**20) for i in numbers], pa.decimal128(30, 0)),
            "short": pa.array([Decimal(-i) for i in numbers], pa.decimal128(9, 2)),
            "flag": [i % 2 == 0 for i in numbers],
            "struct": pa.array([None if i % 6 == 0 else {"x": str(i), "y": [i] * (i % 3)} for i in numbers]),
        }
    )
    whole = content_hash([rows])
    assert whole.rows == count
    cut = [rows.slice(i, 7) for i in range(0, count, 7)]
    assert content_hash(cut) == whole
    assert content_hash(reversed(cut)) == whole
    assert content_hash([pa.concat_tables(cut)]) == whole
    batches = [batch.slice(3, 20) for batch in rows.to_batches()]
    assert content_hash(batches) == content_hash([rows.slice(3, 20)])


def test_hash_without_rows_its_sums_and_its_stored_text() -> None:
    assert content_hash([]) == ContentHash() == content_hash([pa.table({"a": pa.array([], pa.string())})])
    assert ContentHash.of_sums(0, None, None) == ContentHash()
    found = ContentHash(3, 255)
    assert str(found) == "1:00000000000000ff"
    assert ContentHash.parse(3, str(found)) == found
    assert ContentHash.parse(3, "00000000000000ff") == found  # from a version with only this kind of hash
    for unknown in (None, "", "2:00000000000000ff", "ff" * 32, "1:FF", "1:00000000000000ff\n"):
        assert ContentHash.parse(3, unknown) is None
    # Sums wrap around.
    assert ContentHash(1, 2**64 - 1) + ContentHash(1, 2) == ContentHash(2, 1)
    assert ContentHash.of_sums(2, 2**33, 5) == ContentHash(2, (2**65 + 5) % 2**64)
    with pytest.raises(TypeError, match="duration"):
        content_hash([pa.table({"a": pa.array([1], pa.duration("s"))})])
