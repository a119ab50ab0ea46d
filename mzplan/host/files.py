"""Files, written whole or not at all; those that people name on the command line are read only if they end.

A write goes to a file of a random name in the same folder, which is then renamed. Nobody can put a link there
before, and two writers never share one. What a crash leaves of it is hidden and ends with `.tmp`.
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
from typing import BinaryIO

MAX_BYTES = 1 << 28  # of what is read into memory: a state of a million resources


def write_whole(path: str | Path, data: bytes) -> None:
    """Beside the file first, then in its place, where a link leads; into a pipe or a device, as it comes.
    Raises OSError; what was there is intact then."""
    with open_whole(path) as stream:
        stream.write(data)


@contextmanager
def open_whole(path: str | Path) -> Iterator[BinaryIO]:
    """A file to be written bit by bit, which is there when it is whole (as write_whole says)."""
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file():
        with Path(path).open("wb") as stream:  # nothing can be put in its place
            yield stream
        return
    mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else None
    with replacing(place, mode=mode, durable=False) as stream:
        yield stream


@contextmanager
def replacing(path: Path, *, mode: int | None = None, durable: bool = True) -> Iterator[BinaryIO]:
    """A stream whose bytes are the file when the block ends, and survive a power failure if `durable`. What
    raises within, or fails, leaves what was there. `mode`: the file's permissions (None: as the umask says).
    Raises OSError."""
    fresh = path.with_name(f".{path.name[:200]}.{secrets.token_hex(6)}.tmp")
    with _created(fresh, mode, durable=durable) as stream:
        yield stream
    put_in_place(fresh, path, durable=durable)


def write_durably(path: Path, data: bytes | memoryview, *, mode: int | None = None) -> None:
    """Make or replace a file: whole, and there after a power failure. Raises OSError."""
    with replacing(path, mode=mode) as stream:
        stream.write(data)


def create_durably(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Make a file that is not there yet. Raises OSError: FileExistsError where it is, also for a link. What
    fails leaves none."""
    with _created(path, mode, durable=True) as stream:
        stream.write(data)
    with _removed_on_failure(path):
        sync_folder(path.parent)


def put_in_place(fresh: Path, path: Path, *, durable: bool = True) -> None:
    """Rename a file that is written, over another one of its folder. Raises OSError; `fresh` is gone then."""
    with _removed_on_failure(fresh):
        fresh.replace(path)
    if durable:
        sync_folder(path.parent)


def make_private_folder(folder: Path) -> None:
    """A folder for its owner alone, which git leaves out: it is of one machine. Raises OSError."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if not os.path.lexists(folder / ".gitignore"):
        with contextlib.suppress(FileExistsError):
            create_durably(folder / ".gitignore", b"*\n")


def sweep(folder: Path, name: str = "") -> None:
    """Remove what killed writers of a file (any, where there is no name) have left in a folder. Only where
    nobody can be writing one: under the lock that its writers hold."""
    left = re.compile(rf"\.{re.escape(name[:200]) or '.+'}\.[0-9a-f]{{12}}\.tmp")
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if left.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                Path(entry.path).unlink()


def sync_folder(folder: Path) -> None:
    """Let the names in a folder survive a power failure. Raises OSError."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _created(path: Path, mode: int | None, *, durable: bool) -> Iterator[BinaryIO]:
    """A file that was not there, and is removed again where its content can't be written."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(path, flags, 0o666 if mode is None else 0o600)
    with _removed_on_failure(path), os.fdopen(handle, "wb") as stream:
        if mode is not None:
            os.fchmod(handle, mode)
        yield stream
        stream.flush()
        if durable:
            os.fsync(handle)


@contextmanager
def _removed_on_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def read_regular(path: str | Path, *, follow: bool = True, most: int | None = None) -> bytes:
    """The content of a file. OSError also for what is none (a device may never end), or has more than `most`
    bytes (MAX_BYTES); for a link too unless `follow`."""
    most = MAX_BYTES if most is None else most
    links = 0 if follow else os.O_NOFOLLOW
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | links)
    with os.fdopen(handle, "rb") as stream:
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        if found.st_size > most:
            raise _too_large(most)
        return stream.read(most)


def read_bounded(path: str | Path) -> bytes:
    """What a file or a pipe (`<(command)`) holds. OSError also for what is too large, or never ends."""
    with Path(path).open("rb") as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise _too_large(MAX_BYTES)
    return data


def _too_large(most: int) -> OSError:
    return OSError(errno.EFBIG, f"it has more than {most:,} bytes")
