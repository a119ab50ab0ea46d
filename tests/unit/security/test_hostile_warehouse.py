"""Pipes in a state, hostile listings of an object store, damaged tables and steps of a local source."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import fs, parquet

from mzplan.connectors.delta.table import last_step, open_table
from mzplan.connectors.local.steps import LocalSteps
from mzplan.warehouse import copying, foreign_query
from mzplan.warehouse.collection_log import CollectionLog
from mzplan.warehouse.damage import GoneError
from mzplan.warehouse.rows.snapshot import TableSnapshot, small_files
from tests.unit.cli_runs import apply, mzplan, write


@pytest.mark.timeout(300)  # a command that waits for a pipe never ends
def test_pipes_in_a_state_are_named(tmp_path: Path) -> None:
    """A checkout may bring a state along."""
    whole = write(tmp_path / "whole")
    apply(whole)
    names = sorted(path.relative_to(whole) for path in (whole / "state").rglob("*") if path.is_file())
    for number, name in enumerate(names):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        (folder / name).unlink()
        os.mkfifo(folder / name)
        for command in (["status"], ["plan"], ["history"], ["pause", "sink.out", "--wait", "1s"]):
            ran = mzplan(folder, *command)
            assert ran.code == 0 or name.name in ran.err, (name, command, ran)


class Bucket:
    """An object store with any names, and any listed sizes."""

    def __init__(self, objects: dict[str, bytes], sizes: dict[str, int] | None = None):
        self.objects, self.sizes = objects, sizes or {}
        self.silent = threading.Event()

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        sizes = {**{name: len(data) for name, data in self.objects.items()}, **self.sizes}
        return [fs.FileInfo(name, fs.FileType.File, size=size) for name, size in sizes.items()]

    def normalize_path(self, path: str) -> str:
        return path

    def open_input_stream(self, path: str) -> pa.NativeFile:
        if self.silent.is_set():
            threading.Event().wait()
        return pa.BufferReader(self.objects[path])

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        raise AssertionError(path)

    def at(self, place: str) -> tuple[Any, str]:
        handler = type("Handler", (fs.FileSystemHandler,), dict.fromkeys(_ABSTRACT, _refused))
        for name in ("get_file_info_selector", "normalize_path", "open_input_stream", "open_output_stream"):
            setattr(handler, name, staticmethod(getattr(self, name)))
        return fs.PyFileSystem(handler()), place.partition("://")[2]


_ABSTRACT = fs.FileSystemHandler.__abstractmethods__


def _refused(*_: object) -> None:
    raise AssertionError("not asked for")


@pytest.mark.parametrize("name", ["offsets/../../../../victim.txt", "..", "elsewhere"])
def test_listed_names_can_not_lead_out_of_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    place = "bucket/old/checkpoint"
    key = "bucket/other/victim.txt" if name == "elsewhere" else f"{place}/{name}"
    bucket = Bucket({f"{place}/metadata": b"{}", key: b"overwritten"})
    monkeypatch.setattr("mzplan.warehouse.folder.remote", bucket.at)
    for target in (str(tmp_path / "warehouse/checkpoints/a/g1/spark"), "gs://mine/warehouse"):
        with pytest.raises(OSError, match="leads out of it"):
            copying.copy_folder(f"gs://{place}", target)
    assert victim.read_text() == "precious"
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path != victim]


def test_listed_objects_are_copied_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes the name of a compressed file, and a folder that is named after a value."""
    place = "bucket/old/table"
    objects = {name: name.encode() * 3 for name in ("_delta_log/0.json", "day=a%20b/x.parquet", "x.json.gz")}
    bucket = Bucket({f"{place}/{name}": data for name, data in objects.items()})
    monkeypatch.setattr("mzplan.warehouse.folder.remote", bucket.at)
    copying.copy_folder(f"gs://{place}", str(tmp_path / "t"))
    copied = {str(path.relative_to(tmp_path / "t")): path for path in (tmp_path / "t").rglob("*.*")}
    assert {name: path.read_bytes() for name, path in copied.items() if path.is_file()} == objects


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ({"a": 100}, "doesn't have the 100 bytes"),
        ({"a.parquet": 1 << 62}, "more than the disk has room for"),
    ],
)
def test_wrong_listed_sizes_stop_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int], why: str
) -> None:
    bucket = Bucket({f"b/{name}": b"0123456789" for name in sizes}, {f"b/{n}": s for n, s in sizes.items()})
    monkeypatch.setattr("mzplan.warehouse.folder.remote", bucket.at)
    with pytest.raises(OSError, match=why):
        copying.copy_folder("gs://b", str(tmp_path / "t"))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def copy_and_be_interrupted(folder: Path) -> None:
    """Copy from a store that never answers, until a signal comes."""
    bucket = Bucket({"b/a": b"a"})
    bucket.silent.set()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where tests run in the background
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(copying, "_END_S", 0.1)
        patched.setattr("mzplan.warehouse.folder.remote", bucket.at)
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        copying.copy_folder("gs://b", str(folder))


def test_a_copy_from_a_silent_store_can_be_interrupted(tmp_path: Path) -> None:
    """In a process of its own, because other tests leave handlers of signals behind."""
    code = (
        "import sys; from pathlib import Path; from tests.unit.security import test_hostile_warehouse as t\n"
    )
    code += (
        "try: t.copy_and_be_interrupted(Path(sys.argv[1]))\nexcept KeyboardInterrupt: print('interrupted')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "t"], capture_output=True, text=True, timeout=60
    )
    assert ran.stdout == "interrupted\n", ran.stderr


