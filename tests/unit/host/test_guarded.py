"""A folder that somebody changes while it is listed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mzplan.warehouse.stored_files import stored_in


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder whose temporary file and inner folder vanish after the first listing."""
    (tmp_path / "log").mkdir()
    (tmp_path / "gone").mkdir()
    (tmp_path / "log" / "4.json.tmp").write_text("12")
    (tmp_path / "log" / "3.json").write_text("123")
    scan = os.scandir

    class Listed:
        def __init__(self, place: Any):
            with scan(place) as entries:
                self._entries = iter(list(entries))
            (tmp_path / "log" / "4.json.tmp").unlink(missing_ok=True)
            if (tmp_path / "gone").is_dir():
                (tmp_path / "gone").rmdir()

        def __iter__(self) -> Iterator[os.DirEntry[str]]:
            return self._entries

        def __next__(self) -> os.DirEntry[str]:
            return next(self._entries)

        def __enter__(self) -> Listed:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(os, "scandir", Listed)
    return tmp_path


def test_files_that_vanish_during_the_count_are_ignored(written: Path) -> None:
    stored = stored_in(str(written))
    assert stored is not None and stored.bytes >= 3
