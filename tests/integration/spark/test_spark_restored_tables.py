"""A Delta table that was restored to an older copy: the table of a sink, and a collection."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.spark_lab import Lab, read_delta
from tests.support import eventually
from tests.tasks import replay


class Shop:
    """A source of orders in files, and sinks of them into Delta tables."""

    def __init__(self, lab: Lab, folder: Path, **body: Any):
        self.lab, self.folder, self.inbox = lab, folder, folder / "orders"
        self.inbox.mkdir()
        self.source = lab.files_source(self.inbox)
        self.append = lab.delta_sink(self.source, folder, "all", **body)
        self.upsert = lab.delta_sink(self.source, folder, "latest", mode="upsert", key=["id"], **body)

    def drop(self, number: int, amount: int = 10) -> None:
        row = f'{{"id": {number}, "customer": "a", "amount": {amount}}}\n'
        (self.inbox / f"{number}.json").write_text(row)

    def write(self, *amounts: int) -> None:
        """One step for each order, in the collection and in the tables."""
        lab = self.lab
        lab.start(self.source)
        for number, amount in enumerate(amounts):
            self.drop(number, amount)
            eventually("the row is read", lambda n=number: lab.count(self.source) == n + 1)  # type: ignore[misc]
            if number == 0:
                lab.start(self.append, self.upsert)
            for sink in (self.append, self.upsert):
                eventually("it is written", lambda n=number, s=sink: lab.last_step(s) >= n)  # type: ignore[misc]

    def appended(self) -> list[int]:
        return sorted(row["id"] for row in read_delta(self.folder / "all"))


def restore(table: Path, commits: int = 1) -> None:
    """As from a copy that is so many commits older."""
    logged = sorted((table / "_delta_log").glob("*.json"))
    for entry in logged[-commits:]:
        entry.unlink()
        entry.with_name(f".{entry.name}.crc").unlink(missing_ok=True)
        entry.with_suffix(".crc").unlink(missing_ok=True)


@pytest.mark.nightly
def test_a_restored_table_is_refused(lab: Lab, tmp_path: Path) -> None:
    shop = Shop(lab, tmp_path, where="amount > 10")
    source, append, upsert = shop.source, shop.append, shop.upsert
    shop.write(20, 5, 30)  # step 1 leaves no row in the sinks, and a commit
    lab.finish(source, append, upsert)
    assert lab.codes(source) == lab.codes(append) == lab.codes(upsert) == []
    for sink, name in ((append, "all"), (upsert, "latest")):
        restore(tmp_path / name)
        assert lab.codes(sink) == ["MZ069"]
        found = lab.refused(sink)
        assert found.code == "MZ069" and "is missing step 2," in found.summary
        assert str(tmp_path / name) in found.detail

    # Whoever accepts it goes on: the lost row is lost, and what comes is written once.
    accepting = lab.changed(append, on_target_change="accept")
    assert lab.finds(accepting, "MZ069").severity == "notice"
    lab.start(source, accepting)
    shop.drop(3, 40)
    eventually("it goes on", lambda: shop.appended() == [0, 3])
    lab.finish(source, accepting)
    # Unless it is written once more, as the error says.
    again = replace(lab.retried(accepting), tasks=(replay(5, missing=True),))
    lab.start(again)
    assert shop.appended() == [0, 2, 3]
    lab.finish(again)
    # A gap behind the newest step is a loss, too: the table was restored while its sink ran.
    found = lab.refused(append)
    assert found.code == "MZ069"
    assert found.summary.endswith("is missing step 2, which its checkpoint says were written")

    # Under a source that runs: its next commit takes the version of the lost one, and it ends.
    collection = lab._collection(source)
    lab.start(source)
    restore(collection)
    shop.drop(4, 50)
    lab.fails(source, "MZ161", "is missing step 3")
    lab.stop(source)
    restore(collection, 2)
    (gone,) = lab.executor.missing_storage(source)
    assert gone.code == "MZ161" and str(collection) in gone.detail
    assert "is missing steps 2 to 4" in gone.summary
    assert lab.refused(source).code == "MZ161"


@pytest.mark.nightly
def test_a_table_that_is_restored_under_its_sink(lab: Lab, tmp_path: Path) -> None:
    """The next step takes the version of the lost one, and the sink ends."""
    shop = Shop(lab, tmp_path)
    shop.write(10, 10, 10)
    assert lab.report(shop.append).active and lab.report(shop.upsert).active
    for name in ("all", "latest"):
        restore(tmp_path / name)
    shop.drop(3)
    for sink in (shop.append, shop.upsert):
        lab.fails(sink, "MZ069", "is missing step 2,")
