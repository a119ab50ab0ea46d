"""`import --checkpoint --table`: adopted and refused queries, and no leftovers after a failure."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mzplan.warehouse import foreign_query
from tests.left_by_hand import QUERY, leave
from tests.unit.cli_runs import Ran, mzplan, write

PIPELINE = """\
connections:
  k: {type: kafka, brokers: ["a:9092"]}
  here: {type: files, path: .}
sources:
  orders: {connection: k, topic: orders, format: {type: json, schema: "id BIGINT, amount DOUBLE"}}
  inbox: {connection: here, path: inbox, format: {type: json, schema: "id BIGINT, amount DOUBLE"}}
  typed: {connection: k, topic: orders, format: {type: json, schema: "id INT, amount DOUBLE, more STRING"}}
  keyed:
    {connection: k, topic: orders, format: {type: json, schema: "id BIGINT, amount DOUBLE"},
     envelope: {type: upsert, key: [id]}}
  raw: {type: local, schema: "id BIGINT"}
sinks:
  out: {type: console, from: orders}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = write(tmp_path / "p")
    (folder / "pipeline.yaml").write_text(PIPELINE)
    return folder


def places(left: Path) -> tuple[str, ...]:
    return ("--checkpoint", str(left / "checkpoint"), "--table", str(left / "table"))


def import_(folder: Path, left: Path, address: str = "source.orders", *more: str) -> Ran:
    return mzplan(folder, "import", address, *places(left), "--auto-approve", "--json", *more)


def stored(folder: Path) -> list[Path]:
    return list((folder / "warehouse").rglob("g1")) if (folder / "warehouse").exists() else []


def test_an_adopted_query_continues_from_a_copy(folder: Path, tmp_path: Path) -> None:
    left = leave(tmp_path / "left")
    ran = import_(folder, left)
    assert ran.code == 0, ran
    (change,) = (c for c in ran.json()["changes"] if c["address"] == "source.orders")
    assert change["status"] == "applied" and "after micro-batch 1" in change["reason"]
    record = mzplan(folder, "state", "show", "source.orders").json()
    checkpoint = folder / "warehouse" / "checkpoints" / record["id"] / "g1" / "spark"
    assert json.loads((checkpoint / "metadata").read_text())["id"] == QUERY
    assert (checkpoint / "offsets" / "1").read_text() == (left / "checkpoint/offsets/1").read_text()
    table = folder / "warehouse" / "collections" / record["id"] / "g1"
    (data,), (original,) = table.glob("*.parquet"), (left / "table").glob("*.parquet")
    assert data.stat().st_ino == original.stat().st_ino  # no bytes were copied
    logs = [path / "_delta_log" / f"{0:020}.json" for path in (table, left / "table")]
    assert logs[0].stat().st_ino != logs[1].stat().st_ino
    sink = import_(folder, left, "sink.out")
    assert sink.code == 7 and "sources of the types kafka and files" in sink.error()["detail"]


def topics(offsets: str) -> dict[str, Any]:
    """Leave a query that has read these offsets in one micro-batch."""
    return {"offsets": (offsets,), "done": 0, "has": 0}


@pytest.mark.parametrize(
    ("left", "address", "reason"),
    [
        (topics('{"logOffset":3}'), "source.orders", "doesn't read Kafka"),
        (topics("-"), "source.orders", "doesn't read a kafka upstream"),
        (topics('{"orders":{"0":1}}\n{"x":{"0":1}}'), "source.orders", "2 upstreams"),
        ({}, "source.inbox", "doesn't read a folder"),
        ({"offsets": ()}, "source.orders", "not read anything yet"),
        ({"writer": "another"}, "source.orders", "was not written by this query"),
        ({"done": 1, "has": 0}, "source.orders", "they don't belong together"),
        ({}, "source.typed", "column id is BIGINT, and the source declares INT"),
        ({}, "source.typed", "has no column more"),
        ({}, "source.keyed", "keeps the latest row of each key"),
        (None, "source.orders", "isn't a streaming query's checkpoint"),
        ({}, "source.raw", "sources of the types kafka and files"),
    ],
)
def test_a_query_that_cannot_be_adopted_is_refused_and_nothing_is_left(
    folder: Path, tmp_path: Path, left: dict[str, Any] | None, address: str, reason: str
) -> None:
    ran = import_(folder, tmp_path / "left" if left is None else leave(tmp_path / "left", **left), address)
    assert ran.code == 7 and {d["code"] for d in ran.json()["diagnostics"]} == {"MZ165"}, ran
    assert reason in " ".join(d["detail"] for d in ran.json()["diagnostics"])
    assert stored(folder) == [] and not (folder / "state" / "mzplan.state.json").exists()


