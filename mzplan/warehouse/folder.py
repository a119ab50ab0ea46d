"""Folders of small durable files, and single files, on a file system or in an object store."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from typing import Any, Protocol
from urllib.parse import quote

from mzplan.host.files import left_of, sync_folder
from mzplan.host.guarded import GuardedFolder
from mzplan.warehouse.paths import local_path, split_storage

Data = bytes | memoryview
_IN_URIS = "%/:?#[]@!$&'()*+,;=~"
_SHOWN = 200  # characters of what decoding says, which may repeat what it has met
_RETRIES_S = 15  # of a request to Google's object store, whose client would try for 15 minutes
# What decoding raises for a text that others may have written: `1e999` as a number of a step is an
# OverflowError, and a hundred thousand brackets are a RecursionError.
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


class Folder(Protocol):
    """Files by name. A write is whole or not at all, and durable when it returns. Raises OSError; UnfitError
    for anything but a regular file, and for a link in any component below the warehouse."""

    def names(self) -> list[str]:
        """What is in it, sorted, but for what is hidden; nothing where the folder is not there."""

    def read(self, name: str) -> bytes | None:
        """A file's content, None when it is not there."""

    def extend(self, name: str, lines: bytes) -> None:
        """Add whole lines to a file, or make it. Where the storage can, that is all that is written, and not
        durable: a power failure may take it, a kill leaves part of the last line."""

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
        return LocalFolder(GuardedFolder(*split_storage(local)))
    return RemoteFolder(*remote(place))


def remote(place: str) -> tuple[Any, str]:
    """The file system of a URI, and the path in it. Raises OSError, also for an unknown URI."""
    from pyarrow import fs

    # Hadoop says s3a, everybody else s3; and it writes letters beyond ASCII as they are.
    uri = quote(place.replace("s3a://", "s3://", 1), safe=_IN_URIS)
    if uri.startswith(("gs://", "gcs://")) and "?" not in uri:
        uri += f"?retry_limit_seconds={_RETRIES_S}"
    try:
        system, path = fs.FileSystem.from_uri(uri)
    except ValueError as problem:
        raise OSError(f"{place}: {problem}") from None
    return system, path


def file_system(place: str) -> tuple[Any, str]:
    """pyarrow's file system of a path or URI, and the path in it. Raises OSError."""
    from pyarrow import fs

    local = local_path(place)
    return (fs.LocalFileSystem(), str(local)) if local is not None else remote(place)


def is_there(place: str) -> bool:
    """Whether there is something at a path or URI. Raises OSError where that can't be seen."""
    local = local_path(place)
    if local is not None:
        root, inner = split_storage(local)
        return GuardedFolder(root).is_there(inner) if inner else local.exists()
    from pyarrow import fs

    system, path = remote(place)
    return bool(system.get_file_info(path).type != fs.FileType.NotFound)


def read_text(place: str) -> str | None:
    """Return a file's text; None if it is missing. Raises OSError, also if it isn't UTF-8."""
    folder, _, name = place.rpartition("/")
    data = open_folder(folder).read(name)
    return decoded(data, place) if data is not None else None


def decoded(data: bytes, place: str) -> str:
    """The text of a file. Raises OSError, which names the file, if it isn't UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as problem:
        raise OSError(f"{place} is damaged: {problem}") from None


@contextlib.contextmanager
def decoding(place: str) -> Iterator[None]:
    """Around whatever decodes what others may have written at a place: raises OSError, which names the place,
    for all that is not as it should be there ."""
    try:
        yield
    except _MALFORMED as problem:
        why = "it is nested too deeply" if isinstance(problem, RecursionError) else str(problem)[:_SHOWN]
        raise OSError(f"{place} is damaged: {why}") from None


def write_text(place: str, text: str) -> None:
    """Make or replace a file, whole and durably. Raises OSError."""
    folder, _, name = place.rpartition("/")
    open_folder(folder).write(name, text.encode())


def delete_checksum(folder: Folder, name: str) -> None:
    """Remove what Hadoop keeps beside each file of a file system: it must not outlive the file's content."""
    if isinstance(folder, LocalFolder):
        folder.delete(f".{name}.crc")


class LocalFolder:
    """On a file system. Hidden names are our own, or Hadoop's."""

    def __init__(self, files: GuardedFolder):
        self._files = files

    def names(self) -> list[str]:
        return [entry.name for entry in self._files.entries() if not entry.name.startswith(".")]

    def read(self, name: str) -> bytes | None:
        return self._files.read(name)

    def extend(self, name: str, lines: bytes) -> None:
        handle = self._files.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        with os.fdopen(handle, "r+b", buffering=0) as file:
            size = os.fstat(handle).st_size
            torn = size and os.pread(handle, 1, size - 1) != b"\n"
            file.write(b"\n" + lines if torn else lines)

    def write(self, name: str, data: Data) -> None:
        with self._files.replacing(name) as stream:
            stream.write(data)
        sync_folder(self._files.path().parent)  # the folder may be new

    def size(self, names: list[str]) -> int:
        return sum(self._files.stat(name).st_size for name in names)

    def delete(self, name: str) -> None:
        self._files.delete(name)

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        """A lock of the kernel, which ends with the process, however it ends."""
        handle = self._files.open(".lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            self._files.sweep("", left_of())
            yield True
        finally:
            os.close(handle)


class RemoteFolder:
    """In an object store, by pyarrow: an object shows when it is whole. There is no lock."""

    def __init__(self, system: Any, path: str):
        self._system = system
        self._path = path.rstrip("/")

    def names(self) -> list[str]:
        from pyarrow import fs

        infos = self._system.get_file_info(fs.FileSelector(self._path, allow_not_found=True))
        return sorted(info.base_name for info in infos if not info.base_name.startswith("."))

    def read(self, name: str) -> bytes | None:
        try:
            with self._system.open_input_stream(f"{self._path}/{name}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def extend(self, name: str, lines: bytes) -> None:
        self.write(name, (self.read(name) or b"") + lines)  # object stores can't append

    def write(self, name: str, data: Data) -> None:
        self._system.create_dir(self._path, recursive=True)
        with self._system.open_output_stream(f"{self._path}/{name}") as stream:
            stream.write(data)

    def size(self, names: list[str]) -> int:
        infos = self._system.get_file_info([f"{self._path}/{name}" for name in names])
        return sum(info.size or 0 for info in infos)

    def delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._system.delete_file(f"{self._path}/{name}")

    @contextlib.contextmanager
    def lock(self) -> Iterator[bool]:
        yield False
