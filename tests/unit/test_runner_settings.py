"""What a runner takes over of mzplan.yaml while it runs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from mzplan.config import load_project
from mzplan.controller.reconcile import Pace
from mzplan.controller.types import StorageParameters
from mzplan.runner.settings import SettingsWatch, parameters_of

TEXT = "version: 1\nproject: shop\n"


def write(folder: Path, more: str) -> None:
    file = folder / "mzplan.yaml"
    file.write_text(TEXT + more)
    at = file.stat().st_mtime_ns + 1_000_000
    os.utime(file, ns=(at, at))


def test_changed_retries_and_retention_are_taken_over(tmp_path: Path) -> None:
    write(tmp_path, "")
    watch = SettingsWatch(tmp_path / "mzplan.yaml", lambda: load_project(str(tmp_path)))
    now = replace(parameters_of(load_project(str(tmp_path))), parallelism=3)
    assert watch.look(now) is None
    write(tmp_path, "retain_dropped: 5m\nretries: {first: 2s, last: 9s, budget: 4}\n")
    wanted = watch.look(now)
    assert wanted == StorageParameters(
        parallelism=3, retain_dropped=300.0, pace=Pace(first=2.0, last=9.0, budget=4)
    )
    assert watch.look(wanted) is None


def test_a_file_with_a_mistake_changes_nothing_until_it_is_mended(tmp_path: Path) -> None:
    write(tmp_path, "retain_dropped: 5m\n")
    watch = SettingsWatch(tmp_path / "mzplan.yaml", lambda: load_project(str(tmp_path)))
    now = parameters_of(load_project(str(tmp_path)))
    write(tmp_path, "retain_dropped: [\n")
    assert watch.look(now) is None
    (tmp_path / "mzplan.yaml").unlink()
    assert watch.look(now) is None
    write(tmp_path, "retain_dropped: 6m\n")
    changed = watch.look(now)
    assert changed is not None and changed.retain_dropped == 360.0
