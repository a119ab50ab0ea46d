"""steps, verify and expire through the command line, on stored steps."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from mzplan.features.steps.steps_text import upstream_range
from mzplan.warehouse.content_hash import ContentHash
from mzplan.warehouse.replay import ValuesSeen
from mzplan.warehouse.step_record import StepRecord
from tests.stored_steps import StoredSink, StoredSource, named
from tests.unit.cli_runs import mzplan, write


class Shop:
    """A committed project of one source with two sinks, and the source's storage."""

    def __init__(self, folder: Path):
        self.folder = write(folder)
        assert self.run("apply", "--auto-approve").code == 0
        committed = json.loads((folder / "state" / "mzplan.state.json").read_text())["resources"]
        self.ids = {address: one["id"] for address, one in _by_address(committed).items()}
        self.source = StoredSource(folder / "warehouse", self.ids["source.orders"])
        self.hashes: list[ContentHash] = []

    def run(self, *arguments: str) -> Any:
        return mzplan(self.folder, *arguments)

    def sink(self, name: str) -> StoredSink:
        return StoredSink(self.source, self.ids[f"sink.{name}"])

    def steps(self, count: int) -> None:
        """Record so many steps of two rows each."""
        first = len(self.hashes)
        fresh = [self.source.run(named(2 * i, 2 * i + 2)) for i in range(first, first + count)]
        self.source.record(*fresh)
        self.hashes += fresh


def _by_address(resources: Any) -> dict[str, Any]:
    if isinstance(resources, dict):
        return resources
    return {one["address"]: one for one in resources}


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop")


def test_steps_of_a_source(shop: Shop) -> None:
    assert shop.run("steps", "source.orders").out.startswith(
        "source.orders has no steps. Its instance local is dry"
    )
    shop.steps(3)
    shop.source.plan(named(6, 7))
    document = shop.run("steps", "source.orders", "--json").json()
    assert (document["address"], document["since"], document["upper"]) == ("source.orders", 0, 3)
    assert [(s["step"], s["rows"], s["committed"], s["hash"]) for s in document["steps"]] == [
        *((i, 2, True, str(shop.hashes[i])) for i in range(3)),
        (3, None, False, None),
    ]
    assert document["steps"][1]["from"] == {"orders": {"0": 2}}
    table = shop.run("steps", "source.orders", "--last", "2").out.splitlines()
    assert table[0].split() == ["STEP", "TIME", "(UTC)", "ROWS", "BYTES", "COMMITTED", "UPSTREAM"]
    assert [line.split()[0] for line in table[1:]] == ["2", "3"]
    assert table[1].endswith("yes        0:4..6")
    assert "not yet" in table[2]


def test_steps_of_a_sink_name_those_of_its_source(shop: Shop) -> None:
    shop.steps(3)
    shop.sink("out").run(3)
    document = shop.run("steps", "sink.out", "--json").json()
    assert [(s["step"], s["sources"], s["rows"]) for s in document["steps"]] == [(0, [0, 1], 4)]
    line = shop.run("steps", "sink.out").out.splitlines()[1]
    assert line.split()[-5:] == ["0..1", "yes", "up", "to", "v3"]


def test_ten_thousand_steps_are_listed_in_a_moment(shop: Shop) -> None:
    end = {"orders": {str(p): 123456 for p in range(4)}}
    shop.source.history.index.append(
        StepRecord(step=s, start=end, end=end, rows=500, bytes=40_000, time=1.8e9, version=s + 1)
        for s in range(10_000)
    )
    for arguments, seconds in ((("--json",), 5.0), ((), 5.0), (("--last", "3"), 1.0)):
        began = time.thread_time()
        assert shop.run("steps", "source.orders", *arguments).code == 0
        assert time.thread_time() - began < seconds


def test_verify_replays_and_compares(shop: Shop) -> None:
    shop.steps(5)
    ran = shop.run("verify", "source.orders")
    assert (ran.code, ran.out) == (0, "source.orders: 5 steps as recorded (0..4).\n")
    for wanted, first, last in (("2", 2, 2), ("1..3", 1, 3), ("3..", 3, 4)):
        document = shop.run("verify", "source.orders", "--steps", wanted, "--json").json()
        assert (document["first"], document["last"], document["difference"]) == (first, last, None)


