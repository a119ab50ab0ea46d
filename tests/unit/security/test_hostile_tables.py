"""What the writer of a Delta table's log can put there: no path in it leads out of the table, and nothing
hides there that mzplan reads otherwise than Delta."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import parquet

from mzplan.connectors.checks import check_description
from mzplan.connectors.delta.sink import DeltaSink
from mzplan.connectors.delta.source import DeltaSource
from mzplan.connectors.delta.table import last_step, open_table
from mzplan.connectors.formats.dead_letters import require_own
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.spark.maintenance import vacuum
from mzplan.warehouse import foreign_query
from mzplan.warehouse.collection_log import CollectionLog, require_inside
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.log_entries import OutsideError
from mzplan.warehouse.paths import stays_below
from mzplan.warehouse.snapshot import TableSnapshot, small_files
from tests.unit.connectors.lake_queries import on_table
from tests.unit.features.steps.test_cli_steps import Shop
from tests.unit.security.test_hostile_warehouse import _nested_parquet

ORDERS = Address.parse("source.orders")
OUTSIDE = (
    "/etc/passwd",
    "%2Fetc/passwd",
    "file:/etc/passwd",
    "file:///etc/passwd",
    "s3://other/part.parquet",
    "S3A:x",
    "../other/part.parquet",
    "day=1/../../other/part.parquet",
    "%2e%2e/part.parquet",
    "day=1/%2E./../part.parquet",
    "%252e%252e/part.parquet",
    "day=1/..",
    "a\0b",
    "",
)
INSIDE = (
    "part-00000.snappy.parquet",
    "day=2024-01-01/part.parquet",
    "at=2024-01-01%2000%253A00%253A00/part.parquet",
    "kind=a%252F..%252F..%252Fb/part.parquet",
    "at=2024-01-01 00:00:00/part.parquet",
    "name=a..b/part..parquet",
    "Ab/a%20b%25.parquet",
    "...",
)
VECTOR = "ab^-aqEH.-t@S}K{vb[*k^"  # two characters of a folder, and an id


@pytest.mark.parametrize("name", OUTSIDE)
def test_names_that_lead_out(name: str) -> None:
    assert not stays_below(name)


@pytest.mark.parametrize("name", INSIDE)
def test_names_that_stay(name: str) -> None:
    assert stays_below(name)


def table(folder: Path) -> Path:
    for number in range(2):
        write_deltalake(str(folder), pa.table({"id": [number]}), mode="append")
    return folder


def commit(folder: Path, *actions: Any) -> None:
    log = folder / "_delta_log"
    version = len(list(log.glob("*.json")))
    (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)))


def file(name: str, **more: Any) -> dict[str, Any]:
    return {"path": name, "size": 1, "partitionValues": {}, "modificationTime": 1, "dataChange": True, **more}


def vector(kind: str, where: str) -> dict[str, Any]:
    return {
        "deletionVector": {"storageType": kind, "pathOrInlineDv": where, "sizeInBytes": 1, "cardinality": 1}
    }


@pytest.mark.parametrize("kind", ["add", "remove", "cdc"])
@pytest.mark.parametrize("name", ["file:/etc/passwd", "../x.parquet"])
def test_a_commit_that_leads_out_is_refused(tmp_path: Path, kind: str, name: str) -> None:
    folder = table(tmp_path / "t")
    log = CollectionLog(str(folder))
    log.ensure_inside()
    commit(folder, {kind: file(name)})
    with pytest.raises(OutsideError, match=r"leads out of it: 0{19}2\.json names"):
        log.ensure_inside()
    with pytest.raises(OutsideError):
        CollectionLog(str(folder)).commit(2)
    with pytest.raises(MzplanError) as caught:
        require_inside(log, ORDERS, own=False)
    (told,) = caught.value.diagnostics
    assert (
        told.code == "MZ283"
        and told.address == ORDERS
        and name in told.detail
        and str(folder) in told.summary
    )


def test_a_name_in_a_log_is_shown_on_one_line() -> None:
    shown = str(OutsideError("t", "x.json", "/x\n2026-11-25 INFO mzplan: all is well\x1b[8m" + "y" * 1000))
    assert shown.isprintable() and len(shown) < 300


@pytest.mark.parametrize(
    ("kind", "where", "stays"),
    [("p", "/etc/x.bin", False), ("u", VECTOR, True), ("u", f"../{VECTOR}", False), ("i", "/..", True)],
)
def test_deletion_vectors(tmp_path: Path, kind: str, where: str, stays: bool) -> None:
    folder = table(tmp_path / "t")
    commit(folder, {"add": file("x.parquet", **vector(kind, where))})
    if stays:
        CollectionLog(str(folder)).ensure_inside()
        return
    with pytest.raises(OutsideError):
        CollectionLog(str(folder)).ensure_inside()


@pytest.mark.parametrize("kind", ["add", "remove"])
def test_a_checkpoint_that_leads_out_is_refused(tmp_path: Path, kind: str) -> None:
    folder = table(tmp_path / "t")
    DeltaTable(folder).create_checkpoint()
    CollectionLog(str(folder)).ensure_inside()
    assert small_files(str(folder)) == 2
    at = folder / "_delta_log" / f"{1:020}.checkpoint.parquet"
    rows = parquet.read_table(at).to_pylist()
    rows[-1] = {**dict.fromkeys(rows[0]), kind: {"path": "%2e%2e/x.parquet", "size": 1, "dataChange": True}}
    parquet.write_table(pa.Table.from_pylist(rows), at)
    with pytest.raises(OutsideError, match=r"checkpoint\.parquet names %2e%2e/x"):
        CollectionLog(str(folder)).ensure_inside()


@pytest.mark.parametrize("named", ["", "uuid.json", "uuid.parquet"])
def test_a_checkpoint_with_sidecars_is_read(tmp_path: Path, named: str) -> None:
    """Delta's V2: what files the table has is in files of their own."""
    folder = table(tmp_path / "t")
    DeltaTable(folder).create_checkpoint()
    log, before = folder / "_delta_log", CollectionLog(str(folder))
    classic = log / f"{1:020}.checkpoint.parquet"
    rows, schema = parquet.read_table(classic).to_pylist(), parquet.read_schema(classic)
    files = [row for row in rows if row["add"]]
    (log / "_sidecars").mkdir()

    def write(sidecar: str, path: str) -> None:
        of_files = [{"add": {**row["add"], "path": path}} for row in files]
        parquet.write_table(pa.Table.from_pylist(of_files), log / "_sidecars" / "s.parquet")
        kept = [row for row in rows if not row["add"]]
        if named.endswith("json"):
            kept = [{kind: value for kind, value in row.items() if value} for row in kept]
            text = "".join(json.dumps(row) + "\n" for row in [*kept, {"sidecar": {"path": sidecar}}])
            (log / f"{1:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json").write_text(text)
            return
        name = f"{1:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.parquet" if named else classic.name
        with_sidecar = [*kept, {"sidecar": {"path": sidecar, "sizeInBytes": 1, "modificationTime": 1}}]
        parquet.write_table(pa.Table.from_pylist(with_sidecar, schema), log / name)

    partitions, features = before.partitions(), before.features()
    write("s.parquet", "plain.parquet")
    if named:
        classic.unlink()
    looked = CollectionLog(str(folder))
    looked.ensure_inside()
    assert (looked.partitions(), looked.features()) == (partitions, features)
    write("s.parquet", "../x.parquet")
    with pytest.raises(OutsideError):
        CollectionLog(str(folder)).ensure_inside()
    write("../s.parquet", "plain.parquet")
    with pytest.raises(OSError, match="is no name of a sidecar"):
        CollectionLog(str(folder)).ensure_inside()


