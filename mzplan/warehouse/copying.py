"""Copies a folder, with everything below it, into a warehouse.

An object store may never answer. So worker threads talk to it. The main thread, which holds the state's lock,
handles signals, and gives up after a while without progress.
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
from mzplan.host.guarded_folder import GuardedFolder
from mzplan.warehouse.folder import file_system
from mzplan.warehouse.paths import local_path, split_storage

_AT_ONCE = 8
_CHUNK = 4 << 20  # bytes
_NO_PROGRESS_S = 120.0  # time without progress after which the copy gives up
_END_S = 2.0  # time for the threads to end once the copy is over

Value = TypeVar("Value")
Files = dict[str, int]  # sizes in bytes, by name below a folder


def copy_folder(from_: str, to: str) -> None:
    """Copy everything below a path or URI to another path or URI.

    Raises OSError, also for a name that leads out of the folder, if the disk is too small, and if the store
    makes no progress for two minutes."""
    local_source, local_target = local_path(from_), local_path(to)
    if local_source is not None and local_target is not None:
        _link_or_copy(GuardedFolder(local_source), GuardedFolder(*split_storage(local_target)))
        return
    with _Threads(from_ if local_source is None else to) as threads:
        source, target = threads.result(lambda: (_open_side(from_), _open_side(to)))
        files = threads.result(source.files)
        target.ensure_room(sum(files.values()))

        def copy(name: str) -> None:
            with source.reading(name) as stream, target.writing(name) as copied:
                _copy_stream(stream, copied, files[name], f"{source.place}/{name}", threads.report_progress)

        threads.run_all([partial(copy, name) for name in sorted(files)])


def _copy_stream(
    stream: Readable, target: Any, size: int, place: str, on_progress: Callable[[], None]
) -> None:
    remaining = size
    while chunk := stream.read(min(_CHUNK, remaining + 1)):
        on_progress()
        remaining -= len(chunk)
        if remaining < 0:
            break
        target.write(chunk)
    if remaining:
        raise OSError(
            f"{place} doesn't have the {size:,} bytes that were listed: another program writes to it"
        )


def _open_side(place: str) -> _Local | _Remote:
    local = local_path(place)
    return _Local(place, local) if local is not None else _Remote(place)


class _Local:
    """A folder on this machine. No link is followed."""

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
    """A folder in an object store, accessed by pyarrow."""

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
            if name in (entry.path, "") or ".." in name.split("/"):
                raise OSError(f"{self.place} has an object whose name leads out of it: {name[:200]!r}")
            files[name] = entry.size
        return files

    def ensure_room(self, size: int) -> None:
        """Do nothing: an object store has no limit."""

    def reading(self, name: str) -> Any:
        return self._system.open_input_stream(f"{self._path}/{name}", compression=None)  # unchanged

    def writing(self, name: str) -> Any:
        return self._system.open_output_stream(f"{self._path}/{name}", compression=None)  # unchanged


class _Threads:
    """Worker threads that talk to a store. Meanwhile, the waiting thread can handle signals.

    If a request never ends, its thread stays until the process ends."""

    def __init__(self, place: str):
        self._place = place
        self._events: queue.SimpleQueue[BaseException | bool] = queue.SimpleQueue()
        self._is_over = False
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> _Threads:
        return self

    def __exit__(self, *problem: object) -> None:
        self._is_over = True
        until = time.monotonic() + _END_S
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def report_progress(self) -> None:
        """Report progress, from a worker thread. Raises OSError once the copy is over."""
        if self._is_over:
            raise OSError(errno.ECANCELED, "the copy was given up", self._place)
        self._events.put(False)

    def result(self, work: Callable[[], Value]) -> Value:
        """Return the result of `work` on one thread. Raises its errors, and TimeoutError."""
        results: list[Value] = []
        self.run_all([lambda: results.append(work())])
        return results[0]

    def run_all(self, tasks: Sequence[Callable[[], None]]) -> None:
        """Run all tasks, several at once. Raises the first error of a task, and TimeoutError."""
        remaining, lock = iter(tasks), threading.Lock()

        def work() -> None:
            try:
                while not self._is_over:
                    with lock:
                        task = next(remaining, None)
                    if task is None:
                        break
                    task()
                    self.report_progress()
                self._events.put(True)
            except BaseException as problem:
                self._events.put(problem)

        running = min(_AT_ONCE, len(tasks))
        for _ in range(running):
            self._threads.append(threading.Thread(target=work, name="mzplan-copy", daemon=True))
            self._threads[-1].start()
        while running:
            running -= self._wait_for_end()

    def _wait_for_end(self) -> bool:
        """Wait for a thread's report: progress, its end or its error. Return whether it has ended."""
        try:
            event = self._events.get(timeout=_NO_PROGRESS_S)
        except queue.Empty:
            text = f"no answer within {_NO_PROGRESS_S:.0f} s"
            raise TimeoutError(errno.ETIMEDOUT, text, self._place) from None
        if isinstance(event, BaseException):
            raise event
        return event


def _names(folder: GuardedFolder, inner: str = "") -> Iterator[str]:
    for entry in folder.entries(inner):
        name = f"{inner}/{entry.name}".lstrip("/")
        if entry.is_dir(follow_symlinks=False):
            yield from _names(folder, name)
        else:
            yield name


def _link_or_copy(source: GuardedFolder, target: GuardedFolder) -> None:
    """Copy between local folders without following links on either side.

    Data files become hard links if the disk allows it, because Delta never changes them in place."""
    for name in _names(source):
        inner, _, last = name.rpartition("/")
        with target.folder(inner, make=True) as descriptor, os.fdopen(source.open(name), "rb") as file:
            is_data = name.endswith(".parquet") and "_delta_log" not in name.split("/")
            if is_data and _try_link(source.path(name), last, descriptor):
                continue
            with target.replacing(name, durable=False) as copied:
                shutil.copyfileobj(file, copied)


def _try_link(from_: Path, name: str, folder: int) -> bool:
    try:
        os.link(from_, name, dst_dir_fd=folder, follow_symlinks=False)
    except OSError:
        return False
    return True
