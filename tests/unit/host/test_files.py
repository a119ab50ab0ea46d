"""Files that people name: writes are complete or absent, devices stay devices, and reads end."""

from __future__ import annotations

import errno
import os
import resource
import signal
import threading
from pathlib import Path

import pytest

from mzplan.host import files
from mzplan.host.files import UnfitError
from mzplan.host.guarded_folder import write_whole
from tests.unit.cli_runs import apply, mzplan, write


def test_write_is_complete_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_whole(path, b"before")
    path.chmod(0o600)
    write_whole(path, b"after")
    assert path.read_bytes() == b"after" and path.stat().st_mode & 0o777 == 0o600
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limit[1]))
        with pytest.raises(OSError, match="large"):
            write_whole(path, b"x" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == b"after" and [p.name for p in tmp_path.iterdir()] == ["f"]


def test_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "f"
    files.write_durably(path, b"before", mode=0o640)
    with pytest.raises(KeyboardInterrupt), files.replacing(path) as stream:
        stream.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"before" and path.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["f"]


def test_create_refuses_existing_files_and_links(tmp_path: Path) -> None:
    files.create_durably(tmp_path / "key", b"one", mode=0o600)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("key", "link"):
        with pytest.raises(FileExistsError):
            files.create_durably(tmp_path / name, b"two")
    assert (tmp_path / "key").read_bytes() == b"one" and not (tmp_path / "elsewhere").exists()
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_new_file_is_removed_if_its_folder_can_not_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "sync_folder", fails)
    with pytest.raises(OSError, match="No space"):
        files.create_durably(tmp_path / "key", b"one")
    assert list(tmp_path.iterdir()) == []


def test_links_are_refused_and_pipes_stay_pipes(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for _ in range(2):
        with pytest.raises(UnfitError, match=r"a link to .*; mzplan doesn't follow links"):
            write_whole(tmp_path / "link", b"there")
        assert (tmp_path / "link").is_symlink()
        (tmp_path / "target").write_bytes(b"precious")
    assert (tmp_path / "target").read_bytes() == b"precious"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"x" * 100_000)
    reader.join(20)
    assert got == [b"x" * 100_000] and pipe.is_fifo()


def test_folders_devices_and_large_files_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 1000)
    for read in (files.read_regular, files.read_bounded):
        with pytest.raises(OSError):
            read("/dev/zero")
        with pytest.raises(OSError):
            read(tmp_path)
        (tmp_path / "large").write_bytes(b"x" * 1001)
        with pytest.raises(OSError, match="more than"):
            read(tmp_path / "large")
        (tmp_path / "small").write_bytes(b"x")
        assert read(tmp_path / "small") == b"x"


def test_results_of_commands_into_pipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "p")
    apply(folder)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for arguments in (
        ("plan", "--out"),
        ("plan", "--markdown"),
        ("drift", "--markdown"),
        ("state", "pull", "--out"),
    ):
        got: list[bytes] = []
        reader = threading.Thread(target=lambda got=got: got.append(pipe.read_bytes()))  # type: ignore[misc]
        reader.start()
        assert mzplan(folder, *arguments, str(pipe)).code == 0
        reader.join(20)
        assert got[0] and pipe.is_fifo() and not Path(f"{pipe}.runners").exists()
    monkeypatch.setattr(files, "MAX_BYTES", 100_000)
    ran = mzplan(folder, "state", "push", "/dev/zero", "--json")
    assert ran.code == 1 and "more than" in ran.error()["detail"]
