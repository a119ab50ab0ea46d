"""Reads secrets and certificates from files.

Anyone who writes a configuration can name any file, so reading it must neither hang nor fill the memory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from mzplan.model.diagnostics import MzplanError, error

MAX_SECRET = 1 << 20  # bytes
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def read_secret(path: Path, name: str) -> str | None:
    """Return the text of a file without trailing line ends, or None if it can't be read.

    `name` is the file's name in the reference. Raises MzplanError MZ103 unless the file is a regular file
    of at most MAX_SECRET bytes in UTF-8.
    """
    try:
        _require_regular(path.stat().st_mode, name)  # before opening it, which may affect a device
        with _open(path) as handle:
            return read_open_secret(handle, name)
    except (OSError, ValueError):  # ValueError: the name contains a NUL
        return None


def read_open_secret(handle: int, name: str) -> str:
    """Read the secret from an open file. Raises MzplanError MZ103 and OSError."""
    _require_regular(os.fstat(handle).st_mode, name)
    data = _read(handle)
    if len(data) > MAX_SECRET:
        raise unusable_error(name, f"holds more than {MAX_SECRET >> 20} MiB")
    try:
        return data.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError:
        raise unusable_error(name, "is not text in UTF-8") from None


def read_pem(path: Path) -> bytes:
    """Return the bytes of a file that a connection names: certificates, or known hosts.

    Raises OSError if it can't be read, or isn't a regular file of at most MAX_SECRET bytes.
    """
    try:
        kind = _kind(path.stat().st_mode)  # before opening it, as in read_secret
        if not kind:
            with _open(path) as handle:
                kind, data = _kind(os.fstat(handle).st_mode), _read(handle)
    except ValueError:  # the name contains a NUL
        raise OSError(errno.EINVAL, "no name of a file", str(path)) from None
    if kind or len(data) > MAX_SECRET:
        reason = f"it is {kind}" if kind else f"it holds more than {MAX_SECRET >> 20} MiB"
        raise OSError(errno.EINVAL, reason, str(path))
    return data


def read_pem_text(path: Path) -> str:
    """Return the text of a file as read_pem does. Also raises OSError if it isn't UTF-8."""
    try:
        return read_pem(path).decode("utf-8")
    except UnicodeDecodeError:
        raise OSError(errno.EINVAL, "it is not text in UTF-8", str(path)) from None


@contextlib.contextmanager
def _open(path: Path) -> Iterator[int]:
    # Non-blocking, because the file may have been replaced by a pipe, whose open waits for a writer.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _read(handle: int) -> bytes:
    """Read up to one byte more than the limit. Files in /proc report no size before they are read."""
    data = b""
    while len(data) <= MAX_SECRET and (more := os.read(handle, MAX_SECRET + 1 - len(data))):
        data += more
    return data


def _require_regular(mode: int, name: str) -> None:
    if kind := _kind(mode):
        raise unusable_error(name, f"is {kind}")


def _kind(mode: int) -> str:
    """Name the kind of a file that isn't regular, such as "a folder". Returns "" for a regular file."""
    return "" if stat.S_ISREG(mode) else next((kind for is_kind, kind in _KINDS if is_kind(mode)), "no file")


def unusable_error(name: str, what: str) -> MzplanError:
    """Return MZ103: `${file:NAME}` `what`."""
    return error(
        "MZ103",
        f"${{file:{name}}} can't be a secret: it {what}",
        f"A secret is a regular file of at most {MAX_SECRET >> 20} MiB that contains UTF-8 text.",
        "name a file that contains only the secret.",
    )
