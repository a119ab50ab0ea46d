"""Pipes, folders, devices and huge files in a warehouse or a state: nothing waits, or reads for ever."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import fs

from mzplan.connectors.delta.table import open_table
from mzplan.connectors.local import step_files
from mzplan.connectors.local.endpoint import LocalSteps
from mzplan.host.files import UnfitError
from mzplan.host.guarded import GuardedFolder
from mzplan.model.address import Address
from mzplan.warehouse import copying, foreign_query
from mzplan.warehouse.checkpoint_log import CheckpointLog
from mzplan.warehouse.content_hash import content_hash
from mzplan.warehouse.folder import ensure_readable_log, open_folder, remote
from mzplan.warehouse.snapshot import TableSnapshot, small_files
from mzplan.warehouse.step_history import StepHistory
from mzplan.warehouse.storage import missing_storage
from tests.left_by_hand import leave
from tests.stored_steps import StoredSource, named
from tests.unit.cli_runs import Ran, mzplan
from tests.unit.features.steps.test_cli_steps import Shop

SECONDS = 60
HUGE = 1 << 42  # bytes, none of which is on the disk
READS = (
    ("steps", "source.orders"),
    ("steps", "sink.out"),
    ("verify", "source.orders"),
    ("snapshot", "source.orders"),
    ("snapshot", "source.orders", "--where", "id > 0"),
    ("expire", "source.orders", "--before", "1"),
    ("append", "source.orders", "--file", "mzplan.yaml"),
    ("status",),
    ("drift",),
    ("state", "gc"),
)
STATE = (
    ("status",),
    ("drift",),
    ("plan",),
    ("state", "list"),
    ("history",),
    ("pause", "sink.out", "--wait", "1s"),
)


@contextmanager
def limited() -> Iterator[None]:
    """What waits for a pipe, or reads for ever, fails."""

    def late(_: int, __: FrameType | None) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def replaced(path: Path, what: str) -> None:
    path.unlink()
    if what == "pipe":
        os.mkfifo(path)
    elif what == "link to a device":
        path.symlink_to("/dev/zero")
    elif what == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(HUGE)


KINDS = ("pipe", "huge file", "link to a device", "folder")


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = Shop(tmp_path_factory.mktemp("shop") / "p")
    made.steps(2)
    made.source.checkpoint.joinpath("metadata").write_text('{"id": "q"}')
    sink = made.sink("out")
    sink.run(2)
    sink.history.index.append(sink.history.tail(None))
    made.source.history.index.expire(0)
    assert mzplan(made.folder, "pause", "sink.few").code == 0
    return made.folder


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def looked(folder: Path, commands: tuple[tuple[str, ...], ...]) -> list[Ran]:
    with limited():
        return [mzplan(folder, *command) for command in commands]


@pytest.mark.parametrize("what", KINDS)
def test_what_lies_in_a_warehouse_is_named_and_not_waited_for(shop: Path, tmp_path: Path, what: str) -> None:
    plain = looked(shop, READS)
    assert sum(ran.code == 0 for ran in plain) >= 8, plain
    told = 0
    for number, name in enumerate(files_below(shop / "warehouse")):
        folder = tmp_path / str(number)
        shutil.copytree(shop, folder)
        replaced(folder / "warehouse" / name, what)
        for command, ran, before in zip(READS, looked(folder, READS), plain, strict=True):
            if ran.code != before.code and what != "folder":
                # By its name, or that of the folder which can't be used for it.
                place = Path(name)
                assert place.name in ran.err or place.parent.name in ran.err, (name, command, ran)
                told += 1
        shutil.rmtree(folder)
    assert told > 10 or what == "folder"


@pytest.mark.parametrize("what", KINDS)
def test_what_lies_in_a_state_is_named_and_not_waited_for(shop: Path, tmp_path: Path, what: str) -> None:
    plain = looked(shop, STATE[:-1])
    assert all(ran.code == 0 for ran in plain), plain
    for number, name in enumerate(files_below(shop / "state")):
        folder = tmp_path / str(number)
        shutil.copytree(shop, folder)
        replaced(folder / "state" / name, what)
        for command, ran in zip(STATE, looked(folder, STATE), strict=True):
            assert ran.code == 0 or Path(name).name in ran.err, (name, command, ran)
        shutil.rmtree(folder)


@pytest.mark.parametrize("what", KINDS)
def test_what_a_runner_reads_is_not_waited_for(tmp_path: Path, what: str) -> None:
    """Each is an OSError, which the runner reports, and goes on."""
    source = StoredSource(tmp_path / "warehouse")
    source.record(source.run(named(0, 2)), source.run(named(2, 4)))
    source.checkpoint.joinpath("metadata").write_text('{"id": "q"}')
    (source.checkpoint.parent / "begun.json").write_text("{}")
    warehouse, place = str(source.warehouse), source.place

    def read_all() -> None:
        history = StepHistory(warehouse, place)
        for read in (
            history.read,
            history.upper,
            history.log.query_id,
            history.errand_steps.all,
            lambda: small_files(str(source.collection)),
            lambda: list(history.collection.after(-1)),
        ):
            try:
                read()
            except OSError as problem:
                assert isinstance(problem, UnfitError) or what == "folder", problem
        missing_storage(warehouse, Address("source", "orders"), place, (Address("source", "orders"), *place))

    read_all()
    for name in files_below(source.warehouse):
        path = source.warehouse / name
        path.rename(tmp_path / "kept")
        path.write_bytes(b"")
        replaced(path, what)
        with limited():
            read_all()
        path.rmdir() if what == "folder" else path.unlink()
        (tmp_path / "kept").rename(path)


@pytest.mark.parametrize("what", KINDS)
def test_a_query_of_another_program_is_adopted_without_what_is_no_file(tmp_path: Path, what: str) -> None:
    leave(tmp_path / "left")
    for name in files_below(tmp_path / "left"):
        left = tmp_path / "copied"
        shutil.copytree(tmp_path / "left", left)
        if what == "huge file" and name.endswith(".parquet"):
            shutil.rmtree(left)
            continue  # rows are copied, or linked, however many they are
        replaced(left / name, what)
        with limited():
            try:
                found = foreign_query.look(str(left / "checkpoint"), str(left / "table"))
                foreign_query.copy(found, str(tmp_path / "warehouse"), "a")
            except (OSError, foreign_query.NotAdoptableError) as problem:
                assert Path(name).name in str(problem) or "metadata" in name or what == "folder", (
                    name,
                    problem,
                )
            else:
                assert what in ("folder", "huge file"), name
        shutil.rmtree(tmp_path / "warehouse", ignore_errors=True)
        shutil.rmtree(left)


class Bucket:
    """An object store that says whatever it likes: objects by name, and the sizes that it lists."""

    def __init__(self, objects: dict[str, bytes], sizes: dict[str, int] | None = None):
        self.objects, self.sizes = objects, sizes or {}
        self.silent = threading.Event()

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        return [
            fs.FileInfo(name, fs.FileType.File, size=self.sizes.get(name, len(data)))
            for name, data in self.objects.items()
        ]

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


@pytest.mark.parametrize("scheme", ["gs", "s3a", "abfs"])
@pytest.mark.parametrize(
    "name",
    [
        "../../../victim.txt",
        "offsets/../../../../victim.txt",
        "/victim.txt",
        "..",
        "a/..",
        "%2e%2e/victim.txt",
        "elsewhere",
    ],
)
def test_no_name_that_a_store_lists_leads_out_of_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str, name: str
) -> None:
    victim = tmp_path / "victim.txt"
    victim.write_text("precious")
    place = "bucket/old/checkpoint"
    key = "bucket/other/victim.txt" if name == "elsewhere" else f"{place}/{name}"
    bucket = Bucket({f"{place}/metadata": b"{}", key: b"overwritten"})
    monkeypatch.setattr("mzplan.warehouse.folder.remote", bucket.at)
    for target in (str(tmp_path / "warehouse/checkpoints/a/g1/spark"), "gs://mine/warehouse"):
        with pytest.raises(OSError, match="leads out of it"):
            copying.copy_folder(f"{scheme}://{place}", target)
    assert victim.read_text() == "precious"
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path != victim]


def test_what_a_store_lists_is_copied_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a name of something that is packed, and a folder that is named for a value."""
    place = "bucket/old/table"
    objects = {name: name.encode() * 3 for name in ("_delta_log/0.json", "day=a%20b/x.parquet", "x.json.gz")}
    monkeypatch.setattr(
        "mzplan.warehouse.folder.remote",
        Bucket({f"{place}/{name}": data for name, data in objects.items()}).at,
    )
    copying.copy_folder(f"gs://{place}", str(tmp_path / "t"))
    copied = {str(path.relative_to(tmp_path / "t")): path for path in (tmp_path / "t").rglob("*.*")}
    assert {name: path.read_bytes() for name, path in copied.items() if path.is_file()} == objects


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ({"a": 1}, "has not the 1 bytes"),
        ({"a": 100}, "has not the 100 bytes"),
        ({"a": HUGE}, "holds more than 256 MiB"),
        ({"a.parquet": 1 << 62}, "more than the disk has room for"),
    ],
)
def test_more_than_a_store_lists_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: dict[str, int], why: str
) -> None:
    bucket = Bucket({f"b/{name}": b"0123456789" for name in sizes}, {f"b/{n}": s for n, s in sizes.items()})
    monkeypatch.setattr("mzplan.warehouse.folder.remote", bucket.at)
    with pytest.raises(OSError, match=why):
        copying.copy_folder("gs://b", str(tmp_path / "t"))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_so_many_files_are_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mzplan.warehouse.folder.remote", Bucket({f"b/{n}": b"" for n in range(3)}).at)
    monkeypatch.setattr(copying, "_MOST_FILES", 2)
    with pytest.raises(OSError, match="more than 2 files"):
        copying.copy_folder("gs://b", str(tmp_path / "t"))


