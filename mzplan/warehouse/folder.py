"""A folder of small durable files, on a file system or in an object store."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from mzplan.warehouse.paths import local_path

Data = bytes | memoryview


class Folder(Protocol):
    """Files by name. A write is whole or not at all, and durable when it returns. Raises OSError."""

    def names(self) -> list[str]:
        """The files that are there, sorted; none where the folder is not."""

    def read(self, name: str) -> bytes | None:
        """A file's content, None when it is not there."""

    def write(self, name: str, data: Data) -> None:
        """Make or replace a file."""

    def size(self, names: list[str]) -> int:
        """How many bytes these files have together."""

    def delete(self, name: str) -> None:
        """Remove a file; no error when it is gone."""

    def lock(self) -> contextlib.AbstractContextManager[bool]:
        """Keep other writers out, of this machine and any other; True where the storage can do that. Then
        all writers must hold it: what a killed one has left half written is removed."""


def open_folder(place: str) -> Folder:
    """The folder at a path or URI, which need not be there yet."""
    local = local_path(place)
    if local is not None:
        return LocalFolder(local)
    from mzplan.warehouse.checkpoints import remote

    system, path = remote(place)
    return RemoteFolder(system, path)


class LocalFolder:
    """On a file system: temporary file, fsync, rename, fsync of the folder. Hidden names are our own."""

    def __init__(self, path: Path):
        self.path = path

    def names(self) -> list[str]:
        try:
            return sorted(one.name for one in self.path.iterdir() if not one.name.startswith("."))
        except FileNotFoundError:
            return []

    def read(self, name: str) -> bytes | None:
        try:
            return (self.path / name).read_bytes()
        except FileNotFoundError:
            return None

    def write(self, name: str, data: Data) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        fresh = self.path / f".{name}.{secrets.token_hex(6)}.new"
        try:
            with fresh.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.path / name)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
        self._sync()

    def size(self, names: list[str]) -> int:
        return sum((self.path / name).stat().st_size for name in names)

    def delete(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        """A lock of the kernel, which ends with the process, however it ends."""
        import fcntl

        self.path.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            for left in self.path.glob(".*.new"):  # of a writer that was killed
                left.unlink(missing_ok=True)
            yield True
        finally:
            os.close(handle)

    def _sync(self) -> None:
        for folder in (self.path, self.path.parent):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


class RemoteFolder:
    """In an object store, by pyarrow: an object shows when it is whole. There is no lock."""

    def __init__(self, system: Any, path: str):
        self._system = system
        self._path = path.rstrip("/")

    def names(self) -> list[str]:
        from pyarrow import fs

        found = self._system.get_file_info(fs.FileSelector(self._path, allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == fs.FileType.File)

    def read(self, name: str) -> bytes | None:
        try:
            with self._system.open_input_stream(f"{self._path}/{name}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def write(self, name: str, data: Data) -> None:
        self._system.create_dir(self._path, recursive=True)
        with self._system.open_output_stream(f"{self._path}/{name}") as stream:
            stream.write(data)

    def size(self, names: list[str]) -> int:
        found = self._system.get_file_info([f"{self._path}/{name}" for name in names])
        return sum(info.size or 0 for info in found)

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._system.delete_file(f"{self._path}/{name}")

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        yield False