def test_what_begins_before_the_newest_checkpoint_is_looked_at(tmp_path: Path) -> None:
    """As of version 1 Delta reads what the newest checkpoint does not have any more."""
    folder = table(tmp_path / "t")
    commit(folder, {"add": file("/x.parquet")})
    shutil.copytree(folder, tmp_path / "plain")
    (tmp_path / "plain/_delta_log" / f"{2:020}.json").write_text('{"commitInfo":{}}')
    commit(tmp_path / "plain", {"commitInfo": {}})
    DeltaTable(tmp_path / "plain").create_checkpoint()
    shutil.copy(tmp_path / "plain/_delta_log" / f"{3:020}.checkpoint.parquet", folder / "_delta_log")
    commit(folder, {"commitInfo": {}})
    log = CollectionLog(str(folder))
    log.ensure_inside()
    with pytest.raises(OutsideError):
        log.ensure_inside(1)


def test_nobody_follows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = table(tmp_path / "t")
    parquet.write_table(pa.table({"id": [42]}), tmp_path / "secret.parquet")
    size = (tmp_path / "secret.parquet").stat().st_size
    commit(folder, {"add": file("../secret.parquet", size=size)})
    for read in (small_files, open_table, foreign_query.open_table, lambda path: TableSnapshot(path, 2)):
        with pytest.raises(OutsideError):
            read(str(folder))
    with pytest.raises(OutsideError):  # before anything of Spark is called
        vacuum(None, str(folder), 1.0)  # type: ignore[arg-type]
    source = on_table(folder, ORDERS, {"on_change": "fail"}, "id BIGINT")
    sink = on_table(folder, Address.parse("sink.out"), {"mode": "append"}, "id BIGINT")
    for probe in (lambda: DeltaSource().probe(source), lambda: DeltaSink().probe(sink, ())):
        with pytest.raises(OutsideError):
            probe()
    monkeypatch.setattr("mzplan.connectors.checks.resolve", lambda *_: source)
    found = check_description(source.description, None, directory="/")  # type: ignore[arg-type]
    assert [(one.code, one.address) for one in found.diagnostics] == [("MZ283", ORDERS)]


