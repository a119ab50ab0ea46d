"""Folders of small durable files, and single files, on a file system or in an object store."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from typing import Any, Protocol
from urllib.parse import quote

from mzplan.host.files import sync_folder, temporary_files_of
from mzplan.host.guarded_folder import GuardedFolder
from mzplan.warehouse.paths import local_path, split_storage

Data = bytes | memoryview
_IN_URIS = "%/:?#[]@!$&'()*+,;=~"
_MAX_MESSAGE = 200  # characters of a decoder's message, because it may repeat the input
_RETRIES_S = 15  # for a request to Google's object store; its client would retry for 15 minutes
# The errors of decoding text that others may have written. For example, `1e999` as a step is an
# OverflowError, and a hundred thousand brackets are a RecursionError.
_MALFORMED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


class Folder(Protocol):
    """Files by name. A write is atomic, and durable when it returns.

    Raises OSError, and UnfitError for anything but a regular file, and for a link below the warehouse."""

    def names(self) -> list[str]:
        """Return the names of the visible files, sorted; none if the folder is missing."""

    def read(self, name: str) -> bytes | None:
        """Return a file's content; None if it is missing."""

    def extend(self, name: str, lines: bytes) -> None:
        """Append whole lines to a file, or create it.

        On a file system, this write isn't durable: a power failure may lose it, and a kill may leave only
        part of the last line."""

    def write(self, name: str, data: Data) -> None:
        """Create or replace a file."""

    def size(self, names: list[str]) -> int:
        """Return the total size of these files in bytes."""

    def delete(self, name: str) -> None:
        """Remove a file if it exists."""

    def lock(self) -> contextlib.AbstractContextManager[bool]:
        """Keep out other writers on this and other machines. Yields False if the storage has no locks.

        All writers must hold the lock: whoever gets it removes half-written files of killed writers."""


def open_folder(place: str) -> Folder:
    """Return the folder at a path or URI. It need not exist yet."""
    local = local_path(place)
    if local is not None:
        return LocalFolder(GuardedFolder(*split_storage(local)))
    return RemoteFolder(*remote(place))


def remote(place: str) -> tuple[Any, str]:
    """Return a URI's file system, and the path in it. Raises OSError, also for an unknown URI."""
    from pyarrow import fs

    # Hadoop writes s3a for s3, and doesn't escape characters beyond ASCII.
    uri = quote(place.replace("s3a://", "s3://", 1), safe=_IN_URIS)
    if uri.startswith(("gs://", "gcs://")) and "?" not in uri:
        uri += f"?retry_limit_seconds={_RETRIES_S}"
    try:
        system, path = fs.FileSystem.from_uri(uri)
    except ValueError as problem:
        raise OSError(f"{place}: {problem}") from None
    return system, path


def file_system(place: str) -> tuple[Any, str]:
    """Return pyarrow's file system of a path or URI, and the path in it. Raises OSError."""
    from pyarrow import fs

    local = local_path(place)
    return (fs.LocalFileSystem(), str(local)) if local is not None else remote(place)


def exists(place: str) -> bool:
    """Whether something exists at a path or URI. Raises OSError if that can't be checked."""
    local = local_path(place)
    if local is not None:
        root, inner = split_storage(local)
        return GuardedFolder(root).exists(inner) if inner else local.exists()
    from pyarrow import fs

    system, path = remote(place)
    return bool(system.get_file_info(path).type != fs.FileType.NotFound)


def read_text(place: str) -> str | None:
    """Return a file's text; None if it is missing. Raises OSError, also if it isn't UTF-8."""
    folder, _, name = place.rpartition("/")
    data = open_folder(folder).read(name)
    return decoded(data, place) if data is not None else None


def decoded(data: bytes, place: str) -> str:
    """Return the text of a file. Raises OSError, naming the file, if it isn't UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as problem:
        raise OSError(f"{place} is damaged: {problem}") from None


@contextlib.contextmanager
def decoding(place: str) -> Iterator[None]:
    """Raise OSError, which names the place, for any error of decoding in the block."""
    try:
        yield
    except _MALFORMED as problem:
        why = (
            "it is nested too deeply" if isinstance(problem, RecursionError) else str(problem)[:_MAX_MESSAGE]
        )
        raise OSError(f"{place} is damaged: {why}") from None


def write_text(place: str, text: str) -> None:
    """Create or replace a file atomically and durably. Raises OSError."""
    folder, _, name = place.rpartition("/")
    open_folder(folder).write(name, text.encode())


def delete_checksum(folder: Folder, name: str) -> None:
    """Remove Hadoop's checksum of a file on a file system. It wouldn't match new content."""
    if isinstance(folder, LocalFolder):
        folder.delete(f".{name}.crc")


def replace_file(folder: Folder, name: str, data: Data) -> None:
    """Create or replace a file that Hadoop may have written with a checksum."""
    delete_checksum(folder, name)
    folder.write(name, data)


class LocalFolder:
    """A folder on a file system. Hidden names belong to mzplan or Hadoop."""

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
        """Hold a kernel lock, which ends with the process."""
        handle = self._files.open(".lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            self._files.sweep("", temporary_files_of())
            yield True
        finally:
            os.close(handle)


class RemoteFolder:
    """A folder in an object store, accessed by pyarrow. Objects appear complete; there is no lock."""

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
