"""What a collection gives up, on real Delta tables: files are merged and reclaimed while sinks read on, and
nothing that one of them has still to read is touched."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from mzplan.controller.decision import WantedQuery
from mzplan.controller.terms import LagSteps, ReadBeforeSinceError, StorageParameters
from mzplan.spark.delta_storage import DeltaStorage, _Reclaim
from mzplan.warehouse.checkpoints import collection_path
from mzplan.warehouse.rows.snapshot import small_files
from tests.contract.controllers import (
    World,
    appending,
    create,
    create_sink,
    local_source,
    on_spark,
    play,
    rows,
    settle,
    sink_of,
    snapshot,
)
from tests.unit.connectors.queries import inlined

SOURCE = local_source("a")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    yield from on_spark(tmp_path)


def into_delta(id_: str, folder: Path, **more: Any) -> WantedQuery:
    made = sink_of(SOURCE, id_)
    query = replace(
        made.description,
        type="delta",
        body={**made.description.body, "type": "delta", "path": id_, **more},
        connections={"connection": inlined("lake", {"type": "files", "path": str(folder)})},
    )
    return replace(made, description=query)


def ids(folder: Path, sink: str) -> list[int]:
    return sorted(DeltaTable(str(folder / sink)).to_pyarrow_table().column("id").to_pylist())


def operations(table: Path) -> set[str]:
    return {commit["operation"] for commit in DeltaTable(str(table)).history()}


def age(table: Path) -> None:
    """Three hours go by, for what is in the table: Delta counts in whole ones."""
    passed = 3 * 3_600_000
    for path in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            for kind, field in (("commitInfo", "timestamp"), ("remove", "deletionTimestamp")):
                if field in action.get(kind, {}):
                    action[kind][field] -= passed
        then = path.stat().st_mtime - passed / 1000
        path.write_text("".join(json.dumps(action) + "\n" for action in actions))
        os.utime(path, (then, then))
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's checksum of the file
    for path in table.glob("*.parquet"):
        then = path.stat().st_mtime - passed / 1000
        os.utime(path, (then, then))


@pytest.mark.nightly
def test_a_collection_gives_up_what_nobody_reads(world: World, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    controller = world.controller()
    storage = controller.kernel.storage
    assert isinstance(storage, DeltaStorage)
    storage.merge_at, storage.safety, storage.reclaim_every = 8, 0.0, 3600.0
    storage._reclaimed["a", 1] = _Reclaim(time.monotonic(), 0, 0)
    controller.update_configuration(StorageParameters(maintain_every=1.0))
    late = into_delta("late", lake)
    create(controller, SOURCE)
    live = into_delta("live", lake, compaction={"min_files": 2})
    create_sink(controller, live, replace(late, paused=True))
    controller.set_read_policy([("a", LagSteps(steps=3))])
    for step in range(9):
        controller.append([appending("a", step, *rows(step * 10, 10))]).result(20)
    play(controller, "a", 9)
    table = Path(collection_path(str(tmp_path / "warehouse"), "a", 1))
    settle(controller, lambda: small_files(str(table)) < 8)
    # Merged; and all of it is still there, for one sink has read nothing yet.
    assert controller.collection("a").since == 0 and controller.collection("a").holds["late"] == 0
    assert len(list(table.glob("*.parquet"))) >= 9
    assert len(snapshot(controller, "a", 0)) == 10

    create_sink(controller, late)
    settle(controller, lambda: controller.collection("a").holds["late"] == 9)
    assert ids(lake, "late") == list(range(90))
    settle(controller, lambda: controller.collection("a").since == 6)
    assert len(snapshot(controller, "a", 6)) == 70
    with pytest.raises(ReadBeforeSinceError, match="6 to 9"):
        snapshot(controller, "a", 5)

    age(table)
    DeltaTable(str(table)).create_checkpoint()  # Delta's would come with version 20
    storage.reclaim_every = 5.0
    for step in range(9, 13):
        controller.append([appending("a", step, *rows(step * 10, 10))]).result(20)
    settle(controller, lambda: len(ids(lake, "live")) == len(ids(lake, "late")) == 130)
    assert ids(lake, "live") == ids(lake, "late") == list(range(130))
    # What was merged before the oldest readable step is gone, and that step is still there.
    settle(controller, lambda: len(list(table.glob("*.parquet"))) < 9)
    settle(controller, lambda: controller.collection("a").since == 10)
    assert [len(snapshot(controller, "a", step)) for step in (10, 12)] == [110, 130]
    # So are the entries of the log before a checkpoint; and the sinks read on.
    log = table / "_delta_log"
    settle(controller, lambda: min(int(path.stem) for path in log.glob("*.json")) > 0)
    controller.append([appending("a", 13, *rows(130, 10))]).result(20)
    settle(controller, lambda: len(ids(lake, "live")) == len(ids(lake, "late")) == 140)
    assert ids(lake, "live") == ids(lake, "late") == list(range(140))
    # So are the files of a sink's table, if it asks for that.
    settle(controller, lambda: "OPTIMIZE" in operations(lake / "live"))
    assert ids(lake, "live") == list(range(140)) and "OPTIMIZE" not in operations(lake / "late")