def test_commands_say_it(tmp_path: Path) -> None:
    shop = Shop(tmp_path / "shop")
    shop.steps(2)
    commit(shop.source.collection, {"commitInfo": {}}, {"add": file("/etc/x.parquet")})
    for command in (("verify", "source.orders"), ("snapshot", "source.orders")):
        ran = shop.run(*command)
        assert ran.code == 1 and "MZ283" in ran.err and "/etc/x.parquet" in ran.err, ran


@pytest.mark.parametrize(
    "name",
    [
        f"{5:020}.checkpoint.another.json",
        "5.checkpoint.parquet",
        "5.json",
        f"{5:020}.checkpoint.1.1.parquet",
    ],
)
def test_entries_that_are_not_read_here_are_refused(tmp_path: Path, name: str) -> None:
    folder = table(tmp_path / "t")
    (folder / "_delta_log" / name).write_bytes(b"{}")
    log = CollectionLog(str(folder))
    for look in (log.ensure_inside, log.computing, log.features, log.partitions):
        with pytest.raises(OSError, match=r"is damaged: .* that mzplan does not read"):
            look()
    with pytest.raises(MzplanError) as caught:
        require_inside(log, ORDERS, own=False)
    assert caught.value.diagnostics[0].code == "MZ063"


EVIL = {"metaData": {"configuration": {"delta.constraints.evil": "f()"}, "schemaString": '{"fields": []}'}}


@pytest.mark.parametrize(
    "line",
    [
        json.dumps({"commitInfo": {}, **EVIL}),
        '{"metaData": {"schemaString": "{}", "schemaString": "{\\"fields\\":[]}"}}',
        "\n".join([json.dumps(EVIL)] * 2),
        json.dumps(EVIL).encode("utf-16").decode("latin-1"),
    ],
)
def test_what_two_readers_take_for_two_things_is_damaged(tmp_path: Path, line: str) -> None:
    folder = table(tmp_path / "t")
    (folder / "_delta_log" / f"{2:020}.json").write_bytes(line.encode("latin-1"))
    with pytest.raises(OSError, match="is damaged"):
        CollectionLog(str(folder)).computing()