def test_verify_warns_of_a_column_that_no_record_has(shop: Shop) -> None:
    """A field that is misspelt in the schema is NULL in every row, and no record has an error."""
    shop.source.record(shop.source.run([{"id": 1, "name": None}, {"id": 2, "name": None}]))
    shop.source.record(shop.source.run([{"id": None, "name": None}]))
    document = shop.run("verify", "source.orders", "--json").json()
    (found,) = document["diagnostics"]
    assert (found["severity"], found["code"], found["address"]) == ("warning", "MZ267", "source.orders")
    assert "Column name" in found["summary"] and "None of the 3 verified rows" in found["detail"]
    ran = shop.run("verify", "source.orders")
    assert ran.code == 0 and "warning[MZ267]" in ran.err
    shop.source.record(shop.source.run([{"id": 3, "name": "x"}]))
    assert shop.run("verify", "source.orders", "--json").json()["diagnostics"] == []
    # Of the steps that are asked for, and of those the rows that have the column.
    assert shop.run("verify", "source.orders", "--steps", "0", "--json").json()["diagnostics"]


def test_rows_from_before_a_column_and_deletes_say_nothing_of_it() -> None:
    import pyarrow as pa

    def batch(**columns: list[Any]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict(columns)

    batches = [
        batch(id=[1, 2], name=["a", "b"]),
        batch(id=[3], name=["c"], note=[None], _change=["upsert"]),
        batch(id=[4], name=[None], note=[None], _change=["delete"]),
    ]
    seen = ValuesSeen()
    assert list(seen.watch(batches)) == batches
    assert seen.empty(["id", "name", "note", "never_declared"]) == {"note": 1}


@pytest.mark.parametrize("kind", ["changed", "missing"])
def test_verify_names_the_first_difference(shop: Shop, kind: str) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    shop.steps(5)
    for step in (2, 3):
        (file,) = shop.source.data(step)
        table = parquet.read_table(file)
        renamed = table.set_column(1, "name", pa.array(["other"] * 2))
        parquet.write_table(renamed if kind == "changed" else table.slice(1), file)
    ran = shop.run("verify", "source.orders")
    assert ran.code == 1
    first, second = ran.out.splitlines()
    assert first == "source.orders: 2 steps as recorded (0..1)."
    what = (
        "the content of its 2 rows has changed" if kind == "changed" else "2 rows were recorded, 1 were found"
    )
    assert second.startswith(f"Step 2 of source.orders differs: {what} (hash {shop.hashes[2]} → ")
    document = shop.run("verify", "source.orders", "--json").json()
    assert document["difference"]["step"] == 2
    assert document["difference"]["recorded"] == {"rows": 2, "hash": str(shop.hashes[2])}
    assert shop.run("verify", "source.orders", "--steps", "4").code == 0


def test_verify_says_which_steps_are_gone_and_goes_on(shop: Shop) -> None:
    shop.steps(4)
    shop.source.merge()
    shop.source.vacuum()
    shop.source.data(1)[0].unlink()
    document = shop.run("verify", "source.orders", "--json")
    assert document.code == 1
    assert document.json()["verified"] == 3
    (problem,) = document.json()["diagnostics"]
    assert (problem["code"], problem["address"]) == ("MZ091", "source.orders")
    ran = shop.run("verify", "source.orders")
    assert "error[MZ091]: Step 1 of source.orders can't be replayed" in ran.err
    assert ran.out.endswith("1 step can't be replayed.\n")


def test_verify_names_step_and_file_of_damage_and_goes_on(shop: Shop) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    shop.steps(5)
    lost, cut, torn = (shop.source.data(step)[0] for step in (0, 1, 3))
    lost.unlink()
    cut.write_bytes(cut.read_bytes()[:-7])
    data = bytearray(torn.read_bytes())
    data[4:40] = bytes(36)  # the header of its first page: the footer is whole
    torn.write_bytes(data)
    with pytest.raises((OSError, pa.ArrowException)):
        parquet.read_table(torn)
    ran = shop.run("verify", "source.orders")
    assert ran.code == 1
    assert ran.out.splitlines()[0].startswith("source.orders: 2 steps as recorded")
    assert ran.out.endswith("3 steps are damaged.\n")
    assert "VACUUM" not in ran.err
    for step, file in ((0, lost), (1, cut), (3, torn)):
        assert f"error[MZ135]: Step {step} of source.orders is damaged" in ran.err
        assert file.name in ran.err


def test_verify_counts_rows_where_no_hash_is_recorded(shop: Shop) -> None:
    shop.steps(1)
    shop.source.run(named(2, 4))
    ran = shop.run("verify", "source.orders")
    assert (ran.code, ran.out.splitlines()[1]) == (
        0,
        "For 1 step, only the rows were counted: no hash is recorded.",
    )


@pytest.mark.parametrize(
    ("start", "end", "shown"),
    [(None, 1, "up to step 0"), (None, 20, "up to step 19"), (5, 6, "step 5"), (5, 25, "steps 5..24")],
)
def test_the_appends_that_a_step_has_read(start: int | None, end: int, shown: str) -> None:
    assert upstream_range({"step": start} if start is not None else None, {"step": end}) == shown


def test_ranges_that_are_none(shop: Shop) -> None:
    shop.steps(3)
    for text in ("x", "3..1", "-1", "1.2", "..3", "", "1...2"):
        assert shop.run("verify", "source.orders", f"--steps={text}").code == 64, text
    for text in ("3", "2..3", "4..", "99..100"):
        ran = shop.run("verify", "source.orders", "--steps", text, "--json")
        assert (ran.code, ran.error()["code"]) == (64, "MZ094"), text
        assert ran.error()["detail"] == "The existing steps: 0 to 2."
    ran = shop.run("verify", "sink.out", "--from-upstream", "--json")
    assert (ran.code, ran.error()["code"]) == (64, "MZ094")
    ran = shop.run("verify", "sink.out", "--json")  # a console remembers nothing
    assert (ran.code, ran.error()["code"]) == (1, "MZ177")
    assert "source.orders" in ran.error()["hint"]
    for command in ("steps", "verify"):
        assert shop.run(command, "connection.k").code == 64
        assert shop.run(command, "source.ordrs", "--json").error()["code"] == "MZ070"


def test_expire_is_refused_while_a_sink_needs_a_step(shop: Shop) -> None:
    shop.steps(4)
    out, few = shop.sink("out"), shop.sink("few")
    out.run(3)
    ran = shop.run("expire", "source.orders", "--before", "1", "--json")
    assert (ran.code, ran.error()["address"]) == (7, "sink.few")  # it has not begun: it needs all
    few.run(5)
    ran = shop.run("expire", "source.orders", "--before", "3", "--json")
    assert (ran.code, ran.error()["code"], ran.error()["summary"]) == (
        7,
        "MZ093",
        "sink.out still needs step 2 of source.orders",
    )
    assert shop.run("steps", "source.orders", "--json").json()["since"] == 0


def test_what_is_expired_is_gone_for_every_command(shop: Shop) -> None:
    shop.steps(4)
    for name in ("out", "few"):
        shop.sink(name).run(4)
    ran = shop.run("expire", "source.orders", "--before", "3")
    assert (ran.code, ran.out) == (0, "source.orders: steps from 3 on are kept; the next one is 4.\n")
    assert shop.run("expire", "source.orders", "--before", "1", "--json").json() == {
        "address": "source.orders",
        "since": 3,
        "upper": 4,
    }
    assert [s["step"] for s in shop.run("steps", "source.orders", "--json").json()["steps"]] == [3]
    assert shop.run("verify", "source.orders", "--json").json()["first"] == 3
    ran = shop.run("verify", "source.orders", "--steps", "2..3", "--json")
    assert ran.error()["summary"] == "Step 2 of source.orders was expired"
    ran = shop.run("expire", "source.orders", "--before", "5", "--json")
    assert (ran.code, ran.error()["code"]) == (64, "MZ094")


def test_verify_warns_of_rows_that_another_writer_deleted(shop: Shop) -> None:
    shop.steps(3)
    shop.source.merge()  # moves rows, and deletes none
    assert "MZ305" not in shop.run("verify", "source.orders").err
    shop.source.delete("part-00000-merged-3.snappy.parquet")
    ran = shop.run("verify", "source.orders")
    assert ran.code == 0
    assert "warning[MZ305]: Rows of source.orders were changed or deleted by another writer" in ran.err
    assert "(DELETE)" in ran.err


def test_expire_keeps_the_last_step(shop: Shop) -> None:
    assert shop.run("expire", "source.orders", "--before", "0").code == 0  # there is none yet
    shop.steps(4)
    shop.sink("out").run(5)
    shop.sink("few").run(4)  # it has still to read the last one, which stays
    ran = shop.run("expire", "source.orders", "--before", "4")
    assert (ran.code, ran.out) == (0, "source.orders: steps from 3 on are kept; the next one is 4.\n")
    assert [s["step"] for s in shop.run("steps", "source.orders", "--json").json()["steps"]] == [3]
    assert shop.run("verify", "source.orders", "--json").json()["verified"] == 1


def test_a_warehouse_that_cannot_be_read_is_no_traceback(shop: Shop) -> None:
    shop.steps(1)
    log = shop.source.collection / "_delta_log"
    log.rename(log.with_name("moved"))
    log.write_text("a file, not a folder")
    for command in ("steps", "verify"):
        ran = shop.run(command, "source.orders", "--json")
        assert (ran.code, ran.error()["code"]) == (1, "MZ090")
