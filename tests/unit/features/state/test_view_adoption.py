"""`import --checkpoint --table` of a view: what files show about a query, and every reason against it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from mzplan.warehouse.checkpoints import Checkpoint
from tests.left_by_hand import QUERY, leave, position_in
from tests.unit.cli_runs import Ran, mzplan, write
from tests.unit.warehouse.test_stored_state import write as write_state

PIPELINE = """\
connections:
  k: {type: kafka, brokers: ["a:9092"]}
sources:
  orders:
    connection: k
    topic: orders
    format: {type: json, schema: "id BIGINT, amount DOUBLE, now TIMESTAMP"}
views:
  large: {query: "SELECT id, amount FROM orders WHERE amount > 1"}
  totals:
    query: "SELECT id, sum(amount) AS amount FROM orders GROUP BY id"
    output: update
    key: [id]
  windows: &windows
    query: "SELECT id, sum(amount) AS amount FROM orders GROUP BY id, window(now, '1 minute')"
    schema: "id BIGINT, amount DOUBLE"
    watermarks: {orders: {column: now, delay: 1 minute}}
    partitions: 2
    on_query_change: resume
  unsure: {<<: *windows, on_query_change: replace, partitions: 3}
"""
COLUMNS = {"id": [1, 2], "amount": [2.5, 3.5]}
KEYS: Any = [("id", "long", True)]
VALUES: Any = [("sum", "double", True)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project that has imported source.orders."""
    folder = write(tmp_path / "p")
    (folder / "pipeline.yaml").write_text(PIPELINE)
    rows = {"id": [1, 2], "amount": [2.5, 3.5], "now": [datetime(2026, 1, 1, tzinfo=UTC)] * 2}
    assert import_(folder, leave(tmp_path / "source", columns=rows), "source.orders").code == 0
    return folder


def import_(folder: Path, left: Path, address: str) -> Ran:
    where = ("--checkpoint", str(left / "checkpoint"), "--table", str(left / "table"))
    return mzplan(folder, "import", address, *where, "--auto-approve", "--json")


def reasons(ran: Ran) -> list[str]:
    assert ran.code == 7 and {d["code"] for d in ran.json()["diagnostics"]} == {"MZ165"}, ran
    return [d["detail"] for d in ran.json()["diagnostics"]]


def collection(folder: Path) -> Path:
    id_ = mzplan(folder, "state", "show", "source.orders").json()["id"]
    return folder / "warehouse" / "collections" / id_ / "g1"


def offset(folder: Path, version: int = 1, **other: Any) -> str:
    return position_in(collection(folder), version, **other)


def left_view(folder: Path, tmp_path: Path, *lines: str, partitions: int = 2, **other: Any) -> Path:
    """Leave a query that has read `orders`, up to its end unless `lines` are its offsets."""
    given = {"columns": COLUMNS, "done": 0, "has": 0, **other}
    left = leave(tmp_path / "left", ("\n".join(lines or (offset(folder),)),), **given)
    log = left / "checkpoint" / "offsets" / "0"
    settings = f'"conf":{{"spark.sql.shuffle.partitions":"{partitions}"}}'
    log.write_text(log.read_text().replace('"conf":{}', settings))
    return left


def with_state(left: Path, watermark: int = 1, name: str = "stateStoreSave", mode: str = "Append") -> Path:
    """Add state to a checkpoint, and the mode in which Spark's sink wrote to the table's log."""
    write_state(left / "checkpoint", KEYS, VALUES, name=name)
    log = left / "table/_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for info in (action["commitInfo"] for action in actions if "commitInfo" in action):
        info["operation"] = "STREAMING UPDATE"
        info["operationParameters"] = {"outputMode": mode, "queryId": QUERY, "epochId": "0"}
    log.write_text("\n".join(map(json.dumps, actions)))
    (left / "checkpoint/commits/0").write_text(f'v1\n{{"nextBatchWatermarkMs":{watermark}}}')
    return left


def test_a_stateless_query_becomes_a_view_on_a_copy(folder: Path, tmp_path: Path) -> None:
    left = left_view(folder, tmp_path)
    ran = import_(folder, left, "view.large")
    assert ran.code == 0, ran
    id_ = mzplan(folder, "state", "show", "view.large").json()["id"]
    adopted = Checkpoint.of(str(folder / "warehouse"), id_, 1)
    assert adopted.log.lines(0)[2:] == [offset(folder)] and adopted.adopted() == 0
    assert (left / "checkpoint" / "metadata").exists() and adopted.collection() is None
    assert import_(folder, left, "view.large").code == 64  # it is in the state already


