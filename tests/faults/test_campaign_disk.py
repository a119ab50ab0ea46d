"""ENOSPC and EIO at each thing that a command asks of the disk, on a dry instance with the local backend."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mzplan.store.backends.local import LocalBackend
from mzplan.store.store import Store
from tests.faults.campaigns import SIZE, Before, ended, fresh_copy, goes_on
from tests.faults.failing_disk import FailingDisk
from tests.unit.cli_runs import apply, mzplan, write

# A full disk; one bad block; a disk that is gone; an answer that was lost after the thing was done.
FAULTS: list[dict[str, Any]] = [
    {"error": errno.ENOSPC, "lasting": True},
    {"error": errno.EIO},
    {"error": errno.EIO, "lasting": True},
    {"error": errno.EIO, "late": True},
]
ALTER = ("alter", "ALTER CONNECTION k SET BROKER 'b:9092'", "--auto-approve")
COMMANDS = {
    "first apply": ("new", ("apply", "--auto-approve")),
    "apply": ("edited", ("apply", "--auto-approve")),
    "alter": ("applied", ALTER),
    "pause": ("applied", ("pause", "sink.out")),
    "rollback": ("applied", ("state", "rollback", "--auto-approve")),
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three projects: new, applied and paused, and with an edit on top."""
    folder = tmp_path_factory.mktemp("origins")
    write(folder / "new")
    for name in ("applied", "edited"):
        apply(write(folder / name))
        assert mzplan(folder / name, "pause", "sink.few").code == 0
    write(folder / "edited", broker="c")
    return folder


def faults(make: Callable[[], Path], *arguments: str) -> Iterator[tuple[Path, FailingDisk, str]]:
    """A copy of the project and its disk for each case; each call fails in one way, or in several."""
    folder = make()
    counted = FailingDisk(folder)
    ended(folder, counted.failing(), *arguments)
    assert len(counted.calls) >= 3
    for at, call in enumerate(counted.calls):
        for number, fault in enumerate(FAULTS):
            if (number - at) % len(FAULTS) < SIZE:
                folder = make()
                yield folder, FailingDisk(folder, at=at, **fault), f"{call} {fault}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_commits_on_a_failing_disk(origins: Path, tmp_path: Path, command: str) -> None:
    origin, arguments = COMMANDS[command]
    old = (origins / origin / "pipeline.yaml").read_bytes()
    new = old.replace(b"a:9092", b"b:9092") if arguments == ALTER else old
    for folder, disk, _what in faults(lambda: fresh_copy(origins / origin, tmp_path / "p"), *arguments):
        before = Before(folder, Store(LocalBackend(folder / "state"), "shop"))
        ran = ended(folder, disk.failing(), *arguments)
        before.holds(ran)
        is_committed = before.is_committed
        file = (folder / "pipeline.yaml").read_bytes()
        assert file in (old, new) and (is_committed or file == old)
        if disk.error == errno.ENOSPC:  # then files can be removed
            assert [path.name for path in folder.rglob("*.tmp")] == []
        goes_on(folder)
        before.stands()
        assert (folder / "pipeline.yaml").read_bytes() == (new if is_committed else old)


def test_a_plan_that_is_saved_on_a_failing_disk(origins: Path, tmp_path: Path) -> None:
    def make() -> Path:
        return fresh_copy(origins / "edited", tmp_path / "p")

    file = tmp_path / "p" / "saved.plan"
    arguments = ("plan", "--out", str(file))
    for folder, disk, _what in faults(make, *arguments):
        before = Before(folder, Store(LocalBackend(folder / "state"), "shop"))
        ran = ended(folder, disk.failing(), *arguments)
        assert not before.is_committed and ran.code in (0, 1), ran
        before.stands()
        if file.exists():
            assert mzplan(folder, "apply", str(file), "--json").code == 0
        else:
            assert ran.code == 1 and ran.json()["diagnostics"][0]["code"].startswith("MZ"), ran
