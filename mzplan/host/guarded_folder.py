"""Guarded access to files: no link of somebody else decides which file mzplan reads, overwrites or removes.

The user names a folder (of the project, the state or the warehouse) in a command or in mzplan.yaml. The
folder may be a link of the user, for example to another disk. Below the folder, no part of a path may be a
link. mzplan reads and writes only regular files, and opens them without blocking. A result file must not be a
link either, unless the shell has opened it.

On the path to a named folder or file, a link counts as the user's own unless git tracks it.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO

from mzplan.host.checkout import links_of_path
from mzplan.host.files import (
    UnfitError,
    create_durably,
    ensure_regular,
    kind_of,
    replacing,
)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_SHELL_FILE = re.compile(r"(?:/dev|/proc/self)/(stdout|stderr|fd/\d{1,9})")
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class GuardedFolder:
    """The files below `root`, or below its subfolder `inner`.

    Names may contain folders (`a/b`), but never `..`. Every method raises OSError. For a link, and for
    anything else that isn't a regular file, it raises UnfitError."""

    def __init__(self, root: Path, inner: str = ""):
        self._root = root
        self._inner = tuple(part for part in inner.split("/") if part)

    def path(self, name: str = "") -> Path:
        """Return the path, for people."""
        return self._root.joinpath(*self._inner, name)

    @contextmanager
    def folder(self, name: str = "", *, make: bool = False) -> Iterator[int]:
        """Yield a handle of a folder. `make` creates a missing folder."""
        at = str(self._root)
        if make:
            refuse_foreign_links(at)
        try:
            handle = os.open(at, _FOLDER)
        except FileNotFoundError:
            if not make:
                raise
            self._root.mkdir(parents=True, exist_ok=True)
            handle = os.open(at, _FOLDER)
        try:
            for part in (*self._inner, *filter(None, name.split("/"))):
                at = f"{at}/{part}"
                outer, handle = handle, _open_subfolder(handle, part, at, make=make)
                os.close(outer)
            yield handle
        finally:
            os.close(handle)

    def open(self, name: str, flags: int = os.O_RDONLY, mode: int = 0o644) -> int:
        """Return a handle of a regular file. `flags` say whether to create it."""
        with self._parent(name, make=bool(flags & os.O_CREAT)) as (folder, last):
            try:
                handle = os.open(last, flags | _FILE, mode, dir_fd=folder)
            except OSError:
                _refuse_irregular(last, folder, str(self.path(name)))
                raise
            return ensure_regular(handle, str(self.path(name)))

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if there is none."""
        try:
            handle = self.open(name)
        except FileNotFoundError:
            return None
        with os.fdopen(handle, "rb") as stream:
            return stream.read()

    def stat(self, name: str) -> os.stat_result:
        """Return the status of the entry itself, without following a link."""
        with self._parent(name) as (folder, last):
            return os.stat(last, dir_fd=folder, follow_symlinks=False)

    def exists(self, name: str) -> bool:
        """Whether the file or folder exists. Raises UnfitError for a link."""
        try:
            mode = self.stat(name).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return False
        if stat.S_ISLNK(mode):
            raise UnfitError(mode, str(self.path(name)))
        return True

    def entries(self, name: str = "") -> list[os.DirEntry[str]]:
        """Return the entries of a folder, sorted by name; none if there is no such folder.

        Use only an entry's name and type.
        """
        try:
            with self.folder(name) as handle, os.scandir(handle) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
                for entry in entries:
                    entry.is_symlink()  # caches the type while the handle is open
                return entries
        except FileNotFoundError:
            return []

    @contextmanager
    def replacing(
        self,
        name: str,
        *,
        mode: int | None = None,
        durable: bool = True,
        moving: AbstractContextManager[object] | None = None,
    ) -> Iterator[BinaryIO]:
        """Yield a stream as files.replacing does. A link of this name is itself replaced."""
        with (
            self._parent(name, make=True) as (folder, last),
            replacing(Path(last), mode=mode, durable=durable, folder=folder, moving=moving) as stream,
        ):
            yield stream

    def create(self, name: str, data: bytes, *, mode: int | None = None) -> None:
        """Create a file as files.create_durably does. Raises FileExistsError if a file or link exists."""
        with self._parent(name, make=True) as (folder, last):
            create_durably(Path(last), data, mode=mode, folder=folder)

    def make_private(self, name: str) -> None:
        """Create a folder for its owner alone, unless it exists."""
        with self._parent(name, make=True) as (folder, last), contextlib.suppress(FileExistsError):
            os.mkdir(last, 0o700, dir_fd=folder)

    def delete(self, name: str) -> None:
        """Remove a file, or a link itself. It is no error if there is none."""
        with contextlib.suppress(FileNotFoundError), self._parent(name) as (folder, last):
            os.unlink(last, dir_fd=folder)

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with its content. Of a link, only the link is removed."""
        refuse_foreign_links(str(self._root))
        import shutil  # every command imports this module, and shutil imports all compressions

        with self._parent(name) as (folder, last):
            if stat.S_ISDIR(os.stat(last, dir_fd=folder, follow_symlinks=False).st_mode):
                shutil.rmtree(last, dir_fd=folder)
            else:
                os.unlink(last, dir_fd=folder)

    def sweep(self, name: str, pattern: re.Pattern[str]) -> None:
        """Remove the files of a folder whose names match: temporary files that killed writers left.

        Call it only while no writer is active, or if a writer whose file is gone writes again.
        """
        with contextlib.suppress(OSError), self.folder(name) as folder, os.scandir(folder) as entries:
            for entry in entries:
                if pattern.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=folder)

    @contextmanager
    def _parent(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """Yield a handle of a file's folder, and the file's name there. Errors contain the whole path."""
        folder, _, last = name.rpartition("/")
        try:
            with self.folder(folder, make=make) as handle:
                yield handle, last
        except UnfitError:
            raise
        except OSError as problem:
            if problem.errno is None:
                raise
            raise OSError(problem.errno, problem.strerror, str(self.path(name))) from None


def write_whole(path: str | Path, data: bytes) -> None:
    """Write a result file (see open_whole). Raises OSError, and then the old file stays."""
    with open_whole(path) as stream:
        stream.write(data)


@contextmanager
def open_whole(path: str | Path) -> Iterator[BinaryIO]:
    """Yield a stream to a result file, which replaces the old file at the end and keeps its permissions.

    A pipe, a device and a file that the shell has opened (`/dev/stdout`, `/dev/fd/63`) receive the data while
    it is written. Raises UnfitError for any other link, and for a link on the path that comes from a
    checkout: a repository must not decide which file is replaced."""
    target = Path(path).absolute()
    if opened := _SHELL_FILE.fullmatch(str(target)):
        number = {"stdout": "1", "stderr": "2"}.get(opened[1], opened[1].removeprefix("fd/"))
        with os.fdopen(os.dup(int(number)), "wb") as stream:
            yield stream
        return
    mode = target.lstat().st_mode if os.path.lexists(target) else None
    if mode is not None and stat.S_ISLNK(mode):
        raise UnfitError(mode, str(path), f"is a link to {target.readlink()}")
    refuse_foreign_links(str(target.parent))
    if mode is not None and not stat.S_ISREG(mode):  # a pipe or a device can't be replaced
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "wb") as stream:
            yield stream
        return
    with replacing(target, mode=stat.S_IMODE(mode) if mode is not None else None, durable=False) as stream:
        yield stream


@cache
def refuse_foreign_links(root: str) -> None:
    """Raise UnfitError if a path goes through a link that comes from a checkout.

    Asks git only if there is a link on the path.
    """
    if os.path.realpath(root) == os.path.normpath(Path(root).absolute()):
        return

    for link in links_of_path(Path(root)):
        raise UnfitError(stat.S_IFLNK, str(link), "is a link that may have come with the repository")


def _open_subfolder(outer: int, part: str, place: str, *, make: bool) -> int:
    if part in (".", ".."):
        raise OSError(22, "it leads out of its folder", place)
    for attempt in range(2):
        try:
            return os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=outer)
        except FileNotFoundError:
            if not make or attempt:
                raise FileNotFoundError(2, os.strerror(2), place) from None
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=outer)
        except OSError as problem:
            if _is_link(part, outer):
                raise UnfitError(stat.S_IFLNK, place) from None
            raise OSError(problem.errno, problem.strerror, place) from None
    raise AssertionError


def _refuse_irregular(name: str, folder: int, place: str) -> None:
    """Raise UnfitError if a file that couldn't be opened isn't a regular file."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if kind_of(mode):
            raise UnfitError(mode, place)


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False
