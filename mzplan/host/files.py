"""Files that people name on the command line: written whole or not at all, and read only if they end."""

from __future__ import annotations

import errno
import os
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
    beside = place.with_name(f"{place.name[:200]}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as stream:
            yield stream
        if place.exists():
            beside.chmod(stat.S_IMODE(place.stat().st_mode))
        beside.replace(place)
    finally:
        beside.unlink(missing_ok=True)


def read_regular(path: str | Path) -> bytes:
    """The content of a file. OSError also for what is none (a device may never end), or is too large."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as stream:
        found = os.fstat(handle)
        if stat.S_ISDIR(found.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no file")
        if found.st_size > MAX_BYTES:
            raise _too_large()
        return stream.read()


def read_bounded(path: str | Path) -> bytes:
    """What a file or a pipe (`<(command)`) holds. OSError also for what is too large, or never ends."""
    with Path(path).open("rb") as stream:
        data = stream.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise _too_large()
    return data


def _too_large() -> OSError:
    return OSError(errno.EFBIG, f"it has more than {MAX_BYTES:,} bytes")
