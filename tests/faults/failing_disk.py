"""A disk that fails at the n-th thing that is asked of it, in this process and below one folder."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

# What asks for room. All else goes on where there is none.
_NO_SPACE = {"create", "write", "mkdir", "fsync", "replace", "link"}


@dataclass
class FailingDisk:
    """Below `folder`, call number `at` (from 0) fails; -1: none. `error`: an errno. `lasting`: all after it
    fail as well (ENOSPC: those that need room). `late`: it fails after it was done."""

    folder: Path
    at: int = -1
    error: int = errno.EIO
    lasting: bool = False
    late: bool = False
    calls: list[str] = field(default_factory=list)

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """While it lasts, whatever this process writes below the folder is counted, and may fail."""
        with contextlib.ExitStack() as patched:
            for name in ("replace", "rename", "link", "unlink", "remove", "mkdir", "truncate"):
                patched.enter_context(mock.patch.object(os, name, self._of_path(name, getattr(os, name))))
            for name in ("write", "pwrite", "fsync", "ftruncate", "fchmod"):
                patched.enter_context(mock.patch.object(os, name, self._of_handle(name, getattr(os, name))))
            patched.enter_context(mock.patch.object(os, "open", self._open(os.open)))
            patched.enter_context(mock.patch.object(io, "open", self._stream(io.open)))
            yield

    def _fails(self, call: str, place: Any) -> bool:
        path = Path(f"/proc/self/fd/{place}").readlink() if isinstance(place, int) else Path(place)
        if not os.path.realpath(path).startswith(os.path.realpath(self.folder)):
            return False
        number = len(self.calls)
        self.calls.append(f"{call} {os.path.relpath(path, self.folder)}")
        if self.at < 0 or number < self.at or (number > self.at and not self.lasting):
            return False
        return self.error != errno.ENOSPC or call in _NO_SPACE

    def _problem(self, path: Any = None) -> OSError:
        given = (path,) if isinstance(path, (str, os.PathLike)) else ()
        return OSError(self.error, os.strerror(self.error), *given)

    def _carried_out(self, call: str, place: Any, work: Callable[[], Any]) -> Any:
        fails = self._fails(call, place)
        if fails and not self.late:
            raise self._problem(place)
        done = work()
        if fails:
            raise self._problem(place)
        return done

    def _of_path(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        call = {"rename": "replace", "remove": "unlink"}.get(name, name)
        return lambda path, *more, **options: self._carried_out(
            call, path, lambda: real(path, *more, **options)
        )

    def _of_handle(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        call = "write" if name == "pwrite" else name
        return lambda handle, *more: self._carried_out(call, handle, lambda: real(handle, *more))

    def _open(self, real: Callable[..., int]) -> Callable[..., int]:
        def opened(path: Any, flags: int, *more: Any, **options: Any) -> int:
            if flags & os.O_CREAT and not os.path.lexists(path) and self._fails("create", path):
                raise self._problem(path)
            return real(path, flags, *more, **options)

        return opened

    def _stream(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
            if not set(mode) & set("wax+"):
                return real(file, mode, *more, **options)
            if not isinstance(file, int) and not os.path.lexists(file) and self._fails("create", file):
                raise self._problem(file)
            raw = _Raw(file, mode.replace("b", "").replace("t", ""))
            raw.disk = self
            stream = io.BufferedWriter(raw)
            return stream if "b" in mode else io.TextIOWrapper(stream, encoding=options.get("encoding"))

        return opened


class _Raw(io.FileIO):
    """Half of what is written is there when it fails, as where the space ends."""

    disk: FailingDisk

    def write(self, data: Any) -> int:
        if self.disk._fails("write", self.fileno()):
            super().write(bytes(data)[: len(data) // 2])
            raise self.disk._problem()
        return super().write(data)
