"""mzplan append: rows that fit become one durable step; other rows are reported by line and column."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs, parquet

from mzplan.connectors.local import step_numbers
from mzplan.connectors.local import steps as local_steps
from mzplan.connectors.local.row_files import BadFileError, Format, read_rows
from mzplan.connectors.local.steps import LocalSteps
from mzplan.features.append import AppendedFile
from mzplan.features.append import append as append_file
from mzplan.model.address import Address
from mzplan.operations.project import open_project
from mzplan.schema.columns import parse_columns
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.folder import RemoteFolder
from mzplan.warehouse.rows.content_hash import content_hash
from mzplan.warehouse.step_index import StepIndex
from mzplan.warehouse.step_record import StepRecord
from tests import stored_steps
from tests.unit.cli_runs import PROJECT, mzplan
from tests.unit.reporters import SilentReporter

COLUMNS = "id BIGINT NOT NULL, name VARCHAR(5), amount DECIMAL(6,2), at TIMESTAMP, day DATE, ok BOOLEAN"
NESTED = "tags ARRAY<STRING>, s STRUCT<a: INT NOT NULL,b: DOUBLE>, m MAP<INT,STRING>, raw BINARY, n TINYINT"


def table(text: str | bytes, format_: Format = "jsonl", columns: str = COLUMNS) -> list[dict[str, Any]]:
    data = text if isinstance(text, bytes) else text.encode()
    return read_rows(data, format_, parse_columns(columns)).to_pylist()


def mistakes(
    text: str | bytes, format_: Format = "jsonl", columns: str = COLUMNS
) -> list[tuple[int | None, str]]:
    with pytest.raises(BadFileError) as caught:
        table(text, format_, columns)
    return [(mistake.line, mistake.text) for mistake in caught.value.mistakes]


FULL = {
    "id": 1,
    "name": "Zoë",
    "amount": Decimal("1.50"),
    "at": datetime(2024, 1, 31, 12, tzinfo=UTC),
    "day": date(2024, 1, 31),
    "ok": True,
}
EMPTY = {**dict.fromkeys(FULL), "id": 2}


def test_json_lines_may_leave_columns_out() -> None:
    text = (
        '{"id": 1, "name": "Zoë", "amount": 1.5, "at": "2024-01-31T13:00:00+01:00", '
        '"day": "2024-01-31", "ok": true}\n'
        '\n{"id": 2, "name": null}\n'
    )
    assert table(text) == [FULL, EMPTY]
    assert table("\ufeff" + text) == [FULL, EMPTY]
    assert table("") == []
    raw = base64.b64encode(b"\0\1").decode()
    row = {"tags": ["a", None], "s": {"a": 1, "b": "NaN"}, "m": {"7": "x"}, "raw": raw, "n": -128}
    (found,) = table(json.dumps(row), columns=NESTED)
    assert found["s"].pop("b") != 0
    assert found == {"tags": ["a", None], "s": {"a": 1}, "m": [(7, "x")], "raw": b"\0\1", "n": -128}


def test_csv_names_its_columns_in_any_order() -> None:
    text = 'name,id,amount,at,day,ok\nZoë,1,1.5,2024-01-31T12:00:00Z,2024-01-31,TRUE\n"",2,,,,\n\n'
    assert table(text, "csv") == [FULL, EMPTY]
    assert table('id,name\r\n1,"a\nb"\r\n', "csv")[0]["name"] == "a\nb"
    assert table("", "csv") == []


def parquet_of(**columns: Any) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(pa.table(columns), sink, compression="none")
    return sink.getvalue()


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ('{"name": "x"}', "id is missing (NOT NULL)"),
        ('{"id": 1.0}', "id is 1.0, not BIGINT"),
        ('{"id": true}', "id is True, not BIGINT"),
        ('{"id": 1, "name": "Zoë Ab"}', "name has 6 characters, more than VARCHAR(5)"),
        ('{"id": 1, "name": "\\ud800"}', "name is not Unicode text: it contains half of a surrogate pair"),
        ('{"id": 1, "amount": 12345}', "amount is 12345, which has more digits than"),
        ('{"id": 1, "amount": 1.234}', "amount is 1.234, which has more digits than"),
        ('{"id": 1, "amount": "NaN"}', "amount is 'NaN', not DECIMAL(6,2)"),
        ('{"id": 1, "at": "yesterday"}', "at is 'yesterday', not a TIMESTAMP such as"),
        ('{"id": 1, "day": "2024-02-30"}', "day is '2024-02-30', not a DATE such as '2024-01-31'"),
        ('{"id": 1, "ok": {}}', "ok is an object, not BOOLEAN"),
        ('{"id": 1, "nmae": 1}', "'nmae' is not a column: did you mean 'name'?"),
        ("[1]", "the line is not one JSON object"),
        ('{"id": NaN}', 'the line is not JSON: NaN is not JSON (a DOUBLE takes it as text: "NaN")'),
        ('{"id": 1', "the line is not JSON: Expecting ',' delimiter at character 9"),
        ("[" * 100_000, "not JSON"),
        ('{"id": ' + "9" * 10_000 + "}", "not JSON"),
        ('{"id": 1, "tags": ["a", 1]}', "tags[1] is 1, not STRING"),
        ('{"id": 1, "s": {"b": 1}}', "s.a is missing (NOT NULL)"),
        ('{"id": 1, "s": {"a": 1, "c": 1}}', "s has 'c', which is not one of its fields"),
        ('{"id": 1, "m": {"x": "y"}}', "m.x is 'x', not INT"),
        ('{"id": "1"}', "id is '1', not BIGINT"),
        ('{"id": 1, "raw": "%"}', "raw is not base64, the form of a BINARY"),
        ('{"id": 1, "n": 128}', "n is 128, not TINYINT"),
    ],
    ids=lambda text: text[:24],
)
def test_a_mistake_in_json_lines_names_line_and_place(record: str, said: str) -> None:
    ((line, text),) = mistakes('{"id": 0}\n' + record + '\n{"id": 5}\n', columns=f"{COLUMNS}, {NESTED}")
    assert line == 2 and said in text


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("id,nmae\n1,x\n", 1, "'nmae' is not a column: did you mean 'name'?"),
        ("id,id\n1,2\n", 1, "the first line names a column twice"),
        ("id,name\n1,x\n2\n", 3, "the record has 1 fields, but the first line has 2"),
        ('id,name\n1,"a\nb"\nx,y\n', 4, "id is 'x', not BIGINT"),
        ('id,name\n1,"x', 2, "the record is not CSV: unexpected end of data"),
        ("id,ok\n1,yes\n", 2, "ok is 'yes', not BOOLEAN"),
    ],
)
def test_a_mistake_in_csv_names_its_line(text: str, line: int, said: str) -> None:
    ((found, mistake),) = mistakes(text, "csv")
    assert found == line and said in mistake
    ((_, said),) = mistakes("id\n1\n", "csv", "id INT, tags ARRAY<STRING>")
    assert said == "a field of csv can't hold a ARRAY<STRING>; append JSON lines or Parquet"


def test_parquet_matches_columns_by_name_and_a_mistake_names_its_row() -> None:
    rows = table(parquet_of(ID=pa.array([1], pa.int16()), name=["Zoë"]), "parquet")
    assert rows == [{**EMPTY, "id": 1, "name": "Zoë"}]
    assert mistakes(parquet_of(id=[1, None]), "parquet") == [(2, "id is missing (NOT NULL)")]
    ((_, said),) = mistakes(parquet_of(id=[1, 2], name=["a", "byte"]).replace(b"byte", b"b\xffte"), "parquet")
    assert "after row 0" in said and "UTF8" in said
    ((_, said),) = mistakes(b"no", "parquet")
    assert said.startswith("the file is not Parquet: ")


def test_only_the_first_mistakes_are_listed() -> None:
    assert mistakes(b'{"id": 1}\n\xff')[0] == (2, "the file is not UTF-8")
    with pytest.raises(BadFileError) as many:
        table('{"id": 1.5}\n' * 20_100)
    assert (len(many.value.mistakes), many.value.more) == (20, 20_080)


# --- the command


def declare(folder: Path, schema: str, more: str = "") -> None:
    """Declare the local source with these columns, and apply it."""
    (folder / "s.yaml").write_text(f'sources: {{a: {{type: local, schema: "{schema}"{more}}}}}\n')
    assert mzplan(folder, "apply", "--auto-approve", "--allow-replace").code == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A committed project with a local source. Its instance is dry, so no query runs."""
    (tmp_path / "mzplan.yaml").write_text(PROJECT % "dry")
    declare(tmp_path, "id BIGINT NOT NULL, name STRING")
    return tmp_path


