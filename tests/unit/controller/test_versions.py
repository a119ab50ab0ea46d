"""The Spark and Delta versions that wrote a checkpoint: recorded, shown, and refused if unreadable."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from mzplan.host.spark_lines import LINES, NEWEST, OLDEST, installed_spark
from mzplan.model.address import Address
from mzplan.model.codec import encode
from mzplan.model.diagnostics import Diagnostic
from mzplan.model.observed import Versions
from mzplan.spark.versions import require_features, require_readable, take_over
from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store
from mzplan.warehouse.checkpoints import Checkpoint
from mzplan.warehouse.collection_log import CollectionLog, Features
from tests.support import refusal
from tests.unit.cli_runner import following
from tests.unit.cli_runs import apply, mzplan, write

ORDERS = Address("source", "orders")
OLD = Versions(mzplan="0.1.0", spark="4.0.5", delta="4.0.0", kafka="4.0.0")
NEW = Versions(mzplan="0.1.0", spark="4.2.0", delta="4.4.0", kafka="4.2.0")


def test_versions_are_recorded_before_they_write(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    assert take_over(checkpoint, ORDERS, OLD) is None, "a new one"
    assert take_over(checkpoint, ORDERS, OLD) is None
    assert take_over(checkpoint, ORDERS, NEW) == OLD
    assert checkpoint.versions() == NEW
    assert take_over(checkpoint, ORDERS, OLD) == NEW, "and back"
    assert take_over(checkpoint, ORDERS, replace(OLD, mzplan="0.2.0")) is None, "it stores the same"
    stored = json.loads((tmp_path / "versions.json").read_text())
    assert stored == {"format_version": 1, "versions": {**encode(OLD), "mzplan": "0.2.0"}}


def test_an_unknown_line_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    checkpoint = Checkpoint(str(tmp_path))
    later = Versions(mzplan="0.9.0", spark="4.9.0", delta="5.0.0", kafka="4.9.0")
    checkpoint.record_versions(later)
    told = refusal(lambda: take_over(checkpoint, ORDERS, NEW))
    assert told.code == "MZ031" and told.address == ORDERS
    assert "Spark 4.9.0" in told.summary and NEWEST.spark in told.detail
    assert "mzplan 0.9.0" in told.hint and f"--replace {ORDERS}" in told.hint
    assert checkpoint.versions() == later


def test_a_newer_layout_stops_only_its_query(tmp_path: Path) -> None:
    (tmp_path / "layout.json").write_text('{"layout": {"version": 7}}')
    told = refusal(lambda: require_readable(Checkpoint(str(tmp_path)), ORDERS))
    assert told.code == "MZ031" and told.address == ORDERS and "layout 7" in told.summary


def table_of(folder: Path, *protocols: dict[str, Any], checkpoint: dict[str, Any] | None = None) -> str:
    """A Delta table with a commit for each protocol and, if given, a checkpoint before them."""
    log = folder / "_delta_log"
    log.mkdir(parents=True)
    first = 0
    if checkpoint is not None:
        first = 11
        rows = [
            {"protocol": None, "txn": {"appId": "a", "version": 3}},
            {"protocol": checkpoint, "txn": None},
        ]
        parquet.write_table(pa.Table.from_pylist(rows), log / f"{10:020}.checkpoint.parquet")
        # It is older than the checkpoint, which has another protocol.
        (log / f"{9:020}.json").write_text(json.dumps({"protocol": protocol("gone")}))
    for version, one in enumerate(protocols, first):
        lines = [{"commitInfo": {"operation": "SET TBLPROPERTIES"}}, *([{"protocol": one}] if one else [])]
        (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, lines)))
    return str(folder)


def protocol(*writing: str, reading: Sequence[str] = ()) -> dict[str, Any]:
    versions = {"minReaderVersion": 3, "minWriterVersion": 7}
    return {**versions, "readerFeatures": list(reading), "writerFeatures": [*writing, *reading]}


def features(*writing: str, reading: Sequence[str] = ()) -> Features:
    return Features(reading=frozenset(reading), writing=frozenset([*writing, *reading]))


def test_the_features_that_a_table_requires(tmp_path: Path) -> None:
    def found(name: str, *protocols: dict[str, Any], **more: Any) -> Features | None:
        return CollectionLog(table_of(tmp_path / name, *protocols, **more)).features()

    assert CollectionLog(str(tmp_path / "nowhere")).features() is None
    assert found("silent", {}) is None
    assert found("old", {"minReaderVersion": 1, "minWriterVersion": 2}) == features()
    assert found("newest", protocol("a"), protocol("a", reading=["b"]), {}) == features("a", reading=["b"])
    kept = protocol("a", reading=["b"])
    assert found("kept", {}, {}, checkpoint=kept) == features("a", reading=["b"])
    assert found("later", protocol("c"), {}, checkpoint=kept) == features("c")
    assert CollectionLog(str(tmp_path / "kept")).last_transaction("a") == 3


@pytest.mark.parametrize("note", ["", '{"version": "x"}', '{"version": 10, "parts": 2}', '{"version": 10}'])
def test_the_newest_checkpoint_is_found_and_damage_is_an_error(tmp_path: Path, note: str) -> None:
    """Delta's `_last_checkpoint` saves a listing. Without it, or if it is incomplete, the log is listed."""
    log = tmp_path / "_delta_log"
    table = CollectionLog(table_of(tmp_path, {}, checkpoint=protocol("a")))
    (log / "_last_checkpoint").write_text(note)
    for name in (f"{12:020}-old.checkpoint.parquet", f"{13:020}.checkpoint.json", "x.checkpoint.parquet"):
        (log / name).write_bytes(b"")  # not a checkpoint that mzplan reads
    assert table.features() == features("a")
    checkpoint = log / f"{10:020}.checkpoint.parquet"
    parquet.write_table(pa.table({"add": [None]}), checkpoint)
    with pytest.raises(OSError, match="parquet is damaged"):
        table.features()
    checkpoint.write_bytes(b"PAR1")
    with pytest.raises(OSError, match="parquet is damaged"):
        table.features()