def test_what_is_noted_beside_the_log_hides_nothing(tmp_path: Path) -> None:
    """A note that names an older checkpoint, a checksum that says something else, columns in other case."""
    folder = table(tmp_path / "t")
    DeltaTable(folder).create_checkpoint()
    log = folder / "_delta_log"
    commit(folder, EVIL)
    assert CollectionLog(str(folder)).computing() == ("delta.constraints.evil",)
    schema = DeltaTable(tmp_path / "t", version=1).schema().to_json()
    plain = {"configuration": {}, "schemaString": schema, "partitionColumns": []}
    commit(folder, {"metaData": plain})
    assert CollectionLog(str(folder)).computing() == ()
    (log / f"{3:020}.crc").write_text(json.dumps({"metadata": plain, "protocol": {"minReaderVersion": 1}}))
    assert CollectionLog(str(folder)).computing() == ()
    (log / f"{3:020}.crc").write_text(json.dumps({"metadata": EVIL["metaData"]}))
    with pytest.raises(OSError, match=r"3\.crc is damaged: it has another metaData"):
        CollectionLog(str(folder)).computing()
    (log / f"{3:020}.crc").unlink()
    at = log / f"{1:020}.checkpoint.parquet"
    rows = parquet.read_table(at)
    parquet.write_table(rows.rename_columns([n.upper() if n == "add" else n for n in rows.column_names]), at)
    with pytest.raises(OSError, match="is no column of a checkpoint"):
        CollectionLog(str(folder)).ensure_inside()


@pytest.mark.parametrize(
    ("planted", "code"),
    [
        ("commit", "MZ283"),
        ("checkpoint", "MZ283"),
        ("constraint", "MZ282"),
        ("link in the log", "MZ063"),
        ("link for a file", "MZ063"),
        ("pipe", "MZ063"),
        ("damage", "MZ063"),
    ],
)
def test_a_table_of_dead_letters_is_looked_at_before_spark_reads_it(
    tmp_path: Path, planted: str, code: str
) -> None:
    letters = tmp_path / "letters"
    require_own(CollectionLog(str(letters)), ORDERS)  # it is yet to be made
    folder = table(letters)
    require_own(CollectionLog(str(folder)), ORDERS)
    log = folder / "_delta_log"
    match planted:
        case "commit" | "checkpoint":
            commit(folder, {"add": file("file:///etc/x.parquet")})
            if planted == "checkpoint":
                DeltaTable(folder).create_checkpoint()
                (log / f"{2:020}.json").unlink()
        case "constraint":
            commit(folder, EVIL)
        case "link in the log":
            (tmp_path / "else.json").write_text("{}")
            (log / f"{2:020}.json").symlink_to(tmp_path / "else.json")
        case "link for a file":
            (folder / "other.parquet").symlink_to("/etc/passwd")
        case "pipe":
            os.mkfifo(log / "pipe")
        case "damage":
            (log / f"{2:020}.json").write_text("[")
    with pytest.raises(MzplanError) as caught:
        require_own(CollectionLog(str(folder)), ORDERS)
    (told,) = caught.value.diagnostics
    assert (told.code, told.address) == (code, ORDERS) and str(folder) in f"{told.summary} {told.detail}"


def test_a_data_file_that_would_end_the_process_is_refused(tmp_path: Path) -> None:
    folder = table(tmp_path / "t")
    for data in folder.glob("*.parquet"):
        data.write_bytes(_nested_parquet(4000))
    with pytest.raises(OSError, match=r"parquet can't be read"):
        list(TableSnapshot(str(folder), 1).rows()[1])
    for data in folder.glob("*.parquet"):
        data.unlink()
    with pytest.raises((GoneError, OSError), match=r"missing|gone"):
        list(TableSnapshot(str(folder), 1).rows()[1])


def test_the_last_step_bears_a_damaged_checkpoint_and_no_other_damage(tmp_path: Path) -> None:
    folder = table(tmp_path / "t")
    DeltaTable(folder).create_checkpoint()
    (folder / "_delta_log" / f"{0:020}.json").unlink()
    (folder / "_delta_log" / f"{1:020}.checkpoint.parquet").write_bytes(b"PAR1")
    assert last_step(CollectionLog(str(folder)), "q") == (1, -1)
    (folder / "_delta_log" / f"{1:020}.json").write_text("7")
    with pytest.raises(OSError, match="is damaged"):
        last_step(CollectionLog(str(folder)), "q")
