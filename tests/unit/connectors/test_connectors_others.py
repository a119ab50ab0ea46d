"""Small parts of the connectors: select without Spark, paths, memos."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from mzplan.connectors.api.outputs import outputs_without_spark
from mzplan.connectors.api.probes import Memo, fingerprint
from mzplan.connectors.api.queries import Output, ResolvedQuery
from mzplan.connectors.catalogue import Connectors
from mzplan.connectors.files.source import FilesSource
from mzplan.connectors.network.forwards import Forwards
from mzplan.connectors.network.ssh import Hop, TunnelError
from mzplan.model.address import Address
from mzplan.model.diagnostics import MzplanError
from mzplan.schema.columns import parse_columns
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.paths import absolute, local_path
from tests.support import eventually
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
        ("id AS order_id", Output(name="order_id", type="BIGINT")),
        ("`odd name` as `n``m`", Output(name="n`m", type="STRING")),
        ("amount * 1.2 AS gross", Output(name="gross", type="DECIMAL(13,3)")),
        ("upper(`odd name`) AS up", Output(name="up", type="STRING")),
        ("`odd name` + 1 AS more", Output(name="more", type=None)),
    ],
)
def test_select_without_spark(item: str, output: Output) -> None:
    assert outputs_without_spark(replace(QUERY, body={"select": [item]})) == (output,)
    for body in ({}, {"select": ["((", "*"]}):
        outputs = outputs_without_spark(replace(QUERY, body=body))
        assert [output.name for output in outputs][-3:] == ["id", "amount", "odd name"]


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        (("./in", "orders/"), "/project/in/orders"),
        (("/data", "orders"), "/data/orders"),
        (("s3://bucket/base/", "orders"), "s3://bucket/base/orders"),
        (("in", "file:///data/x"), "file:///data/x"),
    ],
)
def test_absolute_paths(parts: tuple[str, ...], path: str) -> None:
    assert absolute("/project", *parts) == path
    assert str(local_path("file:///a%20b")) == "/a b" and local_path("s3://bucket/a") is None


def test_a_memo_forgets_failures_and_old_answers() -> None:
    memo: Memo[float] = Memo(0.05)
    with pytest.raises(ZeroDivisionError):
        memo.get("k", lambda: 1 / 0)
    assert memo.get("k", lambda: 3) == memo.get("k", lambda: 4) == 3
    time.sleep(0.06)
    assert memo.get("k", lambda: 5) == 5


def test_a_type_without_a_connector_is_an_error() -> None:
    with pytest.raises(MzplanError, match="MZ063"):
        Connectors().sink("nonsense")


def test_a_fingerprint_holds_no_secret() -> None:
    assert "s3cret" not in fingerprint({"password": "s3cret"})
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})


def test_files_that_spark_hides_are_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    query = on_table(folder, Address("source", "s"), {}, "id BIGINT")
    for name in ("plain.json", "_SUCCESS", ".plain.json.crc"):
        (folder / name).write_text("{}")
    assert FilesSource().probe(query).diagnostics == ()
    for name in ("_late.json.gz", ".x.csv", "_k=1.json"):
        (folder / name).write_text("{}")
    (found,) = FilesSource().probe(query).diagnostics
    assert (found.code, found.severity) == ("MZ214", "warning")
    assert ": .x.csv, _late.json.gz. Spark" in found.detail


def test_a_folder_with_other_files_of_the_same_names_is_another_upstream(tmp_path: Path) -> None:
    """Spark reads no name twice, so it would silently skip the rows of the new files."""
    folder, checkpoint = tmp_path / "in", Checkpoint.of(tmp_path.as_uri(), "id", 1)
    folder.mkdir()
    files = [folder / f"{name}.json" for name in ("a b", "b", "c")]
    for file in files:
        file.write_text("{}")
    log = Path(str(local_path(checkpoint.spark))) / "sources" / "0"
    log.mkdir(parents=True)
    times = {file.as_uri(): file.stat().st_mtime_ns // 1_000_000 for file in files}
    entries = [json.dumps({"path": path, "timestamp": at, "batchId": 0}) for path, at in times.items()]
    (log / "0").write_text("\n".join(["v1", *entries]))
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


def test_a_tunnel_that_opens_at_its_time_limit_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """If nobody released it, it would stay open for as long as the process lives."""
    hop = Hop(name="connection.bastion", host="bastion", port=22, user="app", keys=())

    async def open_when_cancelled(hop: Hop, outer: object) -> object:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return SimpleNamespace(is_closed=lambda: False, abort=lambda: None)

    monkeypatch.setattr("mzplan.connectors.network.forwards.OPEN_TIMEOUT_S", 0.01)
    monkeypatch.setattr("mzplan.connectors.network.forwards.connect_hop", open_when_cancelled)
    with contextlib.closing(Forwards()) as forwards:
        with contextlib.suppress(TunnelError), forwards.to((hop,), "db", 5432):
            pass
        (forward,) = forwards._forwards.values()
        eventually("the forward is released", lambda: forward.users == 0, 10.0)