def test_all_reasons_are_listed_without_control_characters(folder: Path, tmp_path: Path) -> None:
    left = leave(tmp_path / "left", **topics('{"a\\u001b[31m":{"0":1}}'), columns={"x": ["a"]}, writer="w")
    assert len(import_(folder, left).json()["diagnostics"]) == 5
    ran = mzplan(folder, "import", "source.orders", *places(left), "--auto-approve")
    assert ran.code == 7 and "\x1b" not in ran.out + ran.err and "[31m" in ran.out + ran.err


def test_a_query_that_has_read_elsewhere(folder: Path, tmp_path: Path) -> None:
    files = leave(tmp_path / "files", ('{"logOffset":0}',), done=0, has=0)
    entry = files / "checkpoint" / "sources" / "0" / "0"
    entry.write_text(f'v1\n{{"path":"{(folder / "inbox" / "1.json").as_uri()}","timestamp":1,"batchId":0}}\n')
    elsewhere = files / "checkpoint" / "sources" / "0" / "1"
    elsewhere.write_text('v1\n{"path":"file:///other/2.json","timestamp":1,"batchId":1}\n')
    assert "file:///other/2.json" in import_(folder, files, "source.inbox").error()["detail"]
    elsewhere.unlink()
    assert import_(folder, files, "source.inbox").code == 0


@pytest.mark.parametrize("ending", ["still running", "interrupted"])
def test_a_copy_that_was_disturbed_is_removed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    left = leave(tmp_path / "left")
    copy = foreign_query.copy_folder

    def disturbed(from_: str, to: str) -> None:
        copy(from_, to)
        if ending == "interrupted":
            raise KeyboardInterrupt
        (left / "checkpoint/offsets/2").write_text((left / "checkpoint/offsets/1").read_text())

    monkeypatch.setattr(foreign_query, "copy_folder", disturbed)
    ran = import_(folder, left)
    code, reason = (130, "nothing was changed") if ending == "interrupted" else (7, "still running")
    assert ran.code == code and reason in ran.error()["detail"].lower(), ran
    assert stored(folder) == []


def test_damage_and_a_copy_that_fails_leave_nothing(folder: Path, tmp_path: Path) -> None:
    left = leave(tmp_path / "left")
    for name, data in (("metadata", b"{"), ("metadata", b"\xff\xfe"), ("offsets/1", b"v9\n\n")):
        whole = (left / "checkpoint" / name).read_bytes()
        (left / "checkpoint" / name).write_bytes(data)
        assert import_(folder, left).code == 7
        (left / "checkpoint" / name).write_bytes(whole)
    shutil.rmtree(left / "table" / "_delta_log")
    assert "is not a Delta table" in import_(folder, left).error()["detail"]
    assert stored(folder) == []
    (folder / "warehouse").mkdir(exist_ok=True)
    (folder / "warehouse" / "checkpoints").write_text("in the way")
    ran = import_(folder, leave(tmp_path / "whole"))
    assert ran.code == 7 and "Not a directory" in ran.error()["detail"], ran
    assert stored(folder) == []


def test_arguments_are_checked_and_paths_are_relative_to_the_caller(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = leave(tmp_path / "left")
    assert mzplan(folder, "import", "source.orders", "--checkpoint", "x").code == 64
    assert import_(folder, left, "source.orders", "--id", "abc").code == 64
    assert import_(folder, left, "source.nobody").code == 64
    monkeypatch.chdir(left)  # paths are as seen from here
    where = ("--checkpoint", "checkpoint", "--table", f".{os.sep}table")
    assert mzplan(folder, "import", "source.orders", *where, "--auto-approve").code == 0


@pytest.mark.parametrize("point", ["apply.validated", "apply.committed"])
def test_a_killed_import_is_finished_or_repeated(folder: Path, tmp_path: Path, point: str) -> None:
    left = leave(tmp_path / "left")
    command = [sys.executable, "-m", "mzplan", "-C", str(folder), "import", "source.orders", *places(left)]
    killed = subprocess.run(
        [*command, "--auto-approve"], env={**os.environ, "MZPLAN_FAILPOINT": point}, capture_output=True
    )
    assert killed.returncode == -signal.SIGKILL
    ran = import_(folder, left)
    assert ran.code == (64 if point == "apply.committed" else 0), ran  # it is in the state already
    id_ = mzplan(folder, "state", "show", "source.orders").json()["id"]
    for kind in ("checkpoints", "collections"):
        assert (folder / "warehouse" / kind / id_ / "g1").is_dir()
    assert (left / "checkpoint" / "metadata").exists() and (left / "table" / "_delta_log").is_dir()