def test_a_store_that_falls_silent_is_given_up_and_a_signal_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Bucket({"b/a": b"a"})
    bucket.silent.set()
    monkeypatch.setattr("mzplan.warehouse.folder.remote", bucket.at)
    monkeypatch.setattr(copying, "_END_S", 0.1)
    with monkeypatch.context() as patched, pytest.raises(TimeoutError, match="no answer within 1 s"):
        patched.setattr(copying, "_SILENCE_S", 1.0)
        copying.copy_folder("gs://b", str(tmp_path / "t"))
    with limited(), pytest.raises(KeyboardInterrupt):
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        copying.copy_folder("gs://b", str(tmp_path / "t"))


def test_google_s_store_is_not_tried_for_a_quarter_of_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", "http://127.0.0.1:1")
    system, path = remote("gs://anonymous@bucket/a b")
    limit = system.__reduce__()[1][0]["retry_time_limit"]
    assert (limit.total_seconds(), path) == (15, "bucket/a b")


def test_more_than_a_file_may_have_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 1001)
    with pytest.raises(UnfitError, match="a holds more than 1,000 bytes; move it away"):
        open_folder(str(tmp_path)).read("a", 1000)


def _varint(number: int) -> bytes:
    found = b""
    while number > 0x7F:
        found, number = found + bytes([number & 0x7F | 0x80]), number >> 7
    return found + bytes([number])


