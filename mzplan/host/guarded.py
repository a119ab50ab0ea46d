"""Files below a folder that others may write to, and files for results: no link chooses which file that is.

A folder (of a project, of the state, a warehouse) is where its user has said, by name or in mzplan.yaml, and
may be a link of his own, to another disk say. Below it no link is followed, in any component: whoever can put
one there would choose which file is overwritten or removed. What is read or written is a regular file, opened
without waiting. A file for results is not a link either, but what the shell has opened.

On the way to what was named, a link counts as its user's unless git tracks it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO

from mzplan.host.checkout import links_on
from mzplan.host.files import (
    UnfitError,
    create_durably,
    ensure_regular,
    kind_of,
    replacing,
)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPENED = re.compile(r"(?:/dev|/proc/self)/(stdout|stderr|fd/\d{1,9})")
_FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class GuardedFolder:
    """What is below `root`, or below the folder `inner` of it. Names may have folders in them (`a/b`), never
    `..`. Every method raises OSError; UnfitError, which says what lies where, for a link or what is no
    file."""

    def __init__(self, root: Path, inner: str = ""):
        self._root = root
        self._inner = tuple(part for part in inner.split("/") if part)

    def path(self, name: str = "") -> Path:
        """Where that is, for people."""
        return self._root.joinpath(*self._inner, name)

    @contextmanager
    def folder(self, name: str = "", *, make: bool = False) -> Iterator[int]:
        """A handle of a folder. `make`: also of one that is not there yet."""
        at = str(self._root)
        if make:
            refuse_brought(at)
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
                outer, handle = handle, _entered(handle, part, at, make=make)
                os.close(outer)
            yield handle
        finally:
            os.close(handle)

    def open(self, name: str, flags: int = os.O_RDONLY, mode: int = 0o644) -> int:
        """A handle of a regular file, which is made if `flags` say so."""
        with self._at(name, make=bool(flags & os.O_CREAT)) as (folder, last):
            try:
                handle = os.open(last, flags | _FILE, mode, dir_fd=folder)
            except OSError:
                _refuse_other(last, folder, str(self.path(name)))
                raise
            return ensure_regular(handle, str(self.path(name)))

    def read(self, name: str) -> bytes | None:
        """A file's content, None where there is none."""
        try:
            handle = self.open(name)
        except FileNotFoundError:
            return None
        with os.fdopen(handle, "rb") as stream:
            return stream.read()

    def stat(self, name: str) -> os.stat_result:
        """Of what is there itself, also of a link."""
        with self._at(name) as (folder, last):
            return os.stat(last, dir_fd=folder, follow_symlinks=False)

    def is_there(self, name: str) -> bool:
        """Whether there is a file or folder."""
        try:
            mode = self.stat(name).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return False
        if stat.S_ISLNK(mode):
            raise UnfitError(mode, str(self.path(name)))
        return True

    def entries(self, name: str = "") -> list[os.DirEntry[str]]:
        """The entries of a folder, sorted by name; none if there is no such folder. Only the name and the
        type of an entry can be asked."""
        try:
            with self.folder(name) as handle, os.scandir(handle) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
                for entry in entries:
                    entry.is_symlink()  # asked now, where the file system does not list it: the handle goes
                return entries
        except FileNotFoundError:
            return []

    @contextmanager
    def replacing(self, name: str, *, mode: int | None = None, durable: bool = True) -> Iterator[BinaryIO]:
        """As files.replacing; a link of this name is replaced itself."""
        with (
            self._at(name, make=True) as (folder, last),
            replacing(Path(last), mode=mode, durable=durable, folder=folder) as stream,
        ):
            yield stream

    def create(self, name: str, data: bytes, *, mode: int | None = None) -> None:
        """As files.create_durably: FileExistsError for whatever is there, also for a link."""
        with self._at(name, make=True) as (folder, last):
            create_durably(Path(last), data, mode=mode, folder=folder)

    def make_private(self, name: str) -> None:
        """Make a folder for its owner alone, where there is none."""
        with self._at(name, make=True) as (folder, last), contextlib.suppress(FileExistsError):
            os.mkdir(last, 0o700, dir_fd=folder)

    def delete(self, name: str) -> None:
        """Remove a file, or a link itself; no error where there is none."""
        with contextlib.suppress(FileNotFoundError), self._at(name) as (folder, last):
            os.unlink(last, dir_fd=folder)

    def remove(self, name: str) -> None:
        """Remove a file, or a folder with all that is in it; of a link, the link."""
        refuse_brought(str(self._root))
        with self._at(name) as (folder, last):
            if stat.S_ISDIR(os.stat(last, dir_fd=folder, follow_symlinks=False).st_mode):
                shutil.rmtree(last, dir_fd=folder)
            else:
                os.unlink(last, dir_fd=folder)

    def sweep(self, name: str, left: re.Pattern[str]) -> None:
        """Remove the files of a folder whose names match: what killed writers have left. Only where nobody
        can be writing one: under the lock that its writers hold."""
        with contextlib.suppress(OSError), self.folder(name) as folder, os.scandir(folder) as entries:
            for entry in entries:
                if left.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    os.unlink(entry.name, dir_fd=folder)

    @contextmanager
    def _at(self, name: str, *, make: bool = False) -> Iterator[tuple[int, str]]:
        """The handle of a file's folder, and its name there; errors name its whole path."""
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
    """A file that somebody has named for results: see open_whole. Raises OSError; what was there is intact
    then."""
    with open_whole(path) as stream:
        stream.write(data)


@contextmanager
def open_whole(path: str | Path) -> Iterator[BinaryIO]:
    """A file to be written bit by bit, which is there when it is whole; it keeps the permissions of the one
    before. A pipe or a device gets what is written as it comes, and so does what the shell has opened
    (`/dev/stdout`, `/dev/fd/63`). Raises UnfitError for any other link, and for one on the way that a
    checkout has brought: a repository does not choose which file is replaced."""
    place = Path(path).absolute()
    if opened := _OPENED.fullmatch(str(place)):
        number = {"stdout": "1", "stderr": "2"}.get(opened[1], opened[1].removeprefix("fd/"))
        with os.fdopen(os.dup(int(number)), "wb") as stream:
            yield stream
        return
    mode = place.lstat().st_mode if os.path.lexists(place) else None
    if mode is not None and stat.S_ISLNK(mode):
        raise UnfitError(mode, str(path), f"is a link to {place.readlink()}")
    refuse_brought(str(place.parent))
    if mode is not None and not stat.S_ISREG(mode):  # nothing can be put in its place
        with os.fdopen(os.open(place, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "wb") as stream:
            yield stream
        return
    with replacing(place, mode=stat.S_IMODE(mode) if mode is not None else None, durable=False) as stream:
        yield stream


@cache
def refuse_brought(root: str) -> None:
    """Raise UnfitError for a path that goes through a link which a checkout has brought: what its user has
    named, or linked himself, is not where it leads. Asks git, if there is a link at all."""
    if os.path.realpath(root) == os.path.normpath(Path(root).absolute()):
        return

    for link in links_on(Path(root)):
        raise UnfitError(stat.S_IFLNK, str(link), "is a link that may have come with the repository")


def _entered(outer: int, part: str, place: str, *, make: bool) -> int:
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


def _refuse_other(name: str, folder: int, place: str) -> None:
    """Raise UnfitError where it is not a file that could not be opened."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if kind_of(mode):
            raise UnfitError(mode, place)


def _is_link(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False
