"""Messages about stored data before a deletion: which data, when, and how to keep or restore it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mzplan.model.state import DroppedStorage, ProjectStatus
from mzplan.model.times import shortest
from mzplan.render.status import render_status
from tests.unit.cli_runs import Ran, apply, mzplan, state, write

ALL = ("source.orders", "sink.out", "sink.few")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a committed project with stored data, whose runner is on another machine."""
    folder = write(tmp_path, "cluster")
    assert mzplan(folder, "apply", "--auto-approve", "--no-live", "--wait", "0s").code == 8
    for kind, size in (("collections", 3 << 20), ("checkpoints", 2048)):
        place = folder / "warehouse" / kind / state(folder)["resources"]["source.orders"]["id"] / "g1"
        place.mkdir(parents=True)
        with (place / "data").open("wb") as file:
            file.truncate(size)
    return folder


def notice(ran: Ran) -> Any:
    (found,) = (d for d in ran.json()["diagnostics"] if d["code"] == "MZ152")
    return found


def test_plan_lists_the_deleted_data_and_the_deadline(folder: Path) -> None:
    pipeline = folder / "pipeline.yaml"
    pipeline.write_text(pipeline.read_text().partition("sources:")[0])
    found = notice(mzplan(folder, "plan", "--json"))
    assert found["severity"] == "notice" and " 7d " in found["summary"] and "3 queries" in found["summary"]
    place = f"({state(folder)['resources']['source.orders']['id']}, generation 1)"
    assert f"source.orders: collection of 3.0 MiB and checkpoint of 2.0 KiB {place}" in found["detail"]
    assert "sink.few: checkpoint (nothing yet)" in found["detail"]


def test_the_suggested_command_keeps_the_data(folder: Path) -> None:
    ran = mzplan(folder, "destroy", "--target", "source.orders")
    assert "state rollback 1." in ran.out
    assert ran.code == 64  # there is no terminal on which to confirm
    line = next(one for one in ran.out.splitlines() if "state rm" in one)
    words = line.partition("mzplan state rm ")[2].partition(";")[0].split()
    assert sorted(words) == sorted(ALL)
    ran = mzplan(folder, "state", "rm", *words)
    assert "stays" in ran.out and (folder / "warehouse" / "collections").is_dir()


def test_a_replacement_lists_the_data_of_its_old_generation(folder: Path) -> None:
    settings = folder / "mzplan.yaml"
    settings.write_text(settings.read_text() + "retain_dropped: 90m\n")
    found = notice(mzplan(folder, "plan", "--replace", "sink.few", "--json"))
    assert " 90m " in found["summary"] and "sink.few" in found["detail"] and found["hint"] == ""
    texts = {0.0: "0s", 1.5: "1.5s", 90.0: "90s", 3600.0: "1h", 86_400.0: "1d"}
    assert {seconds: shortest(seconds) for seconds in texts} == texts


def test_no_message_without_stored_data(tmp_path: Path) -> None:
    folder = write(tmp_path)
    apply(folder)
    assert "MZ152" not in mzplan(folder, "destroy", "--auto-approve").out


def test_status_lists_dropped_storage_in_one_line() -> None:
    addresses = [f"source.{name}" for name in "abcde"]
    dropped = tuple(DroppedStorage(address=a, id=a, generation=1, dropped_at=0.0) for a in addresses)
    text = render_status(ProjectStatus(serial=1, instances=(), queries=(), dropped=dropped))
    (line,) = (one for one in text.splitlines() if "retain_dropped" in one)
    assert "5 generations" in line and "source.c g1 and 2 more" in line and "mzplan state gc" not in line
