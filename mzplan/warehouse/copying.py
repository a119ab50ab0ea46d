"""A folder copied into a warehouse, with all that is below it.

What an object store lists are names that others have given: one with `..` in it would be written anywhere on
this machine. And a store may never answer: it is asked on other threads, so that the one which waits, under
the state's lock, hears a signal, and gives up after a while without a sign.
"""

from __future__ import annotations

import errno
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from mzplan.host.files import Readable
from mzplan.host.guarded import GuardedFolder
from mzplan.warehouse.folder import file_system
from mzplan.warehouse.paths import local_path, split_storage, stays_below

_AT_ONCE = 8
_PIECE = 4 << 20  # bytes
_SILENCE_S = 120.0  # of a store, after which it is given up
_END_S = 2.0  # that threads have to notice that nobody waits for them

Value = TypeVar("Value")
Files = dict[str, int]  # their sizes in bytes, by their names below a folder


def copy_folder(from_: str, to: str) -> None:
    """Copy what is below a path or URI to below another one. Raises OSError, also for a name that leads out
    of the folder, for more than there is room for, and for a store that says nothing for two minutes."""
    local_source, local_target = local_path(from_), local_path(to)
    if local_source is not None and local_target is not None:
        _link_or_copy(GuardedFolder(local_source), GuardedFolder(*split_storage(local_target)))
        return
    with _Threads(from_ if local_source is None else to) as threads:
        source, target = threads.result(lambda: (_side(from_), _side(to)))
        files = threads.result(source.files)
        target.ensure_room(sum(files.values()))

        def copy(name: str) -> None:
            with source.reading(name) as stream, target.writing(name) as copied:
                _pour(stream, copied, files[name], f"{source.place}/{name}", threads.sign)

        threads.each([partial(copy, name) for name in sorted(files)])


def _pour(stream: Readable, copied: Any, size: int, place: str, sign: Callable[[], None]) -> None:
    left = size
    while piece := stream.read(min(_PIECE, left + 1)):
        sign()
        left -= len(piece)
        if left < 0:
            break
        copied.write(piece)
    if left:
        raise OSError(f"{place} has not the {size:,} bytes that were listed of it: somebody writes there")


def _side(place: str) -> _Local | _Remote:
    local = local_path(place)
    return _Local(place, local) if local is not None else _Remote(place)


class _Local:
    """A folder of this machine's. No link is followed."""

    def __init__(self, place: str, path: Path):
        self.place = place
        self._folder = GuardedFolder(*split_storage(path))

    def files(self) -> Files:
        return {name: self._folder.stat(name).st_size for name in _names(self._folder)}

    def ensure_room(self, size: int) -> None:
        with self._folder.folder(make=True) as handle:
            disk = os.fstatvfs(handle)
        if size > disk.f_bavail * disk.f_frsize:
            raise OSError(errno.ENOSPC, f"{size:,} bytes are more than the disk has room for", self.place)

    def reading(self, name: str) -> AbstractContextManager[Any]:
        return os.fdopen(self._folder.open(name), "rb")

    def writing(self, name: str) -> AbstractContextManager[Any]:
        return self._folder.replacing(name, durable=False)


class _Remote:
    """A folder in an object store, by pyarrow."""

    def __init__(self, place: str):
        self.place = place
        self._system, path = file_system(place)
        self._path = path.rstrip("/")

    def files(self) -> Files:
        from pyarrow import fs

        files: Files = {}
        for entry in self._system.get_file_info(fs.FileSelector(self._path, recursive=True)):
            if entry.type != fs.FileType.File:
                continue
            name = entry.path.removeprefix(f"{self._path}/")
            if name == entry.path or not stays_below(name):
                raise OSError(f"{self.place} has an object whose name leads out of it: {name[:200]!r}")
            files[name] = entry.size
        return files

    def ensure_room(self, size: int) -> None:
        """There is no end to it."""

    def reading(self, name: str) -> Any:
        return self._system.open_input_stream(f"{self._path}/{name}", compression=None)  # as it is

    def writing(self, name: str) -> Any:
        return self._system.open_output_stream(f"{self._path}/{name}", compression=None)  # as it is


class _Threads:
    """What talks to a store. A request may never end: such a thread is left behind, and ends with the
    process. The thread that waits hears signals."""

    def __init__(self, place: str):
        self._place = place
        self._signs: queue.SimpleQueue[BaseException | bool] = queue.SimpleQueue()
        self._is_over = False
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> _Threads:
        return self

    def __exit__(self, *problem: object) -> None:
        self._is_over = True
        until = time.monotonic() + _END_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def sign(self) -> None:
        """Called on the threads, whenever the store has done something."""
        if self._is_over:
            raise OSError(errno.ECANCELED, "nobody waits for it any more", self._place)
        self._signs.put(False)

    def result(self, work: Callable[[], Value]) -> Value:
        """What one thread makes. Raises what it raises, and TimeoutError."""
        results: list[Value] = []
        self.each([lambda: results.append(work())])
        return results[0]

    def each(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Do all of them, some at once; the first problem ends it. Raises TimeoutError."""
        waiting, lock = iter(tasks), threading.Lock()

        def work() -> None:
            try:
                while not self._is_over:
                    with lock:
                        task = next(waiting, None)
                    if task is None:
                        break
                    task()
                    self.sign()
                self._signs.put(True)
            except BaseException as problem:
                self._signs.put(problem)

        at_work = min(_AT_ONCE, len(tasks))
        for _ in range(at_work):
            self._threads.append(threading.Thread(target=work, name="mzplan-copy", daemon=True))
            self._threads[-1].start()
        while at_work:
            at_work -= self._heard()

    def _heard(self) -> bool:
        """Whether a thread has come to its end."""
        try:
            sign = self._signs.get(timeout=_SILENCE_S)
        except queue.Empty:
            text = f"no answer within {_SILENCE_S:.0f} s"
            raise TimeoutError(errno.ETIMEDOUT, text, self._place) from None
        if isinstance(sign, BaseException):
            raise sign
        return sign


def _names(folder: GuardedFolder, inner: str = "") -> Iterator[str]:
    for entry in folder.entries(inner):
        name = f"{inner}/{entry.name}".lstrip("/")
        if entry.is_dir(follow_symlinks=False):
            yield from _names(folder, name)
        else:
            yield name


def _link_or_copy(source: GuardedFolder, target: GuardedFolder) -> None:
    """No link is followed, on either side. Of data, which Delta never changes in place, the copy is a second
    name where the disk allows one."""
    for name in _names(source):
        inner, _, last = name.rpartition("/")
        with target.folder(inner, make=True) as descriptor, os.fdopen(source.open(name), "rb") as file:
            is_data = name.endswith(".parquet") and "_delta_log" not in name.split("/")
            if is_data and _linked(source.path(name), last, descriptor):
                continue
            with target.replacing(name, durable=False) as copied:
                shutil.copyfileobj(file, copied)


def _linked(from_: Path, name: str, folder: int) -> bool:
    try:
        os.link(from_, name, dst_dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True