def missing_features(table: str, *, writes: bool) -> Diagnostic:
    told = refusal(lambda: require_features(CollectionLog(table), ORDERS, OLDEST.features, writes=writes))
    assert told.code == "MZ281" and told.address == ORDERS and table in told.detail
    return told


def test_a_table_that_needs_another_delta_is_refused(tmp_path: Path) -> None:
    made = protocol("appendOnly", "invariants", "changeDataFeed", reading=["deletionVectors", "timestampNtz"])
    for line in LINES:  # the fault test of an upgrade creates these tables with each of two lines
        table = CollectionLog(table_of(tmp_path / line.spark, made))
        require_features(table, ORDERS, line.features, writes=True)
    (newer, *_) = sorted(NEWEST.features - OLDEST.features)
    written = table_of(tmp_path / "written", protocol("appendOnly", newer))
    require_features(CollectionLog(written), ORDERS, OLDEST.features, writes=False)
    require_features(CollectionLog(written), ORDERS, NEWEST.features, writes=True)
    told = missing_features(written, writes=True)
    assert f"1 feature missing in this runner's Delta: {newer}." in told.detail
    assert f"Spark {NEWEST.spark}" in told.hint and f"pyspark=={NEWEST.tested[-1]}" in told.hint
    read = table_of(tmp_path / "read", protocol(newer, reading=["ofTomorrow"]))
    told = missing_features(read, writes=False)
    assert "1 feature missing in this runner's Delta: ofTomorrow" in told.detail
    told = missing_features(read, writes=True)
    assert "2 features" in told.detail and "pip install" not in told.hint and "DROP FEATURE" in told.hint


def test_a_plan_names_the_versions_of_the_next_and_the_present_runner(tmp_path: Path) -> None:
    folder = write(tmp_path, "embedded")
    with following(folder):
        apply(folder)
    store = Store(LocalBackend(tmp_path / "state"), "shop")
    status, installed = store.read_status("local"), installed_spark()
    assert status is not None and installed is not None

    def notices(versions: Versions | None, written_with: Versions | None = None) -> list[str]:
        seen = {a: replace(one, written_with=written_with) for a, one in status.observations.items()}
        store.write_status(replace(status, versions=versions, observations=seen))
        found = mzplan(folder, "plan", "--json").json()["diagnostics"]
        return [d["summary"] for d in found if "last written with" in d["summary"]]

    assert notices(None) == notices(replace(NEW, spark=installed)) == []
    (found,) = notices(OLD)
    assert f"will run Spark {installed}" in found and "Spark 4.0.5 and Delta 4.0.0" in found
    assert store.leases.acquire("local", "test") is not None
    assert notices(OLD) == []  # the runner isn't replaced
    (found,) = notices(NEW, written_with=OLD)
    assert "runs Spark 4.2.0 and Delta 4.4.0" in found and "Spark 4.0.5 and Delta 4.0.0" in found