def append(folder: Path, text: str, *more: str, code: int = 0) -> Any:
    file = folder / "rows.jsonl"
    file.write_text(text)
    ran = mzplan(folder, "append", "source.a", "--file", str(file), "--json", *more)
    assert ran.code == code, ran
    return ran.json()


def refused(folder: Path, text: str, *more: str, code: int) -> Any:
    (found,) = append(folder, text, *more, code=code)["diagnostics"]
    return found


def place_of(folder: Path) -> Path:
    """Return the folder of the source's steps."""
    (place,) = (folder / "warehouse").rglob("steps")
    return place


def test_each_append_is_a_step_and_a_repeated_one_is_none(folder: Path) -> None:
    two = '{"id": 1}\n{"id": 2}\n'
    first = append(folder, two, "--id", "x")
    fields = {"address": "source.a", "step": 0, "rows": 2, "id": "x", "repeated": False, "differs": False}
    assert first == fields and append(folder, two, "--id", "x") == {**first, "repeated": True}
    other = refused(folder, '{"id": 3}\n', "--id", "x", code=1)
    assert other["code"] == "MZ133" and other["hint"]
    assert len(re.findall("1:[0-9a-f]{16}", other["detail"])) == 2, "the hash of each"
    assert refused(folder, '{"id": 3}\n', "--id", "mzplan:empty step 1", code=64)["code"] == "MZ133"
    second = append(folder, two, "--expect-step", "1")
    assert (second["step"], second["repeated"]) == (1, False)
    stale = refused(folder, two, "--expect-step", "1", code=7)
    assert (stale["code"], stale["summary"]) == ("MZ084", "The next step of source.a is 2, not 1")


