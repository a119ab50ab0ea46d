"""Delta tables without Spark: whether one is there, is fit, and is still the one that was read."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from mzplan.connectors.api.queries import ResolvedQuery
from mzplan.connectors.delta.source import DeltaSource
from mzplan.connectors.delta.table import holds
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.step_index import StepIndex
from mzplan.warehouse.step_record import StepRecord
from tests.stored_steps import offsets
from tests.unit.cli_runs import mzplan
from tests.unit.connectors.queries import on_table

SCHEMA = "id BIGINT NOT NULL, name STRING, amount DECIMAL(12,2)"
AMOUNTS = pa.array(["1.5", "2"]).cast(pa.decimal128(10, 2))
ROWS = pa.table({"id": [1, 2], "Name": ["a", "b"], "amount": AMOUNTS, "x": [1, 2]})


def query(table: Path, **body: Any) -> ResolvedQuery:
    body = {"schema": SCHEMA, **body}
    return on_table(table, Address("source", "orders"), body, body["schema"])


def found(table: Path, **body: Any) -> list[tuple[str, str]]:
    return [(d.code, d.detail) for d in DeltaSource().probe(query(table, **body)).diagnostics]


@pytest.mark.parametrize("name", ["orders", "or%20ders"])  # delta-rs can't open the second one
def test_a_table_is_known_by_its_id(tmp_path: Path, name: str) -> None:
    table, source = tmp_path / name, DeltaSource()
    assert [code for code, _ in found(table)] == ["MZ057"]
    table.mkdir()
    assert [code for code, _ in found(table)] == ["MZ052"]
    ids = []
    for made in (tmp_path / "first", tmp_path / "second"):
        write_deltalake(made, ROWS)
        ids.append(str(DeltaTable(made).metadata().id))
    shutil.copytree(tmp_path / "first", table, dirs_exist_ok=True)
    before = source.probe(query(table))
    assert before.ok and before.upstream == {"type": "delta", "table": ids[0]}
    assert source.compare(query(table), before.upstream, before.upstream) is None
    shutil.rmtree(table)
    shutil.copytree(tmp_path / "second", table)
    other = source.probe(query(table)).upstream
    assert other is not None and before.upstream is not None
    refused = source.compare(query(table), before.upstream, other)
    assert refused is not None and refused.code == "MZ043" and "re-created" in refused.detail


def test_a_key_needs_the_change_feed(tmp_path: Path) -> None:
    table = tmp_path / "orders"
    write_deltalake(table, ROWS)
    assert [code for code, _ in found(table, key=["id"])] == ["MZ228"]
    write_deltalake(tmp_path / "fed", ROWS, configuration={"delta.enableChangeDataFeed": "true"})
    assert found(tmp_path / "fed", key=["id"]) == []


@pytest.mark.parametrize(
    ("offset", "code"),
    [
        ({"reservoirVersion": 3, "index": -1}, None),  # all was read
        ({"reservoirVersion": 4, "index": -1}, "MZ043"),  # more than there is: an older copy
        ({"reservoirVersion": 3, "index": 0}, "MZ043"),
        ({"reservoirVersion": 0, "index": -1}, "MZ067"),  # the log no longer reaches back
        ({"reservoirVersion": 0, "index": 5, "isStartingVersion": True}, None),
    ],
)
def test_the_tables_log_must_have_the_next_version(
    tmp_path: Path, offset: dict[str, Any], code: str | None
) -> None:
    table = tmp_path / "orders"
    for _ in range(3):
        write_deltalake(table, ROWS, mode="append")
    (table / "_delta_log" / f"{0:020}.json").unlink()
    said = DeltaSource().check_position(query(table), json.dumps({"sourceVersion": 1, **offset}))
    assert (said.code if said is not None else None) == code


def begun(table: Path, tmp_path: Path, *versions: int, **body: Any) -> ResolvedQuery:
    """A source that has planned a step up to each of these versions."""
    checkpoint = Checkpoint(str(tmp_path / "checkpoint"))
    for step, version in enumerate(versions):
        plan(checkpoint, step, version)
    return replace(query(table, schema="id BIGINT", **body), checkpoint=checkpoint)


def plan(checkpoint: Checkpoint, step: int, version: int) -> None:
    place = {"reservoirVersion": version, "index": 0, "isStartingVersion": step == 0}
    offsets(Path(checkpoint.spark), step, place)


def write(table: Path, *ids: int, mode: Any = "append") -> None:
    write_deltalake(table, pa.table({"id": pa.array(ids, pa.int64())}), mode=mode)


def test_an_older_copy_that_was_written_on_is_another_table(tmp_path: Path) -> None:
    table, copy = tmp_path / "orders", tmp_path / "copy"
    write(table, 1)
    write(table, 2)
    source, of = DeltaSource(), begun(table, tmp_path, 1)
    guard = source.guard(of)
    assert guard is not None and of.checkpoint is not None
    guard(0)
    assert of.checkpoint.last_read() == (1, CollectionLog(str(table)).digest(1))
    shutil.copytree(table, copy)
    write(table, 3)
    write(table, 4)
    plan(of.checkpoint, 1, 3)
    guard(1)
    guard(1)  # a step that runs once more
    shutil.rmtree(table)
    shutil.copytree(copy, table)
    position = of.checkpoint.log.entry(1)
    assert position is not None
    for _ in range(3):
        refused = source.check_position(of, position)
        assert refused is not None and refused.code == "MZ043" and "older copy" in refused.detail
        with pytest.raises(MzplanError, match="would read another table"):
            guard(1)
        write(table, 5)
    later = Checkpoint(str(tmp_path / "later"))
    source.migrate_checkpoint(of.checkpoint, later)
    assert later.last_read() == of.checkpoint.last_read()
    # An entry that Delta has removed from its log says nothing.
    (table / "_delta_log" / f"{3:020}.json").unlink()
    assert source.check_position(of, position) is None


def loss(table: Path, tmp_path: Path, *versions: int, **body: Any) -> tuple[int | None, int | None] | None:
    of = begun(table, tmp_path / "-".join(map(str, versions)), *versions)
    assert of.checkpoint is not None
    anew = replace(query(table, schema="id BIGINT", **body), checkpoint=Checkpoint(str(tmp_path / "anew")))
    found = DeltaSource().loss(anew, of.checkpoint)
    return (found.lost, found.read) if found is not None else None


def test_rows_that_were_read_and_deleted_are_a_loss(tmp_path: Path) -> None:
    table = tmp_path / "orders"
    write(table, 1, 2, 3)  # version 0
    assert loss(table, tmp_path, 0) is None
    write(table, 4, 5)
    DeltaTable(table).delete("id = 1")  # 2
    write(table, 6, 7)  # 3: not read
    assert loss(table, tmp_path, 0, 1) == (1, 5)
    DeltaTable(table).delete("id = 6")
    assert loss(table, tmp_path, 0, 1) == (1, 5)
    DeltaTable(table).optimize.compact()
    assert loss(table, tmp_path, 0, 1) == (1, 5)
    assert loss(table, tmp_path, 0, 1, key=["id"]) is None
    assert loss(table, tmp_path, 2) is None, "it has begun after the delete"
    write(table, 8, 9, mode="overwrite")
    assert loss(table, tmp_path, 2, 3) == (6, 6)
    DeltaTable(table).restore(3)
    assert loss(table, tmp_path, 2, 3) is None
    DeltaTable(table).delete("id = 3")
    write(table, 10, 11)
    newest = DeltaTable(table).version()
    DeltaTable(table).delete("id = 10")
    DeltaTable(table).restore(newest)
    assert loss(table, tmp_path, 2, 3) == (1, 6), "what was never read is none of it"


def test_a_loss_that_the_log_no_longer_shows_is_found_by_the_number_of_rows(tmp_path: Path) -> None:
    table = tmp_path / "orders"
    write(table, 1, 2, 3)
    DeltaTable(table).delete("id < 3")
    write(table, 4)
    DeltaTable(table).create_checkpoint()
    for version in (0, 1):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    index = StepIndex(Checkpoint(str(tmp_path / "0-2/checkpoint")))
    index.append([StepRecord(step=0, rows=3, total=3), StepRecord(step=1, rows=1, total=4)])
    assert loss(table, tmp_path, 0, 2) == (2, 4)


def test_on_change_and_a_key_exclude_each_other(tmp_path: Path) -> None:
    (tmp_path / "mzplan.yaml").write_text(
        "{version: 1, project: shop, connections: {lake: {type: files, path: ./lake}}, sources: {orders: "
        "{connection: lake, type: delta, path: orders, schema: id INT, key: [id], on_change: skip}}}"
    )
    ran = mzplan(tmp_path, "validate")
    assert ran.code == 1 and "on_change with a key" in ran.err


BY_DAY = pa.array([[("mon", {"a": 1})]], pa.map_(pa.string(), pa.struct([("a", pa.int64())])))
LINES, PRICES = pa.array([[{"n": 1, "tax": 2.5}]]), pa.array([{"net": 10, "gross": 12}])
NESTED = pa.table({"id": [1], "price": PRICES, "lines": LINES, "by_day": BY_DAY})
SAME = {
    "price": "STRUCT<net: BIGINT,gross: BIGINT>",
    "lines": "ARRAY<STRUCT<n: BIGINT,tax: DOUBLE>>",
    "by_day": "MAP<STRING,STRUCT<a: BIGINT>>",
}


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        ("price", "STRUCT<gross: BIGINT, net: BIGINT>"),
        ("price", "STRUCT<net: BIGINT, gross: INT>"),
        ("lines", "ARRAY<STRUCT<tax: DOUBLE, n: BIGINT>>"),
        ("by_day", "MAP<STRING, STRUCT<b: BIGINT>>"),
    ],
)
def test_nested_fields_that_spark_would_match_by_position_are_refused(
    tmp_path: Path, name: str, type_: str
) -> None:
    table = tmp_path / "orders"
    write_deltalake(table, NESTED)

    def schema(**types: str) -> str:
        declared = {"id": "BIGINT", **SAME, **types}
        return ", ".join(f"{column} {type_}" for column, type_ in declared.items())

    assert found(table, schema=schema(lines="ARRAY<STRUCT<n: DECIMAL(20,0), tax: DOUBLE>>")) == []
    ((code, detail),) = found(table, schema=schema(**{name: type_}))
    assert code == "MZ230" and f"{name} is {SAME[name]} in the table" in detail


@pytest.mark.parametrize(
    ("column", "written", "fits"),
    [
        ("BIGINT", "INT", True),
        ("INT", "BIGINT", False),
        ("DOUBLE", "INT", True),
        ("DOUBLE", "DECIMAL(10,2)", False),
        ("DOUBLE", "BIGINT", False),  # from 2 to the power of 53
        ("FLOAT", "INT", False),
        ("STRING", "DATE", True),
        ("STRING", "BINARY", False),
        ("BOOLEAN", "STRING", False),
        ("TIMESTAMP", "DATE", True),
        ("DATE", "TIMESTAMP", False),
        ("DECIMAL(12,2)", "DECIMAL(10,2)", True),
        ("DECIMAL(10,2)", "DECIMAL(12,2)", False),
        ("DECIMAL(20,1)", "BIGINT", True),
        ("DECIMAL(10,2)", "INT", False),
        ("ARRAY<STRING>", "ARRAY<INT>", True),
    ],
)
def test_a_column_holds_every_written_value(column: str, written: str, fits: bool) -> None:
    assert holds(column, written) is fits
