"""Reads secrets and certificates from files.

A configuration may name any file, so reading one must neither hang nor fill the memory.
"""

from __future__ import annotations

import errno
import os
import stat
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


class _UnusableError(Exception):
    """A file can't be used. The text is the reason as a predicate, such as "is not text in UTF-8"."""


def read_secret(path: Path, name: str) -> str | None:
    """Return the text of a file without trailing line ends, or None if it can't be read.

    `name` is the file's name in the reference. Raises MzplanError MZ103 unless the file is a regular file
    of at most MAX_SECRET bytes in UTF-8.
    """
    try:
        return _decode(_read(path)).rstrip("\r\n")
    except _UnusableError as problem:
        raise unusable_error(name, str(problem)) from None
    except (OSError, ValueError):  # ValueError: the name contains a NUL
        return None


def read_open_secret(handle: int, name: str) -> str:
    """Read the secret from an open file. Raises MzplanError MZ103 and OSError."""
    try:
        return _decode(_read_open(handle)).rstrip("\r\n")
    except _UnusableError as problem:
        raise unusable_error(name, str(problem)) from None


def read_pem(path: Path) -> bytes:
    """Return the bytes of a file that a connection names: certificates, or known hosts.

    Raises OSError if it can't be read, or isn't a regular file of at most MAX_SECRET bytes.
    """
    try:
        return _read(path)
    except _UnusableError as problem:
        raise OSError(errno.EINVAL, f"it {problem}", str(path)) from None
    except ValueError:  # the name contains a NUL
        raise OSError(errno.EINVAL, "not a valid file name", str(path)) from None


def read_pem_text(path: Path) -> str:
    """Return the text of a file as read_pem does. Also raises OSError if it isn't UTF-8."""
    try:
        return _decode(read_pem(path))
    except _UnusableError as problem:
        raise OSError(errno.EINVAL, f"it {problem}", str(path)) from None


def _read(path: Path) -> bytes:
    _require_regular(path.stat().st_mode)  # before opening it, which may affect a device
    # Non-blocking, because the file may have been replaced by a pipe, whose open waits for a writer.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        return _read_open(handle)
    finally:
        os.close(handle)


def _read_open(handle: int) -> bytes:
    _require_regular(os.fstat(handle).st_mode)
    data = b""  # read until the end, because files in /proc report no size
    while len(data) <= MAX_SECRET and (more := os.read(handle, MAX_SECRET + 1 - len(data))):
        data += more
    if len(data) > MAX_SECRET:
        raise _UnusableError(f"holds more than {MAX_SECRET >> 20} MiB")
    return data


def _require_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "a special file")
        raise _UnusableError(f"is {kind}")


def _decode(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise _UnusableError("is not text in UTF-8") from None


def unusable_error(name: str, what: str) -> MzplanError:
    """Return MZ103 for `${file:NAME}`. `what`: the reason as a predicate, such as "is not text in UTF-8"."""
    return error("MZ103.file-cannot", name=name, what=what, limit=MAX_SECRET >> 20)