def _nested_parquet(levels: int) -> bytes:
    """A file without rows whose one column lies in so many groups, in Parquet's (Thrift's compact) words."""

    def group(name: bytes, *, repeated: bool = False) -> bytes:
        there = b"\x35" + _varint(2) + b"\x18" if repeated else b"\x48"  # optional; then its name
        return there + _varint(len(name)) + name + b"\x15" + _varint(2) + b"\0"  # one child

    leaf = b"\x15" + _varint(2) + b"\x25" + _varint(2) + b"\x18\x01x\0"  # an optional INT32
    elements = [group(b"schema"), *(group(b"a", repeated=True) for _ in range(levels)), leaf]
    schema = b"\x19\xfc" + _varint(len(elements)) + b"".join(elements)
    footer = b"\x15\x02" + schema + b"\x16\0\x19\x0c\0"  # version 1, no rows, no row groups
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def test_a_checkpoint_that_would_end_the_process_is_refused(tmp_path: Path) -> None:
    """Delta-rs recurses into the schema of a checkpoint: at some thousand levels it overflows its stack."""
    import pyarrow as pa
    from deltalake import write_deltalake

    table = tmp_path / "table"
    write_deltalake(str(table), pa.table({"id": [1]}))
    log = table / "_delta_log"
    checkpoint = log / f"{0:020}.checkpoint.parquet"
    checkpoint.write_bytes(_nested_parquet(20))
    ensure_readable_log(str(table))
    checkpoint.write_bytes(_nested_parquet(4000))
    (log / "_last_checkpoint").write_text('{"version":0,"size":1}')
    for read in (small_files, open_table, foreign_query.open_table, lambda path: TableSnapshot(path, 0)):
        with pytest.raises(OSError, match=r"checkpoint\.parquet can't be read"):
            read(str(table))