@pytest.mark.timeout(120)
def test_silent_store_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = Bucket({"b/a": b"a"})
    bucket.silent.set()
    monkeypatch.setattr("mzplan.warehouse.folder.remote", bucket.at)
    monkeypatch.setattr(copying, "_END_S", 0.1)
    with monkeypatch.context() as patched, pytest.raises(TimeoutError, match="no answer within 1 s"):
        patched.setattr(copying, "_NO_PROGRESS_S", 1.0)
        copying.copy_folder("gs://b", str(tmp_path / "t"))


def damaged_step(damage: str) -> bytes:
    texts = pa.array(["a" * 4000, "b", None])
    told = {"mzplan.id": "x", "mzplan.rows": "3", "mzplan.digest": "1:0000000000000000"}
    table = pa.table({"k": texts}).replace_schema_metadata({} if damage == "metadata" else told)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    if damage == "offsets":  # one text would end after the end of the file, the next before it begins
        offsets = struct.Struct("<4i").pack
        return data.replace(offsets(0, 4000, 4001, 4001), offsets(0, 4000, 400_000, 4001))
    return data.replace(b"aaab", b"aa\xffb") if damage == "text" else data


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("offsets", "offset"),
        ("text", "UTF8"),
        ("metadata", "doesn't record the number or the digest"),
        ("digest", "its rows have the digest 1:[0-9a-f]{16}, but the appended rows had 1:0000000000000000"),
    ],
)
def test_a_damaged_step_of_a_local_source_is_refused(tmp_path: Path, damage: str, why: str) -> None:
    """Without the check, wrong offsets would end the worker or the JVM."""
    (tmp_path / f"{0:020}-{'0' * 32}.arrow").write_bytes(damaged_step(damage))
    with pytest.raises(OSError, match=f"the file of step 0 in .* is damaged: .*{why}"):
        LocalSteps(str(tmp_path)).batches(0)
    if damage == "metadata":
        with pytest.raises(OSError, match="arrow is damaged: it doesn't record"):
            LocalSteps(str(tmp_path)).rows(range(1))


def table(folder: Path) -> Path:
    for number in range(2):
        write_deltalake(str(folder), pa.table({"id": [number]}), mode="append")
    return folder


@pytest.mark.parametrize("named", ["", "uuid.json", "uuid.parquet"])
def test_checkpoint_with_sidecars(tmp_path: Path, named: str) -> None:
    """In Delta's V2 checkpoints, separate files list the table's files."""
    folder = table(tmp_path / "t")
    DeltaTable(folder).create_checkpoint()
    log, before = folder / "_delta_log", CollectionLog(str(folder))
    classic = log / f"{1:020}.checkpoint.parquet"
    stem = f"{classic.stem}.80a083e8-7026-4e79-81be-64bd76c43a11" if named else classic.stem
    rows, schema = parquet.read_table(classic).to_pylist(), parquet.read_schema(classic)
    files = [row for row in rows if row["add"]]
    (log / "_sidecars").mkdir()

    of_files = [{"add": row["add"]} for row in files]
    parquet.write_table(pa.Table.from_pylist(of_files), log / "_sidecars" / "s.parquet")
    kept = [row for row in rows if not row["add"]]
    if named.endswith("json"):
        kept = [{kind: value for kind, value in row.items() if value} for row in kept]
        text = "".join(json.dumps(row) + "\n" for row in [*kept, {"sidecar": {"path": "s.parquet"}}])
        (log / f"{stem}.json").write_text(text)
    else:
        with_sidecar = [*kept, {"sidecar": {"path": "s.parquet", "sizeInBytes": 1, "modificationTime": 1}}]
        parquet.write_table(pa.Table.from_pylist(with_sidecar, schema), log / f"{stem}.parquet")
    seen = before.partitions(), before.features(), before.table_id()
    if named:
        classic.unlink()
    looked = CollectionLog(str(folder))
    assert (looked.partitions(), looked.features(), looked.table_id()) == seen and None not in seen


def test_last_step_ignores_only_a_damaged_checkpoint(tmp_path: Path) -> None:
    folder = table(tmp_path / "t")
    DeltaTable(folder).create_checkpoint()
    (folder / "_delta_log" / f"{0:020}.json").unlink()
    (folder / "_delta_log" / f"{1:020}.checkpoint.parquet").write_bytes(b"PAR1")
    assert last_step(CollectionLog(str(folder)), "q") == (1, -1)
    (folder / "_delta_log" / f"{1:020}.json").write_text("7")
    with pytest.raises(OSError, match="is damaged"):
        last_step(CollectionLog(str(folder)), "q")


def test_truncated_files_are_clear_errors(tmp_path: Path) -> None:
    """Truncated logs, checkpoints and data files neither end the process nor look like a defect."""
    whole = table(tmp_path / "whole")
    DeltaTable(whole).create_checkpoint()
    write_deltalake(str(whole), pa.table({"id": [7]}), mode="append")
    for number, file in enumerate(path for path in sorted(whole.rglob("*")) if path.is_file()):
        folder = tmp_path / str(number)
        shutil.copytree(whole, folder)
        data = file.read_bytes()
        (folder / file.relative_to(whole)).write_bytes(data[: len(data) // 2])
        for read in (
            small_files,
            open_table,
            foreign_query.open_table,
            lambda path: list(TableSnapshot(path, 2).rows()[1]),
            lambda path: CollectionLog(path).partitions(),
            lambda path: CollectionLog(path).last_transaction("q"),
        ):
            with suppress(OSError, GoneError, foreign_query.NotAdoptableError):
                read(str(folder))