def test_a_mistake_writes_nothing(folder: Path) -> None:
    found = append(folder, '{"id": 1}\n{"id": "x"}\n{}\n', code=1)["diagnostics"]
    assert [(d["code"], d["range"]["line"]) for d in found] == [("MZ083", 2), ("MZ083", 3)]
    assert found[0]["detail"] == "line 2: id is 'x', not BIGINT. Nothing was written."
    assert not list((folder / "warehouse").rglob("*.arrow"))


def test_rows_are_deleted_by_key(folder: Path) -> None:
    keyless = refused(folder, '{"id": 1}', "--delete", code=64)
    assert keyless["code"] == "MZ083" and "It has no key" in keyless["detail"]
    declare(folder, "id BIGINT NOT NULL, name STRING NOT NULL", ", key: [id]")
    assert append(folder, '{"id": 1, "name": "x"}')["step"] == 0
    assert append(folder, '{"id": 1}\n{"id": 2}', "--delete")["rows"] == 2
    assert "name" in refused(folder, '{"id": 1, "name": "x"}', "--delete", code=1)["detail"]
    steps = LocalSteps(str(place_of(folder)))
    assert [row for step in steps.steps() for batch in steps.batches(step) for row in batch.to_pylist()] == [
        {"id": 1, "name": "x", "_change": "upsert"},
        {"id": 1, "name": None, "_change": "delete"},
        {"id": 2, "name": None, "_change": "delete"},
    ]


def test_only_rows_for_a_local_source_are_appended(folder: Path) -> None:
    (folder / "rows.csv").write_text("")
    for address, file, code, says in (
        ("source.b", "rows.csv", 64, "There is no source.b in the state"),
        ("source.a", "none.csv", 1, "none.csv"),
        ("source.a", "mzplan.yaml", 64, "--format"),
    ):
        ran = mzplan(folder, "append", address, "--file", str(folder / file))
        assert ran.code == code and says in ran.err, ran


def test_a_replacement_begins_with_steps_of_its_own(folder: Path) -> None:
    append(folder, '{"id": 1}')
    declare(folder, "id STRING")
    assert append(folder, '{"id": "x"}')["step"] == 0
    declare(folder, "id STRING, more INT")
    assert append(folder, '{"id": "x", "more": 5}')["step"] == 1


def test_storage_that_cannot_be_written_is_an_error(folder: Path) -> None:
    append(folder, '{"id": 1}')
    steps = place_of(folder)
    shutil.rmtree(steps)
    steps.write_text("a file")
    assert refused(folder, '{"id": 1}', code=1)["code"] == "MZ035"


