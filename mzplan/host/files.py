"""Files, written whole or not at all, and read only if they end.

A write goes to a file of a random name in the same folder, which is then renamed. Nobody can put a link there
before, and two writers never share one. What a crash leaves of it is hidden and ends with `.tmp`.

Files that people name for results, and those below a folder that others may write to, are `host.guarded`'s.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

MAX_BYTES = 1 << 28  # of what is read into memory: a state of a million resources
_KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class Readable(Protocol):
    """A stream: Python's, or pyarrow's."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none at its end."""


class UnfitError(OSError):
    """What lies at a place is not what is read or written there: a link, a pipe, a device, too large a file.
    Its text, which is `strerror` too, says where, what it is, and how to mend it."""

    def __init__(self, mode: int, place: str, what: str = "", fix: str = "move it away"):
        """`mode`: of what lies there; `what` it is or has, by default by that."""
        is_link = stat.S_ISLNK(mode)
        self.what = what or f"is {kind_of(mode)}, not a regular file"
        fix = "no link is followed here: put there what it leads to, or remove it" if is_link else fix
        super().__init__(errno.ELOOP if is_link else errno.EINVAL, f"{place} {self.what}; {fix}", place)

    def __str__(self) -> str:
        return str(self.strerror)

    @classmethod
    def large(cls, place: str, most: int) -> UnfitError:
        """For a file of more than so many bytes."""
        size = f"{most:,} bytes" if most % (1 << 20) else f"{most >> 20} MiB"
        return cls(stat.S_IFREG, place, f"holds more than {size}")


def kind_of(mode: int) -> str:
    """What a file of this mode is instead of a regular file, in words; "" for a regular file."""
    return "" if stat.S_ISREG(mode) else next((kind for is_kind, kind in _KINDS if is_kind(mode)), "no file")


@contextmanager
def replacing(
    path: Path, *, mode: int | None = None, durable: bool = True, folder: int | None = None
) -> Iterator[BinaryIO]:
    """A stream whose bytes are the file when the block ends, and survive a power failure if `durable`. What
    raises within, or fails, leaves what was there. `mode`: the file's permissions (None: as the umask says).
    `folder`: a handle of the folder that the path begins at. Raises OSError."""
    fresh = path.with_name(f".{path.name[:200]}.{secrets.token_hex(6)}.tmp")
    with _created(fresh, mode, durable=durable, folder=folder) as stream:
        yield stream
    put_in_place(fresh, path, durable=durable, folder=folder)


def write_durably(path: Path, data: bytes | memoryview, *, mode: int | None = None) -> None:
    """Make or replace a file: whole, and there after a power failure. Raises OSError."""
    with replacing(path, mode=mode) as stream:
        stream.write(data)


def create_durably(path: Path, data: bytes, *, mode: int | None = None, folder: int | None = None) -> None:
    """Make a file that is not there yet. Raises OSError: FileExistsError where it is, also for a link. What
    fails leaves none."""
    with _created(path, mode, durable=True, folder=folder) as stream:
        stream.write(data)
    with _removed_on_failure(path, folder):
        sync_folder(path.parent, folder)


def put_in_place(fresh: Path, path: Path, *, durable: bool = True, folder: int | None = None) -> None:
    """Rename a file that is written, over another one of its folder. Raises OSError; `fresh` is gone then."""
    with _removed_on_failure(fresh, folder):
        os.replace(fresh, path, src_dir_fd=folder, dst_dir_fd=folder)
    if durable:
        sync_folder(path.parent, folder)


def make_private_folder(folder: Path) -> None:
    """A folder for its owner alone, which git leaves out: it is of one machine. Raises OSError."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if not os.path.lexists(folder / ".gitignore"):
        with contextlib.suppress(FileExistsError):
            create_durably(folder / ".gitignore", b"*\n")


def left_of(name: str = "") -> re.Pattern[str]:
    """The names of what killed writers of a file (any, where there is no name) have left."""
    return re.compile(rf"\.{re.escape(name[:200]) or '.+'}\.[0-9a-f]{{12}}\.tmp")


def sync_folder(path: Path, folder: int | None = None) -> None:
    """Let the names in a folder survive a power failure. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _created(path: Path, mode: int | None, *, durable: bool, folder: int | None) -> Iterator[BinaryIO]:
    """A file that was not there, and is removed again where its content can't be written."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(path, flags, 0o666 if mode is None else 0o600, dir_fd=folder)
    with _removed_on_failure(path, folder), os.fdopen(handle, "wb") as stream:
        if mode is not None:
            os.fchmod(handle, mode)
        yield stream
        stream.flush()
        if durable:
            os.fsync(handle)


@contextmanager
def _removed_on_failure(path: Path, folder: int | None) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path, dir_fd=folder)
        raise


def read_regular(path: str | Path, *, follow: bool = True, most: int | None = None) -> bytes:
    """The content of a file. Raises OSError also for a device, which may never end, and for more than `most`
    bytes (MAX_BYTES): UnfitError; for a link too unless `follow`."""
    place = str(path)
    # Before it is opened: that may do something to a device.
    mode = Path(path).stat(follow_symlinks=follow).st_mode
    if kind_of(mode):
        raise UnfitError(mode, place)
    # Without waiting: what is a file now may be a pipe by the time it is opened.
    links = 0 if follow else os.O_NOFOLLOW
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | links)
    return content_of(ensure_regular(handle, place), place, MAX_BYTES if most is None else most)


def ensure_regular(handle: int, place: str) -> int:
    """Return the handle of a regular file. Closes any other one and raises UnfitError."""
    try:
        mode = os.fstat(handle).st_mode
        if kind_of(mode):
            raise UnfitError(mode, place)
    except BaseException:
        os.close(handle)
        raise
    return handle


def content_of(handle: int, place: str, most: int) -> bytes:
    """What a regular file holds, which is closed then. UnfitError for more than so many bytes."""
    with os.fdopen(handle, "rb") as stream:
        size = os.fstat(handle).st_size  # 0 of files of /proc
        if size > most:
            raise UnfitError.large(place, most)
        return at_most(stream, most, place, max(size + 1, 1 << 16))


def at_most(stream: Readable, most: int, place: str, piece: int = 1 << 20) -> bytes:
    """What is left in a stream. UnfitError for more than so many bytes. `piece`: of one read, which takes so
    much memory, whatever comes."""
    pieces, total = [], 0
    while total <= most and (more := stream.read(piece)):
        pieces.append(more)
        total += len(more)
    if total > most:
        raise UnfitError.large(place, most)
    return b"".join(pieces)


def read_bounded(path: str | Path) -> bytes:
    """What a file or a pipe (`<(command)`) holds. OSError also for what is too large, or never ends."""
    with Path(path).open("rb") as stream:
        return at_most(stream, MAX_BYTES, str(path))
