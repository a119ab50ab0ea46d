"""Files that people name: writes are complete or absent, devices stay devices, and reads end."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mzplan.host import files
from mzplan.host.files import UnfitError
from mzplan.host.guarded_folder import write_whole
from mzplan.warehouse.stored_files import stored_in
from tests.support import full_disk
from tests.unit.cli_runs import apply, mzplan, write


def test_write_is_complete_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_whole(path, b"before")
    path.chmod(0o600)
    write_whole(path, b"after")
    assert path.read_bytes() == b"after" and path.stat().st_mode & 0o777 == 0o600
    with full_disk(100), pytest.raises(OSError, match="large"):
        write_whole(path, b"x" * 1000)
    assert path.read_bytes() == b"after" and [p.name for p in tmp_path.iterdir()] == ["f"]
    files.write_durably(path, b"again", mode=0o640)
    with pytest.raises(KeyboardInterrupt), files.replacing(path) as stream:
        stream.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"again" and path.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_existing_files_and_links_are_refused(tmp_path: Path) -> None:
    key, link, target = (tmp_path / name for name in ("key", "link", "target"))
    files.create_durably(key, b"one", mode=0o600)
    link.symlink_to(target)
    for path in (key, link):
        with pytest.raises(FileExistsError):
            files.create_durably(path, b"two")
    assert key.read_bytes() == b"one" and key.stat().st_mode & 0o777 == 0o600 and not target.exists()
    target.write_bytes(b"precious")
    with pytest.raises(UnfitError, match=r"a link to .*; mzplan doesn't follow links"):
        write_whole(link, b"there")
    assert link.is_symlink() and target.read_bytes() == b"precious"


def test_folders_devices_and_large_files_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 1000)
    (tmp_path / "large").write_bytes(b"x" * 1001)
    (tmp_path / "small").write_bytes(b"x")
    for read in (files.read_regular, files.read_bounded):
        for unfit, why in (("/dev/zero", "."), (tmp_path, "."), (tmp_path / "large", "more than")):
            with pytest.raises(OSError, match=why):
                read(unfit)
        assert read(tmp_path / "small") == b"x"


def test_commands_write_their_results_into_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "p")
    apply(folder)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        for command in ("plan --out", "plan --markdown", "drift --markdown", "state pull --out"):
            written = pool.submit(pipe.read_bytes)
            assert mzplan(folder, *command.split(), str(pipe)).code == 0
            assert written.result(20) and pipe.is_fifo() and not Path(f"{pipe}.runners").exists()
    monkeypatch.setattr(files, "MAX_BYTES", 100_000)
    ran = mzplan(folder, "state", "push", "/dev/zero", "--json")
    assert ran.code == 1 and "more than" in ran.error()["detail"]


def test_files_that_vanish_while_a_folder_is_measured_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a running query, which renames temporary files."""
    for name, text in (("3.json", "123"), ("4.json.tmp", "12")):
        (tmp_path / name).write_text(text)
    (tmp_path / "gone").mkdir()
    lstat = os.lstat

    def racing(path: str) -> os.stat_result:
        (tmp_path / "4.json.tmp").unlink(missing_ok=True)
        if (tmp_path / "gone").is_dir():
            (tmp_path / "gone").rmdir()
        return lstat(path)

    monkeypatch.setattr(os, "lstat", racing)
    stored = stored_in(str(tmp_path))
    assert stored is not None and (stored.files, stored.bytes) == (1, 3)