@pytest.mark.parametrize("store", ["local", "object store"])
def test_concurrent_appends_lose_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    """An object store has no locks: there, an append holds the lock of the state."""
    project, place = open_project(str(folder)), folder / "bucket"
    if store == "object store":
        monkeypatch.setattr(step_numbers, "local_path", lambda _: None)
        remote = RemoteFolder(fs.LocalFileSystem(), str(place))
        monkeypatch.setattr(local_steps, "open_folder", lambda _: remote)

    def work(worker: int) -> None:
        for i in range(6):
            id_ = f"same {i}" if i % 2 else f"{worker} {i}"  # every second one is repeated by all workers
            rows = AppendedFile(name="f", data=b'{"id": 1}', format="jsonl", id=id_)
            append_file(project, Address("source", "a"), rows, SilentReporter())

    with ThreadPoolExecutor(5) as pool:
        list(pool.map(work, range(5)))
    there = LocalSteps(str(place if store == "object store" else place_of(folder)))
    assert there.steps() == range(3 + 5 * 3)
    assert [sum(batch.num_rows for batch in there.batches(step)) for step in there.steps()] == [1] * 18


def read(folder: Path, steps: int) -> Path:
    """Pretend that a runner has read so many steps. Return the folder of the steps."""
    place = place_of(folder)
    for step in range(steps):
        stored_steps.offsets(place.parent / "spark", step, {"step": step + 1})
        stored_steps.commit(place.parent / "spark", step)
    return place


@pytest.mark.parametrize("known_by", ["checkpoint", "index", "unfinished"])
def test_no_append_takes_the_number_of_a_step_that_was_read_and_is_lost(folder: Path, known_by: str) -> None:
    """An older copy of the source's steps was restored: the row would never be read."""
    for number in range(3):
        append(folder, f'{{"id": {number}}}')
    place = read(folder, 3)
    if known_by == "unfinished":
        (place.parent / "spark/commits/2").unlink()
    if known_by == "index":
        shutil.rmtree(place.parent / "spark")
        StepIndex(Checkpoint(str(place.parent))).append([StepRecord(step=9, end={"step": 3})])
    assert append(folder, '{"id": 3}')["step"] == 3
    for lost in sorted(place.glob("*.arrow"))[2:]:
        lost.unlink()
    found = refused(folder, '{"id": 4}', code=7)
    assert (found["code"], found["summary"]) == ("MZ081", "Steps of source.a are lost")
    assert "end before 2, but steps before 3 were already read" in found["detail"]
    assert len(list(place.glob("*.arrow"))) == 2
    # The way out that it names.
    ran = mzplan(folder, "apply", "--replace", "source.a", "--allow-replace", "--auto-approve")
    assert ran.code == 0 and append(folder, '{"id": 4}')["step"] == 0


def test_an_append_may_become_the_first_step_that_spark_has_planned(folder: Path) -> None:
    """Spark runs a first micro-batch even without rows."""
    append(folder, '{"id": 1}')
    place = read(folder, 1)
    (place.parent / "spark/commits/0").unlink()
    (step,) = place.glob("*.arrow")
    step.unlink()
    assert append(folder, '{"id": 1}')["step"] == 0


def test_a_local_source_is_verified_from_its_steps(folder: Path) -> None:
    records = []
    for step in range(3):
        append(folder, f'{{"id": {step}, "name": "a"}}\n{{"id": 9}}')
        where = [{"step": step, "row": row} for row in range(2)]
        rows = pa.table({"id": [step, 9], "name": ["a", None], "_position": where})
        ends = {"start": {"step": step} if step else None, "end": {"step": step + 1}}
        records.append(StepRecord(step=step, rows=2, digest=str(content_hash([rows])), **ends))
    place = place_of(folder)
    StepIndex(Checkpoint(str(place.parent))).append(records)

    def verified(code: int) -> Any:
        ran = mzplan(folder, "verify", "source.a", "--from-upstream", "--json")
        assert ran.code == code, ran
        return ran.json()

    found = verified(0)
    assert (found["verified"], found["without_hash"]) == (3, [])
    first, second, _ = sorted(place.glob("*.arrow"))
    data = bytearray(second.read_bytes())
    first.write_bytes(data)  # whole, and of another step
    data[len(data) // 3 :] = bytes(len(data) - len(data) // 3)
    second.write_bytes(data)
    assert verified(1)["difference"]["step"] == 0
    first.unlink()
    (place / "expired.json").write_text('{"start": 1}')
    found = verified(1)
    assert (found["verified"], found["difference"]) == (1, None)
    gone, damaged = found["diagnostics"]
    assert "step 0 is gone; only steps 1 to 3" in gone["detail"]
    assert damaged["summary"].startswith("Step 1 of") and "damaged" in damaged["detail"]
