"""The versions of snapshots that a view's step reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from mzplan.warehouse import snapshot_versions
from mzplan.warehouse.snapshot_versions import SnapshotVersions, name_of

CUSTOMERS, CITIES = ("customers-id", 1), ("cities-id", 2)


def table(folder: Path, *versions: int) -> str:
    """Create a table whose log has these versions."""
    log = folder / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    for version in versions:
        (log / f"{version:020}.json").touch()
    return str(folder)


def test_a_step_reads_the_same_versions_again(tmp_path: Path) -> None:
    paths = {CUSTOMERS: table(tmp_path / "a", 0, 1), CITIES: table(tmp_path / "b", 0)}
    versions = SnapshotVersions(str(tmp_path / "checkpoint"))
    assert versions.at(7) == {}
    assert versions.choose(7, paths) == {CUSTOMERS: 1, CITIES: 0}
    assert versions.at(7) == {name_of(CUSTOMERS): 1, name_of(CITIES): 0}
    table(tmp_path / "a", 2)
    again = SnapshotVersions(str(tmp_path / "checkpoint"))
    assert again.choose(7, paths) == {CUSTOMERS: 1, CITIES: 0}
    assert again.choose(8, paths) == {CUSTOMERS: 2, CITIES: 0}


def test_the_newest_version_is_read_if_the_recorded_one_is_gone(tmp_path: Path) -> None:
    path = table(tmp_path / "a", 0, 1)
    versions = SnapshotVersions(str(tmp_path / "checkpoint"))
    versions.choose(3, {CUSTOMERS: path})
    (tmp_path / "a" / "_delta_log" / f"{1:020}.json").unlink()
    table(tmp_path / "a", 2)
    assert versions.choose(3, {CUSTOMERS: path}) == {CUSTOMERS: 2}
    with pytest.raises(OSError, match="no Delta log"):
        versions.choose(4, {CUSTOMERS: str(tmp_path / "nothing")})


def test_only_the_newest_steps_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_versions, "RETAINED_STEPS", 3)
    path = table(tmp_path / "a", 0)
    versions = SnapshotVersions(str(tmp_path / "checkpoint"))
    for step in range(10):
        versions.choose(step, {CUSTOMERS: path})
    assert [step for step in range(10) if versions.at(step)] == [7, 8, 9]
