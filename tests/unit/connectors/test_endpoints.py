"""The parts of endpoints: records of steps, types of columns, the log of steps, folders."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mzplan.connectors.adapter.config import StepRows
from mzplan.connectors.adapter.source import step_of
from mzplan.connectors.kafka.offsets import offsets_in
from mzplan.connectors.local.appender import StaleStepError
from mzplan.connectors.local.source import LocalFactory
from mzplan.connectors.local.steps import LocalSteps
from mzplan.connectors.postgres.source.watch import IdlePosition
from mzplan.endpoints import StepError
from mzplan.endpoints.arrow import FitError, arrow_schema, build_array, fit
from mzplan.endpoints.interface import Written
from mzplan.endpoints.replay import Compare, StepReplay
from mzplan.endpoints.steplog import StepLog
from mzplan.schema.columns import parse_columns
from mzplan.warehouse.rows.content_hash import HASH, row_hashes

EVERYTHING = (
    "b BOOLEAN, t TINYINT, s SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, n DECIMAL(10,2), "
    "x STRING, v VARCHAR(3), y BINARY, a DATE, z TIMESTAMP, w TIMESTAMP_NTZ, r ARRAY<INT>, "
    "m MAP<STRING,ARRAY<INT>>, q STRUCT<a: INT,b: STRUCT<c: STRING>>"
)


def row(number: int) -> dict[str, Any]:
    integers, day = dict.fromkeys("tsil", number), datetime(2024, 1, 1 + number)
    others = {"b": number % 2 == 0, "f": number / 2, "d": number / 4, "n": Decimal(number)}
    texts = {"x": "é" * number, "v": "abc"[:number], "y": b"\0" * number}
    times = {"a": day.date(), "z": day.replace(tzinfo=UTC), "w": day}
    lists = {"r": list(range(number)), "m": [("k", [number]), ("", [])] if number else []}
    return {**integers, **others, **texts, **times, **lists, "q": {"a": number, "b": {"c": str(number)}}}


ROWS = [row(number) for number in range(5)]
ROWS += [dict.fromkeys(ROWS[0]), {**ROWS[3], "q": {"a": None, "b": None}, "r": [None]}]
SCHEMA = arrow_schema(parse_columns(EVERYTHING))


(WHOLE,) = pa.Table.from_pylist(ROWS, schema=SCHEMA).combine_chunks().to_batches()


@pytest.mark.parametrize("rows", [[], ROWS, ROWS[::-2], [ROWS[5]] * 9], ids=len)
def test_arrays_are_built_as_pyarrow_would(rows: list[dict[str, object]]) -> None:
    for name, field in zip(SCHEMA.names, SCHEMA, strict=True):
        values = [row[name] for row in rows]
        made = build_array(values, field.type)
        made.validate(full=True)
        assert made.equals(pa.array(values, field.type)), name
        # In a NULL struct, the fields must be NULL as well.
        assert made.to_pylist() == pa.array(values, field.type).to_pylist(), name


def digest(*batches: pa.RecordBatch) -> str | None:
    replay = StepReplay(0, written=None, last=None)
    for batch in batches:
        replay.push(batch)
    return replay.finish().digest


def test_a_digest_sees_every_column() -> None:
    for index, field in enumerate(SCHEMA):
        order = pa.array([*range(1, len(ROWS)), 0])
        for column in (WHOLE.column(index).take(order), pa.nulls(len(ROWS), field.type)):
            assert digest(WHOLE.set_column(index, field, column)) != digest(WHOLE), field.name
    hashes = pa.array(row_hashes(WHOLE).view("i8"))
    carried = pa.RecordBatch.from_arrays([hashes], names=[HASH])
    assert digest(carried.slice(0, 1), carried.slice(1)) == digest(WHOLE), "hashes may come with the rows"


def replayed(
    written: Written | None, pushed: pa.RecordBatch, compare: Compare = "warn"
) -> tuple[Written, list[str]]:
    told: list[str] = []
    replay = StepReplay(3, written=written, last=3, compare=compare, warn=told.append)
    replay.push(pushed)
    return replay.finish(), told


def test_stored_hashes_of_earlier_versions() -> None:
    (first, rest) = WHOLE.slice(0, 2), WHOLE.slice(2)
    now = digest(first)
    assert now is not None and now.startswith("1:")
    for stored in (now, now.removeprefix("1:")):
        everything = Written(rows=len(ROWS), digest=digest(WHOLE))
        assert replayed(Written(rows=2, digest=stored), WHOLE) == (everything, [])
        # Other rows: the written rows stay, and no row is added.
        other = pa.concat_batches([WHOLE.slice(1, 1), WHOLE.slice(1, 1), rest])
        note, told = replayed(Written(rows=2, digest=stored), other)
        assert note == Written(rows=2, digest=stored)
        assert len(told) == 1 and "the first 2 rows differ" in told[0] and "5 rows beyond" in told[0]
        assert replayed(Written(rows=2, digest=stored), other, "off") == (note, [])
    # A kind of hash that this version doesn't know (such as SHA-256), or no recorded hash.
    for unknown in ("ab" * 32, "2:" + "0" * 16, None):
        assert replayed(Written(rows=2, digest=unknown), WHOLE) == (Written(rows=len(ROWS)), [])


def ids(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": pa.array(numbers, pa.int64())})


NUMBERS = st.lists(st.integers(0, 9))


@settings(deadline=None)
@given(NUMBERS, NUMBERS, st.integers(0, 9), st.integers(1, 4), st.booleans())
def test_a_step_is_never_a_mixture_of_two_descriptions(
    before: list[int], now: list[int], reached: int, size: int, is_last: bool
) -> None:
    """The target has a part of the old rows, or all of the new rows."""
    written = before[:reached]  # an output may be killed in the middle of a step
    note = Written(rows=len(written), digest=digest(ids(*written)))
    told: list[str] = []
    replay = StepReplay(3, written=note, last=3 if is_last else 5, warn=told.append)
    fresh: list[int] = []
    for first in range(0, len(now), size):
        fresh += replay.push(ids(*now[first : first + size])).column(0).to_pylist()
    after = replay.finish()
    assert after == Written(rows=len(written + fresh), digest=digest(ids(*written, *fresh)))
    repeats = sorted(now[: len(written)]) == sorted(written)
    if is_last and repeats:
        assert sorted(written + fresh) == sorted(now)
    else:
        assert fresh == []
    differs = [text for text in told if "with other rows" in text]
    assert len(differs) == (not repeats), told
    beyond = f"{len(now) - len(written)} rows beyond"
    assert any(beyond in text for text in told) == (len(now) > len(written) and not (is_last and repeats))


@pytest.mark.parametrize("type_", [pa.decimal128(38, 0), pa.string(), pa.large_string()])
def test_decimals_keep_their_value(type_: pa.DataType) -> None:
    """pyarrow's own cast doesn't notice decimals with too many digits."""
    columns = parse_columns("d DECIMAL(38,10)")
    texts = [None, "-12", "1" * 28, "1" * 33]
    values = pa.array([Decimal(t) if t and pa.types.is_decimal(type_) else t for t in texts], type_)
    batch = pa.RecordBatch.from_arrays([values], names=["d"])
    assert fit(batch.slice(0, 3), columns).column(0).to_pylist() == [None, -12, Decimal("1" * 28)]
    with pytest.raises(FitError) as caught:
        fit(batch, columns)
    assert caught.value.row == 3


@pytest.mark.parametrize(
    ("values", "row", "said"),
    [
        ({"id": [1, None]}, 1, "id is missing (NOT NULL)"),
        ({}, 0, "id is missing (NOT NULL)"),
        ({"id": ["1", "2", "x", "4"]}, 2, "id is not a BIGINT (string)"),
        ({"id": [1, 2], "name": ["abc", "abcd"]}, 1, "name is longer than VARCHAR(3)"),
        ({"id": [[1]]}, None, "id is not a BIGINT (list<item: int64>)"),
    ],
)
def test_values_are_converted_and_unfit_values_are_named(
    values: dict[str, list[object]], row: int | None, said: str
) -> None:
    columns = parse_columns("id BIGINT NOT NULL, name VARCHAR(3)")
    rows = pa.RecordBatch.from_pydict({"NAME": ["abc"], "other": [1], "id": pa.array([1], pa.int32())})
    assert fit(rows, columns).to_pylist() == [{"id": 1, "name": "abc"}]
    rows = pa.RecordBatch.from_pydict(values or {"x": [1]})
    with pytest.raises(FitError) as caught:
        fit(rows, columns)
    assert (str(caught.value), caught.value.row) == (said, row)


def test_a_step_keeps_its_first_note(tmp_path: Path) -> None:
    log = StepLog(str(tmp_path / "log"))
    assert log.steps() == range(0)
    log.append(0, {"to": 3})
    log.append(0, {"to": 4})
    log.append(1, {"to": 7})
    again = StepLog(str(tmp_path / "log"))
    assert [again.note(step) for step in again.steps()] == [{"to": 3}, {"to": 7}]
    for call in (lambda: log.append(3, {}), lambda: log.note(2), lambda: log.expire(3)):
        with pytest.raises(StepError):
            call()
    log.expire(2)
    assert again.steps() == range(2, 2)
    again.append(2, {"to": 9})
    assert (log.steps(), log.note(2)) == (range(2, 3), {"to": 9})


def test_expired_appends_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mzplan.connectors.local.steps._MIN_DISCARDED", 4)
    steps = LocalSteps(str(tmp_path))
    rows = pa.table({"id": [1, 2]})
    for i in range(7):
        steps.append(rows, f"a{i}")
    steps.expire(3)
    assert steps.steps() == range(7)  # too few rows
    steps.expire(7)
    assert (steps.steps(), len(list(tmp_path.glob("*.arrow")))) == (range(6, 7), 1)
    repeated = steps.append(rows, "a3")
    assert (repeated.step, repeated.rows, repeated.is_repeat, repeated.differs) == (3, 2, True, False)
    assert steps.append(pa.table({"id": [5]}), "a6").differs
    assert steps.append(rows, "new", expect=7).step == 7
    with pytest.raises(StaleStepError) as stale:
        steps.append(rows, "newer", expect=7)
    assert (stale.value.next_step, steps.steps()) == (8, range(6, 8))
    assert steps.append(rows, "new", expect=7).is_repeat  # a repeated request is no conflict


def test_number_of_a_lost_step_is_not_reused(tmp_path: Path) -> None:
    steps = LocalSteps(str(tmp_path))
    for number in range(4):
        steps.append(pa.table({"id": [1]}), f"a{number}")
    (lost,) = tmp_path.glob(f"{1:020}-*.arrow")
    lost.unlink()
    with pytest.raises(OSError, match="step 1 is missing, but step 2 exists"):
        steps.append(pa.table({"id": [1]}), "another")


def test_damaged_step_fails_before_its_first_row(tmp_path: Path) -> None:
    steps = LocalSteps(str(tmp_path))
    steps.append(pa.table({"id": list(range(50_000))}), "a")
    (found,) = tmp_path.glob("*.arrow")
    recorded = pa.ipc.open_file(found).schema.metadata
    changed = pa.table({"id": [*range(49_999), 7]}).replace_schema_metadata(recorded)
    with pa.ipc.new_file(found, changed.schema) as writer:
        writer.write_table(changed)
    consumer = StepRows(keep=True)
    with pytest.raises(OSError, match=r"the file of step 0 in .* is damaged: "):
        LocalFactory().new_endpoint("s", {"storage": str(tmp_path)}).read(0, consumer)
    assert (consumer.count, consumer.complete) == (0, False)


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("expired.json", text) for text in ('{"start": 0, "i', '{"start": 1e999}', "[1]", DEEP)),
        *(("expired-ids.json", text) for text in ('{"x": [1, "2", "9:none"]}', '{"x": [1, 2, {}]}')),
        ("*.arrow", ""),
    ],
)
def test_a_damaged_file_of_steps_is_an_error(tmp_path: Path, name: str, text: str) -> None:
    steps = LocalSteps(str(tmp_path))
    steps.append(pa.table({"id": [1]}), "a")
    file = next(tmp_path.glob(name), tmp_path / name)
    file.write_text(text)
    for ask in (lambda: steps.append(pa.table({"id": [1]}), "a"), steps.appended):
        with pytest.raises(OSError, match=rf"{file.name} is damaged"):
            ask()


@pytest.mark.parametrize("text", ["[1]", '{"start": []}', '{"start": 1e999}', DEEP])
def test_damaged_notes_of_steps_are_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "start.json").write_text(text)
    with pytest.raises(OSError, match=r"start\.json is damaged"):
        StepLog(str(tmp_path)).steps()
    (tmp_path / "idle.json").write_text(text.replace("start", "to"))
    with pytest.raises(OSError, match=r"idle\.json is damaged"):
        IdlePosition(str(tmp_path)).read()
    assert step_of(text.replace("start", "step")) is None
    with pytest.raises(ValueError, match="an offset is damaged"):
        offsets_in(text.replace("start", "orders"), {"topic": "orders"})
