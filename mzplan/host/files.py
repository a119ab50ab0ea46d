"""Writes files completely or not at all, and reads files with a size limit.

A write goes to a temporary file with a random name in the same folder, which is then renamed. So nobody can
put a link in its place in advance, and two writers never share a file. A crash may leave a hidden file that
ends with `.tmp`.

For result files that people name, and for folders that others can write to, see `host.guarded_folder`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import BinaryIO, Protocol

MAX_BYTES = 1 << 28  # of a file that is read into memory; enough for a state with a million resources
_KINDS = (
    (stat.S_ISLNK, "a link"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class Readable(Protocol):
    """A stream of Python or pyarrow."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none at the end of the stream."""


class UnfitError(OSError):
    """A path isn't a file that mzplan reads or writes: it is a link, a pipe, a device, or too large.

    The text, also in `strerror`, has the path, what it is, and how to fix that.
    """

    def __init__(self, mode: int, place: str, what: str = ""):
        """`mode` is the mode of the file. `what` says what is wrong; by default, the kind of the file."""
        is_link = stat.S_ISLNK(mode)
        self.what = what or f"is {kind_of(mode)}, not a regular file"
        fix = (
            "mzplan doesn't follow links here: replace it with its target, or remove it"
            if is_link
            else "move it away"
        )
        super().__init__(errno.ELOOP if is_link else errno.EINVAL, f"{place} {self.what}; {fix}", place)

    def __str__(self) -> str:
        return str(self.strerror)

    @classmethod
    def large(cls, place: str, max_bytes: int) -> UnfitError:
        """Return the error for a file of more than `max_bytes`."""
        size = f"{max_bytes:,} bytes" if max_bytes % (1 << 20) else f"{max_bytes >> 20} MiB"
        return cls(stat.S_IFREG, place, f"holds more than {size}")


def kind_of(mode: int) -> str:
    """Return the kind of a file in words, from its mode; "" for a regular file."""
    return "" if stat.S_ISREG(mode) else next((kind for is_kind, kind in _KINDS if is_kind(mode)), "no file")


@contextmanager
def replacing(
    path: Path,
    *,
    mode: int | None = None,
    durable: bool = True,
    folder: int | None = None,
    moving: AbstractContextManager[object] | None = None,
) -> Iterator[BinaryIO]:
    """Yield a stream. When the block ends, its bytes replace the file. Raises OSError.

    If the block or the write fails, the old file stays.

    - `mode`: the file's permissions (None: from the umask).
    - `durable`: whether the file survives a power failure.
    - `folder`: a handle of the folder that the path is relative to.
    - `moving`: entered around the rename only, when all bytes are written. If it raises, the old file stays.
    """
    temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(6)}.tmp")
    with _create(temporary, mode, durable=durable, folder=folder) as stream:
        yield stream
    move_into_place(temporary, path, durable=durable, folder=folder, moving=moving)


def write_durably(path: Path, data: bytes | memoryview, *, mode: int | None = None) -> None:
    """Create or replace a file completely, so that it survives a power failure. Raises OSError."""
    with replacing(path, mode=mode) as stream:
        stream.write(data)


def create_durably(path: Path, data: bytes, *, mode: int | None = None, folder: int | None = None) -> None:
    """Create a new file. Raises FileExistsError if a file or link of this name exists, and OSError.

    After a failure, no file is left.
    """
    with _create(path, mode, durable=True, folder=folder) as stream:
        stream.write(data)
    with _remove_on_failure(path, folder):
        sync_folder(path.parent, folder)


def move_into_place(
    temporary: Path,
    path: Path,
    *,
    durable: bool = True,
    folder: int | None = None,
    moving: AbstractContextManager[object] | None = None,
) -> None:
    """Rename a written file over another one in its folder. See `replacing`.

    Raises OSError, and then removes `temporary`.
    """
    with _remove_on_failure(temporary, folder), moving or nullcontext():
        os.replace(temporary, path, src_dir_fd=folder, dst_dir_fd=folder)
    if durable:
        sync_folder(path.parent, folder)


def make_private_folder(folder: Path) -> None:
    """Create a folder that only its owner can access and that git ignores. Raises OSError."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if not os.path.lexists(folder / ".gitignore"):
        with contextlib.suppress(FileExistsError):
            create_durably(folder / ".gitignore", b"*\n")


def temporary_files_of(name: str = "") -> re.Pattern[str]:
    """Return a pattern of temporary files that killed writers of `name` (default: of any file) have left."""
    return re.compile(rf"\.{re.escape(name[:200]) or '.+'}\.[0-9a-f]{{12}}\.tmp")


def sync_folder(path: Path, folder: int | None = None) -> None:
    """Make the names in a folder survive a power failure. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _create(path: Path, mode: int | None, *, durable: bool, folder: int | None) -> Iterator[BinaryIO]:
    """Yield a stream to a new file, and remove the file if its content can't be written."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(path, flags, 0o666 if mode is None else 0o600, dir_fd=folder)
    with _remove_on_failure(path, folder), os.fdopen(handle, "wb") as stream:
        if mode is not None:
            os.fchmod(handle, mode)
        yield stream
        stream.flush()
        if durable:
            os.fsync(handle)


@contextmanager
def _remove_on_failure(path: Path, folder: int | None) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path, dir_fd=folder)
        raise


def read_regular(path: str | Path, *, follow: bool = True, max_bytes: int | None = None) -> bytes:
    """Return the content of a regular file. Raises OSError.

    Raises UnfitError for other kinds of files (a device may never end), for more than `max_bytes` (default:
    MAX_BYTES), and for a link unless `follow`.
    """
    place = str(path)
    # The mode is checked first, because to open a device may have an effect.
    mode = Path(path).stat(follow_symlinks=follow).st_mode
    if kind_of(mode):
        raise UnfitError(mode, place)
    # O_NONBLOCK, because somebody may replace the file with a pipe before it is opened.
    links = 0 if follow else os.O_NOFOLLOW
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | links)
    limit = MAX_BYTES if max_bytes is None else max_bytes
    with os.fdopen(ensure_regular(handle, place), "rb") as stream:
        size = os.fstat(handle).st_size  # 0 for files in /proc
        if size > limit:
            raise UnfitError.large(place, limit)
        return read_at_most(stream, limit, place, max(size + 1, 1 << 16))


def ensure_regular(handle: int, place: str) -> int:
    """Return the handle of a regular file. Closes any other handle and raises UnfitError."""
    try:
        mode = os.fstat(handle).st_mode
        if kind_of(mode):
            raise UnfitError(mode, place)
    except BaseException:
        os.close(handle)
        raise
    return handle


def read_at_most(stream: Readable, max_bytes: int, place: str, piece: int = 1 << 20) -> bytes:
    """Return the rest of a stream. Raises UnfitError for more than `max_bytes`.

    `piece` is the size of one read, which takes this much memory even if less arrives.
    """
    pieces, total = [], 0
    while total <= max_bytes and (more := stream.read(piece)):
        pieces.append(more)
        total += len(more)
    if total > max_bytes:
        raise UnfitError.large(place, max_bytes)
    return b"".join(pieces)


def read_bounded(path: str | Path) -> bytes:
    """Return the content of a file or a pipe (`<(command)`). Raises OSError, also beyond MAX_BYTES."""
    with Path(path).open("rb") as stream:
        return read_at_most(stream, MAX_BYTES, str(path))
