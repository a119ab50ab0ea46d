"""Small parts of the connectors: select without Spark, paths, memos."""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from mzplan.connectors.api.outputs import outputs_without_spark
from mzplan.connectors.api.probes import Memo, fingerprint
from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.files.source import FilesSource
from mzplan.connectors.frames.types import ddl
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.columns import longest, parse_columns
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.paths import absolute, local_path
from tests.unit.connectors.queries import described, on_table

QUERY = ResolvedQuery(
    description=described("sink.x", "postgres", {}),
    body={},
    connection=None,
    columns=parse_columns("id BIGINT, amount DECIMAL(10,2), `odd name` STRING"),
    directory=".",
)


@pytest.mark.parametrize(
    ("item", "output"),
    [
        ("id", Output(name="id", type="BIGINT")),
        ("ID", Output(name="id", type="BIGINT")),
        ("id AS order_id", Output(name="order_id", type="BIGINT")),
        ("`odd name` as `n``m`", Output(name="n`m", type="STRING")),
        ("amount * 1.2 AS gross", Output(name="gross", type="DECIMAL(13,3)")),
        ("CAST(id AS INT) AS small", Output(name="small", type="INT")),
        ("upper(`odd name`) AS up", Output(name="up", type="STRING")),
        ("`odd name` + 1 AS more", Output(name="more", type=None)),
    ],
)
def test_select_without_spark(item: str, output: Output) -> None:
    assert outputs_without_spark(replace(QUERY, body={"select": [item]})) == (output,)


def test_without_select_a_sink_writes_all_columns() -> None:
    names = ["id", "amount", "odd name"]
    for select, expected in ({}, names), ({"select": ["*", "1 AS one"]}, [*names, "one"]):
        assert [output.name for output in outputs_without_spark(replace(QUERY, body=select))] == expected


def test_an_item_that_cannot_be_parsed_is_left_to_spark() -> None:
    assert outputs_without_spark(replace(QUERY, body={"select": ["((", "id"]}))[-1].name == "id"


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        (("in",), "/project/in"),
        (("./in", "orders/"), "/project/in/orders"),
        (("/data", "orders"), "/data/orders"),
        (("s3://bucket/base/", "orders"), "s3://bucket/base/orders"),
        (("s3://bucket", "./orders/"), "s3://bucket/orders"),
        (("in", "file:///data/x"), "file:///data/x"),
    ],
)
def test_absolute_paths(parts: tuple[str, ...], path: str) -> None:
    assert absolute("/project", *parts) == path


def test_local_paths() -> None:
    assert str(local_path("/a b")) == "/a b"
    assert str(local_path("file:///a%20b")) == "/a b"
    assert local_path("s3://bucket/a") is None


def test_columns_for_spark() -> None:
    columns = parse_columns("a VARCHAR(5) NOT NULL, s STRUCT<x: CHAR(2) NOT NULL>")
    assert ddl(columns) == "`a` STRING, `s` STRUCT<x: STRING>"
    assert [longest(c.type) for c in columns] == [5, None]


def test_threads_share_a_memo_until_it_is_dropped_or_old() -> None:
    memo: Memo[int] = Memo(10)
    made: list[int] = []

    def make() -> int:
        time.sleep(0.05)
        made.append(1)
        return len(made)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: memo.get("k", make), range(8))) == [1] * 8
    memo.drop("k")
    assert memo.get("k", make) == 2
    old: Memo[int] = Memo(0.01)
    old.get("k", lambda: 1)
    time.sleep(0.02)
    assert old.get("k", lambda: 2) == 2


def test_a_failure_is_not_remembered() -> None:
    memo: Memo[float] = Memo(10)
    with pytest.raises(ZeroDivisionError):
        memo.get("k", lambda: 1 / 0)
    assert memo.get("k", lambda: 3) == 3


def test_a_fingerprint_holds_no_secret() -> None:
    assert "s3cret" not in fingerprint({"password": "s3cret"})
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})


def test_a_type_without_a_connector_is_an_error() -> None:
    connectors = Connectors()
    with pytest.raises(MzplanError, match="MZ063"):
        connectors.sink("nonsense")
    assert connectors.sink("console") is connectors.sink("console")


def test_files_that_spark_hides_are_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    query = on_table(folder, Address("source", "s"), {}, "id BIGINT")
    for name in ("plain.json", "_SUCCESS", ".plain.json.crc"):
        (folder / name).write_text("{}")
    assert FilesSource().probe(query).diagnostics == ()
    for name in ("_late.json", ".x.csv"):
        (folder / name).write_text("{}")
    (found,) = FilesSource().probe(query).diagnostics
    assert (found.code, found.severity) == ("MZ214", "warning")
    assert ": .x.csv, _late.json. Spark" in found.detail


def test_a_folder_with_other_files_of_the_same_names_is_another_upstream(tmp_path: Path) -> None:
    """Spark reads no name twice, so it would silently skip the rows of the new files."""
    folder, checkpoint = tmp_path / "in", Checkpoint.of(tmp_path.as_uri(), "id", 1)
    folder.mkdir()
    files = [folder / f"{name}.json" for name in ("a b", "b", "c")]
    for file in files:
        file.write_text("{}")
    log = Path(str(local_path(checkpoint.spark))) / "sources" / "0"
    log.mkdir(parents=True)
    entries = [
        {"path": file.as_uri(), "timestamp": file.stat().st_mtime_ns // 1_000_000, "batchId": 0}
        for file in files
    ]
    (log / "0").write_text("\n".join(["v1", *map(json.dumps, entries)]))
    query = replace(on_table(folder, Address("source", "s"), {}, "id BIGINT"), checkpoint=checkpoint)

    def found() -> str | None:
        diagnostic = FilesSource().check_position(query, '{"logOffset": 0}')
        return f"{diagnostic.kind}: {diagnostic.detail}" if diagnostic else None

    assert found() is None
    later = time.time() + 60
    os.utime(files[0], (later, later))
    assert found() is None  # one file was touched: the folder is the same
    files[1].unlink()
    os.utime(files[2], (later, later))
    assert "another-upstream" in str(found()) and ": c.json, a b.json." in str(found())
    for file in folder.iterdir():
        file.unlink()
    (folder / "d.json").write_text("{}")
    assert found() is None  # files that were read may be deleted, and others come
    (log / "0").write_text("v1\nnonsense")
    assert found() is None
