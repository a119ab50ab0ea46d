"""A Delta table that was restored to an older copy: the table of a sink, and a collection."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mzplan.model.diagnostics import MzplanError
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.collection_log import CollectionLog
from tests.integration.spark_lab import read_delta, until
from tests.tasks import replay

if TYPE_CHECKING:
    from mzplan.schema.description import Description
    from tests.integration.spark_lab import Lab


def drop(folder: Path, number: int, amount: int) -> None:
    (folder / f"{number}.json").write_text(f'{{"id": {number}, "customer": "a", "amount": {amount}}}\n')


def restore(table: Path, commits: int = 1) -> None:
    """As from a copy that is so many commits older."""
    logged = sorted((table / "_delta_log").glob("*.json"))
    for entry in logged[-commits:]:
        entry.unlink()
        entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)
        entry.with_suffix(".crc").unlink(missing_ok=True)


def refusal(lab: Lab, description: Description) -> tuple[str, str, str]:
    with pytest.raises(MzplanError) as caught:
        lab.start(description)
    (said,) = caught.value.diagnostics
    return said.code, said.summary, said.detail


@pytest.mark.nightly
def test_a_restored_table_is_refused(lab: Lab, tmp_path: Path) -> None:
    orders = tmp_path / "orders"
    orders.mkdir()
    source = lab.files_source(orders)
    large = {"where": "amount > 10"}
    append = lab.delta_sink(source, tmp_path, "all", **large)
    upsert = lab.delta_sink(source, tmp_path, "latest", mode="upsert", key=["id"], **large)
    lab.start(source)
    for number, amount in enumerate((20, 5, 30)):  # step 1 leaves no row in the sinks, and a commit
        drop(orders, number, amount)
        until("the row is read", lambda n=number: lab.count(source) == n + 1)  # type: ignore[misc]
        if number == 0:
            lab.start(append, upsert)
        until("it is written", lambda n=number: min(map(lab.last_step, (append, upsert))) >= n)  # type: ignore[misc]
    lab.finish(source, append, upsert)
    assert lab.codes(source) == lab.codes(append) == lab.codes(upsert) == []
    for sink, name in ((append, "all"), (upsert, "latest")):
        restore(tmp_path / name)
        assert lab.codes(sink) == ["MZ069"]
        code, summary, detail = refusal(lab, sink)
        assert code == "MZ069" and "is missing step 2," in summary and str(tmp_path / name) in detail

    # Whoever accepts it goes on: the lost row is lost, and what comes is written once.
    accepting = lab.retried(append)
    accepting.body["on_target_change"] = "accept"  # type: ignore[index]
    assert lab.codes(accepting) == []
    (notice,) = lab.check(accepting).diagnostics
    assert (notice.severity, notice.code) == ("notice", "MZ069")
    lab.start(source, accepting)
    drop(orders, 3, 40)
    until("it goes on", lambda: sorted(row["id"] for row in read_delta(tmp_path / "all")) == [0, 3])
    lab.finish(source, accepting)
    # Unless it is written once more, as the error says.
    again = replace(lab.retried(accepting), tasks=(replay(5, missing=True),))
    lab.start(again)
    assert sorted(row["id"] for row in read_delta(tmp_path / "all")) == [0, 2, 3]
    lab.finish(again)
    # A gap behind the newest step is a loss, too: the table was restored while its sink ran.
    accepting.body.pop("on_target_change")  # type: ignore[attr-defined]
    assert lab.codes(accepting) == ["MZ069"]
    assert refusal(lab, accepting)[1].endswith("is missing step 2, which its checkpoint says were written")

    # Under a source that runs: its next commit takes the version of the lost one, and it ends.
    collection = lab._collection(source)
    lab.start(source)
    restore(collection)
    drop(orders, 4, 50)
    ended = lab.ended(source)
    assert ended.error_code == "MZ161" and "is missing step 3" in str(ended.error)
    lab.stop(source)
    restore(collection, 2)
    (gone,) = lab.executor.missing_storage(source)
    assert gone.code == "MZ161" and str(collection) in gone.detail
    assert "is missing steps 2 to 4" in gone.summary
    assert refusal(lab, source)[0] == "MZ161"


@pytest.mark.nightly
def test_a_table_that_is_restored_under_its_sink(lab: Lab, tmp_path: Path) -> None:
    """The next step takes the version of the lost one, and the sink ends."""
    orders = tmp_path / "orders"
    orders.mkdir()
    source = lab.files_source(orders)
    append = lab.delta_sink(source, tmp_path, "all")
    upsert = lab.delta_sink(source, tmp_path, "latest", mode="upsert", key=["id"])
    lab.start(source)
    for number in range(3):
        drop(orders, number, 10)
        until("the row is read", lambda n=number: lab.count(source) == n + 1)  # type: ignore[misc]
        if number == 0:
            lab.start(append, upsert)
        until("it is written", lambda n=number: min(map(lab.last_step, (append, upsert))) >= n)  # type: ignore[misc]
    assert lab.report(append).active and lab.report(upsert).active
    for name in ("all", "latest"):
        restore(tmp_path / name)
    drop(orders, 3, 10)
    for sink in (append, upsert):
        ended = lab.ended(sink)
        assert ended.error_code == "MZ069" and "is missing step 2," in str(ended.error)
    lab.stop(source, append, upsert)


@pytest.mark.nightly
def test_a_step_that_only_moves_the_checkpoint_isnt_a_loss(lab: Lab, tmp_path: Path) -> None:
    orders = tmp_path / "orders"
    orders.mkdir()
    source = lab.files_source(orders)
    lab.start(source)
    drop(orders, 0, 1)
    until("the row is read", lambda: lab.count(source) == 1)
    lab.finish(source)
    checkpoint = Checkpoint(str(lab.checkpoint(source)))
    checkpoint.log.skip(1)
    position = checkpoint.position()
    assert position is not None
    checkpoint.log.move(position)
    assert (checkpoint.log.committed(), checkpoint.log.last_written()) == (2, 0)
    assert lab.executor.missing_storage(source) == ()
    lab.start(source)
    drop(orders, 1, 1)
    until("it goes on", lambda: lab.count(source) == 2)
    lab.finish(source)
    assert lab.executor.missing_storage(source) == () and checkpoint.log.last_written() == 3
    settings = json.loads(checkpoint.log.lines(3)[1])
    assert "mzplanMoved" not in settings, "Spark has not copied it"
    newest = CollectionLog(str(lab._collection(source))).last_transaction(checkpoint.log.query_id() or "")
    assert newest == 3
