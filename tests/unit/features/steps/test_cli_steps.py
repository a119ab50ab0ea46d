"""steps, verify and expire through the command line, on stored steps."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from mzplan.model.tasks import TaskOutcome
from mzplan.warehouse.checkpoints import Checkpoint, TaskRecord
from mzplan.warehouse.step_record import StepRecord
from tests.stored_steps import StoredShop, named
from tests.tasks import task


@pytest.fixture
def shop(tmp_path: Path) -> StoredShop:
    return StoredShop(tmp_path / "shop")


# --- steps


def test_steps_are_listed_and_those_of_a_sink_name_the_steps_of_its_source(shop: StoredShop) -> None:
    nothing = shop.run("steps", "source.orders").out
    assert nothing.startswith("source.orders has no steps. Its instance local is dry")
    shop.steps(3)
    shop.sink("out").run(3)
    shop.source.plan(named(6, 7))
    document = shop.json("steps", "source.orders")
    assert (document["address"], document["since"], document["upper"]) == ("source.orders", 0, 3)
    assert [(s["step"], s["rows"], s["committed"], s["hash"]) for s in document["steps"]] == [
        *((i, 2, True, str(shop.hashes[i])) for i in range(3)),
        (3, None, False, None),
    ]
    assert document["steps"][1]["from"] == {"orders": {"0": 2}}
    table = shop.run("steps", "source.orders", "--last", "2").out.splitlines()
    assert table[0].split() == ["STEP", "TIME", "(UTC)", "ROWS", "BYTES", "COMMITTED", "UPSTREAM"]
    assert [line.split()[0] for line in table[1:]] == ["2", "3"]
    assert table[1].endswith("yes        0:4..6") and "not yet" in table[2]
    found = shop.json("steps", "sink.out")["steps"]
    assert [(s["step"], s["sources"], s["rows"]) for s in found] == [(0, [0, 1], 4)]
    line = shop.run("steps", "sink.out").out.splitlines()[1]
    assert line.split()[-5:] == ["0..1", "yes", "up", "to", "v3"]


def test_ten_thousand_steps_are_listed_in_a_moment(shop: StoredShop) -> None:
    end = {"orders": {str(p): 123456 for p in range(4)}}
    shop.source.history.index.append(
        StepRecord(step=s, start=end, end=end, rows=500, bytes=40_000, time=1.8e9, version=s + 1)
        for s in range(10_000)
    )
    for arguments, seconds in (((), 5.0), (("--last", "3"), 1.0)):
        began = time.thread_time()
        shop.run("steps", "source.orders", *arguments)
        assert time.thread_time() - began < seconds


# --- verify


def test_verify_replays_and_compares(shop: StoredShop) -> None:
    shop.steps(5)
    assert shop.run("verify", "source.orders").out == "source.orders: 5 steps as recorded (0..4).\n"
    for wanted, first, last in (("2", 2, 2), ("1..3", 1, 3), ("3..", 3, 4)):
        document = shop.json("verify", "source.orders", "--steps", wanted)
        assert (document["first"], document["last"], document["difference"]) == (first, last, None)
    shop.source.run(named(10, 12))
    counted = "For 1 step, only the rows were counted: no hash is recorded."
    assert shop.run("verify", "source.orders").out.splitlines()[1] == counted


def test_verify_warns_of_a_column_that_is_always_null(shop: StoredShop) -> None:
    """For example, a field that is misspelt in the schema: no record has an error."""
    shop.source.record(shop.source.run([{"id": 1, "name": None}, {"id": 2, "name": None}]))
    shop.source.record(shop.source.run([{"id": None, "name": None}]))
    (found,) = shop.json("verify", "source.orders")["diagnostics"]
    assert (found["severity"], found["code"], found["address"]) == ("warning", "MZ267", "source.orders")
    assert "Column name" in found["summary"] and "None of the 3 verified rows" in found["detail"]
    assert "warning[MZ267]" in shop.run("verify", "source.orders").err
    shop.source.record(shop.source.run([{"id": 3, "name": "x"}]))
    assert shop.json("verify", "source.orders")["diagnostics"] == []
    assert shop.json("verify", "source.orders", "--steps", "0")["diagnostics"], "of the wanted steps"


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (lambda rows: rows.take([1, 1]), "the content of its 2 rows has changed"),
        (lambda rows: rows.slice(1), "2 rows were recorded, 1 were found"),
    ],
    ids=["changed", "missing"],
)
def test_verify_names_the_first_difference(
    shop: StoredShop, damage: Callable[[pa.Table], pa.Table], what: str
) -> None:
    shop.steps(5)
    for step in (2, 3):
        (file,) = shop.source.data(step)
        parquet.write_table(damage(parquet.read_table(file)), file)
    first, second = shop.run("verify", "source.orders", code=1).out.splitlines()
    assert first == "source.orders: 2 steps as recorded (0..1)."
    assert second.startswith(f"Step 2 of source.orders differs: {what} (hash {shop.hashes[2]} → ")
    found = shop.json("verify", "source.orders", code=1)["difference"]
    assert (found["step"], found["recorded"]) == (2, {"rows": 2, "hash": str(shop.hashes[2])})
    shop.run("verify", "source.orders", "--steps", "4")


def test_verify_lists_missing_steps_and_checks_the_others(shop: StoredShop) -> None:
    shop.steps(4)
    shop.source.merge()
    shop.source.vacuum()
    shop.source.data(1)[0].unlink()
    document = shop.json("verify", "source.orders", code=1)
    (problem,) = document["diagnostics"]
    assert (document["verified"], problem["code"], problem["address"]) == (3, "MZ091", "source.orders")
    ran = shop.run("verify", "source.orders", code=1)
    assert "error[MZ091]: Step 1 of source.orders can't be replayed" in ran.err
    assert ran.out.endswith("1 step can't be replayed.\n")


def test_verify_leaves_out_steps_whose_files_were_removed_after_an_erasure(shop: StoredShop) -> None:
    shop.steps(4)
    erased = task("erasure", 7, "erase of rows", condition="c", by="2026-11-29T08:00:00Z")
    outcome = TaskOutcome(serial=7, facts={"rows": 1})
    record = TaskRecord(task=erased, outcome=outcome, step=3, done=True)
    Checkpoint.of(str(shop.source.warehouse), *shop.source.place).tasks.record(record)
    shop.source.merge()
    shop.source.vacuum()
    shop.source.data(1)[0].unlink()
    document = shop.json("verify", "source.orders")
    (notice,) = document["diagnostics"]
    assert (document["verified"], notice["code"], notice["severity"]) == (3, "MZ403", "notice")
    assert "1 step (1) can't be compared" in notice["summary"] and "in its step 3" in notice["detail"]
    shop.source.data(2)[0].write_bytes(b"")
    assert shop.json("verify", "source.orders", code=1)["diagnostics"], "a damaged file is still an error"


def test_verify_names_each_damaged_file_and_checks_the_other_steps(shop: StoredShop) -> None:
    shop.steps(5)
    lost, cut, torn = (shop.source.data(step)[0] for step in (0, 1, 3))
    lost.unlink()
    cut.write_bytes(cut.read_bytes()[:-7])
    data = bytearray(torn.read_bytes())
    data[4:40] = bytes(36)  # the header of its first page: the footer is whole
    torn.write_bytes(data)
    ran = shop.run("verify", "source.orders", code=1)
    assert ran.out.startswith("source.orders: 2 steps as recorded")
    assert ran.out.endswith("3 steps are damaged.\n") and "VACUUM" not in ran.err
    for step, file in ((0, lost), (1, cut), (3, torn)):
        assert f"error[MZ135]: Step {step} of source.orders is damaged" in ran.err and file.name in ran.err


def test_verify_shows_the_rows_that_another_writer_added_and_deleted(shop: StoredShop) -> None:
    shop.steps(2)
    shop.source.merge()  # moves rows, and deletes none
    assert "MZ305" not in shop.run("verify", "source.orders").err
    shop.source.delete("part-00000-merged-3.snappy.parquet")
    shop.source.insert([{"id": 9, "name": "other"}])
    ran = shop.run("verify", "source.orders", code=1)
    assert ran.out == "source.orders: 2 steps as recorded (0..1).\n"
    assert "error[MZ305]: Another writer changed rows in the collection of source.orders" in ran.err
    document = shop.json("verify", "source.orders", code=1)
    deleted, added = document["foreign"]["changes"]
    assert document["foreign"]["versions"] == [4, 5]
    assert (deleted["operation"], deleted["added"], deleted["removed"]) == ("DELETE", 0, 4)
    assert deleted["removed_rows"][0] == '{"id": 0, "name": "n0"}'
    assert (added["added"], added["added_rows"]) == (1, ['{"id": 9, "name": "other"}'])
    shop.steps(1)
    assert "foreign" not in shop.json("verify", "source.orders", "--steps", "2..")


@pytest.mark.parametrize("writer", [None, "another-query"], ids=["a batch", "a streaming query"])
def test_another_writers_commit_is_drift_until_its_steps_expire(shop: StoredShop, writer: str | None) -> None:
    shop.steps(2)
    (shop.source.checkpoint / "metadata").write_text(json.dumps({"id": "q"}))
    assert shop.source.history.newest_foreign() is None
    shop.source.insert([{"id": 9, "name": "other"}], writer=writer)
    for _ in range(2):  # before the recorder has passed the version, and afterwards
        found = shop.source.history.newest_foreign()
        assert found is not None and (found.version, found.operation) == (3, "WRITE")
        shop.source.history.index.mark_foreign(found)  # as the runner does before it records a step
        shop.steps(1)
    assert [record.step for record in shop.source.history.committed(0, None)] == [0, 1, 2, 3]
    shop.source.history.index.expire(2)
    assert shop.source.history.newest_foreign() is None


def test_an_updated_row_is_shown_before_and_after(shop: StoredShop) -> None:
    shop.steps(1)
    old, new = {"id": 1, "name": "a"}, {"id": 1, "name": "b"}
    changes = [("update_preimage", old), ("update_postimage", new)]
    shop.source.update([new], changes)
    (change,) = shop.json("verify", "source.orders", code=1)["foreign"]["changes"]
    assert (change["removed_rows"], change["added_rows"]) == ([json.dumps(old)], [json.dumps(new)])
    for file in shop.source.collection.glob("cdc-*"):
        file.unlink()  # a VACUUM
    (change,) = shop.json("verify", "source.orders", code=1)["foreign"]["changes"]
    assert (change["operation"], change["removed_rows"]) == ("UPDATE", [])


def test_an_unreadable_warehouse_is_an_error(shop: StoredShop) -> None:
    shop.steps(1)
    log = shop.source.collection / "_delta_log"
    log.rename(log.with_name("moved"))
    log.write_text("a file, not a folder")
    for command in ("steps", "verify"):
        assert shop.error(command, "source.orders", code=1)["code"] == "MZ090"


def test_only_existing_steps_of_queries_can_be_verified(shop: StoredShop) -> None:
    shop.steps(3)
    for text in ("x", "3..1", "-1", "1.2", "..3", "", "1...2"):
        shop.run("verify", "source.orders", f"--steps={text}", code=64)
    for text in ("3", "2..3", "4..", "99..100"):
        found = shop.error("verify", "source.orders", "--steps", text, code=64)
        assert (found["code"], found["detail"]) == ("MZ094", "The existing steps: 0 to 2."), text
    assert shop.error("verify", "sink.out", "--from-upstream", code=64)["code"] == "MZ094"
    console = shop.error("verify", "sink.out", code=1)
    assert console["code"] == "MZ177" and "source.orders" in console["hint"]
    for command in ("steps", "verify"):
        shop.run(command, "connection.k", code=64)
        assert shop.error(command, "source.ordrs", code=64)["code"] == "MZ070"


# --- expire


def test_steps_that_no_sink_needs_can_expire_and_are_gone_for_every_command(shop: StoredShop) -> None:
    shop.run("expire", "source.orders", "--before", "0")  # there is none yet
    shop.steps(4)
    out = shop.sink("out")
    out.run(3)
    found = shop.error("expire", "source.orders", "--before", "1", code=7)
    assert found["address"] == "sink.few", "it has not begun: it needs all steps"
    shop.sink("few").run(4)  # it has yet to read the last step, which stays
    found = shop.error("expire", "source.orders", "--before", "3", code=7)
    assert (found["code"], found["summary"]) == ("MZ093", "sink.out still needs step 2 of source.orders")
    assert shop.json("steps", "source.orders")["since"] == 0
    out.run(5)
    kept = "source.orders: steps from 3 on are kept; the next one is 4.\n"
    assert shop.run("expire", "source.orders", "--before", "3").out == kept
    document = {"address": "source.orders", "since": 3, "upper": 4}
    assert shop.json("expire", "source.orders", "--before", "1") == document
    assert shop.run("expire", "source.orders", "--before", "4").out == kept
    assert [s["step"] for s in shop.json("steps", "source.orders")["steps"]] == [3]
    verified = shop.json("verify", "source.orders")
    assert (verified["first"], verified["verified"]) == (3, 1)
    found = shop.error("verify", "source.orders", "--steps", "2..3", code=64)
    assert found["summary"] == "Step 2 of source.orders was expired"
    assert shop.error("expire", "source.orders", "--before", "5", code=64)["code"] == "MZ094"