def test_the_number_in_a_name_is_not_counted_down_from(tmp_path: Path) -> None:
    for folder in ("offsets", "commits"):
        (tmp_path / "spark" / folder).mkdir(parents=True)
        (tmp_path / "spark" / folder / "0").write_text('v1\n{"batchTimestampMs":1}\n{"a":1}')
    (tmp_path / "spark" / "commits" / str(10**12)).touch()
    with limited():
        assert CheckpointLog(str(tmp_path / "spark")).last_written() == 0


def test_folders_within_folders_are_an_error_of_storage(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        (tmp_path / "deep").mkdir()
        inner = os.open("deep", os.O_RDONLY, dir_fd=folder)
        for _ in range(1500):
            os.mkdir("d", dir_fd=inner)
            inner, outer = os.open("d", os.O_RDONLY, dir_fd=inner), inner
            os.close(outer)
        os.close(inner)
        with pytest.raises(OSError):
            GuardedFolder(tmp_path).remove("deep")
    finally:
        os.close(folder)
        subprocess.run(["rm", "-rf", str(tmp_path / "deep")], check=True)


def crafted_step(change: str) -> bytes:
    """A step's file, with a digest of no known kind, that says something else of its rows than is there."""
    texts = pa.array(["a" * 4000, "b", None])
    told = {"mzplan.id": "x", "mzplan.rows": "3", "mzplan.digest": "9:none"}
    if change == "known kind of digest":
        told["mzplan.digest"] = "1:0000000000000000"
    column = {"dictionary": texts.dictionary_encode(), "nulls": pa.nulls(3)}.get(change, texts)
    table = pa.table({"k": column}).replace_schema_metadata({} if change == "nothing recorded" else told)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    offsets = struct.pack("<4i", 0, 4000, 4001, 4001)
    if change == "offsets":  # of a text that goes on beyond the file, and one that ends before it begins
        assert data.count(offsets) == 1
        data = data.replace(offsets, struct.pack("<4i", 0, 4000, 400_000, 4001))
    if change == "text":
        data = data.replace(b"aaab", b"aa\xffb")
    return data


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("offsets", "offset"),
        ("text", "UTF8"),
        ("dictionary", "it has more in it than rows"),
        ("nulls", "no step has values of type null"),  # of which no number takes any space
        ("nothing recorded", "does not say how many rows"),
        ("digest", "its rows have the digest 1:[0-9a-f]{16}, and those that were appended 9:none"),
        ("known kind of digest", "those that were appended 1:0000000000000000"),
    ],
)
def test_a_crafted_step_of_a_local_source_is_refused_unread(tmp_path: Path, change: str, why: str) -> None:
    """Neither a worker nor the JVM is given offsets that lead out of the rows: it would end, or send what is
    beside them in memory."""
    (tmp_path / f"{0:020}-{'0' * 32}.arrow").write_bytes(crafted_step(change))
    with pytest.raises(OSError, match=f"the file of step 0 in .* is damaged: .*{why}"):
        LocalSteps(str(tmp_path)).batches(0)
    if change == "nothing recorded":
        with pytest.raises(OSError, match="arrow is damaged: it does not say"):
            LocalSteps(str(tmp_path)).rows(range(1))


@pytest.mark.parametrize("compression", ["zstd", "lz4", None])
def test_a_small_step_that_unpacks_to_gigabytes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str | None
) -> None:
    """Before it is unpacked; also where a file lists the same batch again and again."""
    monkeypatch.setattr(step_files, "_UNPACKED", 1 << 20)
    monkeypatch.setattr(step_files, "_RATIO", 2)
    zeros = pa.table({"id": pa.array([0] * 100_000)})
    told = {"mzplan.id": "x", "mzplan.rows": "200000", "mzplan.digest": str(content_hash([zeros, zeros]))}
    described = zeros.replace_schema_metadata(told)
    path = tmp_path / f"{0:020}-{'0' * 32}.arrow"
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(path, described.schema, options=options) as writer:
        writer.write_table(described)
        writer.write_table(described)
    steps = LocalSteps(str(tmp_path))
    if compression is None:  # as large as it is
        assert sum(batch.num_rows for batch in steps.batches(0)) == 200_000
        return
    with pytest.raises(OSError, match="would be unpacked to far more"):
        steps.batches(0)


def test_an_append_of_rows_that_are_all_the_same_is_no_small_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_files, "_UNPACKED", 1 << 20)
    steps = LocalSteps(str(tmp_path))
    for number, rows in enumerate((pa.table({"id": [0] * 500_000}), pa.table({"id": pa.array([], "int64")}))):
        steps.append(rows, f"a{number}")
        assert pa.Table.from_batches(steps.batches(number), rows.schema) == rows