def test_a_query_with_state(folder: Path, tmp_path: Path) -> None:
    ran = import_(folder, with_state(left_view(folder, tmp_path)), "view.windows")
    assert ran.code == 0, ran
    assert ran.json()["changes"][0]["reason"].endswith("after micro-batch 0, with its state")


def test_every_reason_is_named_at_once(folder: Path, tmp_path: Path) -> None:
    left = with_state(
        left_view(folder, tmp_path, '{"orders":{"0":1}}', offset(folder, 9, reservoirId="x"), writer="else"),
        watermark=0,
        name="transformWithState",
        mode="Complete",
    )
    found = reasons(import_(folder, left, "view.unsure"))
    assert [reason[:45] for reason in found] == [
        "It doesn't read only Delta tables: one of its",
        "It reads the Delta table x, which is none of ",
        f"It doesn't read the Delta table {DeltaTable(str(collection(folder))).metadata().id}"[:45],
        "mzplan can't compare the state of its operato",
        "By its table's log, it writes in complete mode"[:45],
        "Its state has 2 partitions: declare partition",
        "The view declares watermarks, but the query h",
        "mzplan compares the types and names of the st",
        f"{left / 'table'} was not written by this query's Delta sink"[:45],
    ]


@pytest.mark.parametrize(
    ("address", "offsets", "state", "reason"),
    [
        ("view.totals", {}, True, "only a view that appends rows can continue"),
        ("view.large", {}, True, "keeps state (aggregation), but the view keeps none"),
        ("view.windows", {}, False, "The view keeps state, but the checkpoint has none"),
        ("view.large", {"version": 2}, False, "read version 1 of source.orders, whose collection only has"),
        ("view.large", {"isStartingVersion": True}, False, "still reading the first copy of source.orders"),
        ("view.large", {"sourceVersion": 3}, False, "has an unknown format"),
    ],
)
def test_a_query_that_a_view_cannot_continue(
    folder: Path, tmp_path: Path, address: str, offsets: dict[str, Any], state: bool, reason: str
) -> None:
    left = left_view(folder, tmp_path, offset(folder, **offsets))
    ran = import_(folder, with_state(left) if state else left, address)
    assert reason in " ".join(reasons(ran))
    assert len(list((folder / "warehouse" / "checkpoints").iterdir())) == 1  # of the source


def test_a_query_that_has_read_past_the_copy(folder: Path, tmp_path: Path) -> None:
    """The copy and the original may both have a version 1, with other rows."""
    from deltalake import write_deltalake

    write_deltalake(
        str(collection(folder)), DeltaTable(str(collection(folder))).to_pyarrow_table(), mode="append"
    )
    (reason,) = reasons(import_(folder, left_view(folder, tmp_path, offset(folder, 2)), "view.large"))
    assert "read version 1 of a table of which mzplan has copied version 0" in reason
    earlier = left_view(folder, tmp_path / "earlier", offset(folder, 1))
    assert import_(folder, earlier, "view.large").code == 0


def test_rows_that_the_collection_no_longer_holds(folder: Path, tmp_path: Path) -> None:
    table = DeltaTable(str(collection(folder)))
    table.create_checkpoint()
    (collection(folder) / "_delta_log" / f"{0:020}.json").unlink()
    left = left_view(folder, tmp_path, offset(folder, 0))
    assert "no longer holds the rows since version 0" in reasons(import_(folder, left, "view.large"))[0]


@pytest.mark.parametrize("point", ["apply.validated", "apply.committed"])
def test_a_killed_import_is_finished_or_repeated(folder: Path, tmp_path: Path, point: str) -> None:
    left = left_view(folder, tmp_path)
    where = ("--checkpoint", str(left / "checkpoint"), "--table", str(left / "table"), "--auto-approve")
    command = [sys.executable, "-m", "mzplan", "-C", str(folder), "import", "view.large", *where]
    killed = subprocess.run(command, env={**os.environ, "MZPLAN_FAILPOINT": point}, capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert import_(folder, left, "view.large").code == (64 if point == "apply.committed" else 0)
    id_ = mzplan(folder, "state", "show", "view.large").json()["id"]
    assert Checkpoint.of(str(folder / "warehouse"), id_, 1).log.committed() == 0
