"""The local backend: a folder of files on this machine."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.host.files import replacing, sweep
from mzplan.model.diagnostics import Diagnostic, ExitCode, MzplanError, error
from mzplan.store.backends.backend import (
    ANY,
    Blob,
    CommittedError,
    ConflictError,
    Expected,
    LockInfo,
    locked_error,
)

MAX_BLOB = 1 << 30  # bytes; a state of 100,000 resources has about 50 MB
STATE_KEY = "mzplan.state.json"
_IGNORED = "status/\nleases/\nproposals/\njournal/\nlock\nhold.json\nparallelism.json\n.mutex\n.*.tmp\n"


class LocalBackend:
    """A folder. Writes are whole (`host.files.replacing`); compare-and-swap is guarded by a lock of the
    kernel on `.mutex`, held for microseconds; the store's lock is one on `lock`."""

    look = 0.05
    idle = 0.5

    def __init__(self, folder: Path):
        self.folder = folder

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Runners of this machine are woken over a socket instead."""
        return lambda: None

    def describe(self) -> str:
        return str(self.folder)

    def misplaced(self) -> MzplanError | None:
        """MZ030 where there can be no such folder; None where there is one, or it can be made."""
        why = ""
        try:
            if not self.folder.is_dir() and self.folder.lstat():
                why = os.strerror(errno.ENOTDIR)
        except FileNotFoundError:
            pass
        except OSError as problem:
            if problem.errno in (errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP):
                why = problem.strerror or ""
        hint = "name a folder, or what can become one."
        return error("MZ030", f"Cannot read {self.folder}", f"{why}.", hint) if why else None

    def read(self, key: str) -> Blob | None:
        path = self.folder / key
        try:
            # Without waiting: somebody may have put a pipe there.
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            info = os.fstat(handle)
            if not stat.S_ISREG(info.st_mode):
                os.close(handle)
                raise _unreadable(path, "it is not a regular file")
            with os.fdopen(handle, "rb") as file:
                if info.st_size > MAX_BLOB:
                    raise _unreadable(path, f"it has {info.st_size:,} bytes; at most {MAX_BLOB:,} are read")
                return Blob(file.read(), _version(info))
        except FileNotFoundError:
            return None
        except NotADirectoryError as problem:
            raise _unreadable(path, f"{problem.strerror}") from None
        except OSError as problem:
            raise _unreadable(path, problem.strerror or str(problem)) from None

    def version(self, key: str) -> str | None:
        try:
            return _version((self.folder / key).stat())
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise _unreadable(self.folder / key, problem.strerror or str(problem)) from None

    def write(self, key: str, data: bytes, *, expected: Expected = ANY, durable: bool = True) -> str:
        path = self.folder / key
        try:
            self._prepare(path.parent)
            with self._mutex():
                if expected is not ANY and self.version(key) != expected:
                    raise ConflictError(key)
                return self._replace(path, data, durable)
        except OSError as problem:
            raise _unwritable(path, problem) from None

    def delete(self, key: str) -> None:
        path = self.folder / key
        try:
            path.unlink(missing_ok=True)
        except OSError as problem:
            raise _unwritable(path, problem) from None

    def list(self, prefix: str) -> list[str]:
        folder = self.folder / prefix
        try:
            names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as problem:
            raise _unreadable(folder, problem.strerror or str(problem)) from None
        return [f"{prefix}{name}" for name in names if not name.startswith(".")]

    @contextlib.contextmanager
    def lock(self, info: LockInfo, wait: float) -> Iterator[None]:
        path = self.folder / "lock"
        try:
            self._prepare(self.folder)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as problem:
            raise _unwritable(path, problem) from None
        try:
            try:
                self._take(handle, wait)
                sweep(self.folder, STATE_KEY)
                sweep(self.folder / "history")
                _overwrite(handle, info.encode())
            except OSError as problem:
                raise _unwritable(path, problem) from None
            yield
        finally:
            os.close(handle)  # and with it, or with the process, the kernel's lock

    def holder(self) -> LockInfo | None:
        path = self.folder / "lock"
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise _unreadable(path, problem.strerror or str(problem)) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return _holder(handle)
        else:
            return None
        finally:
            os.close(handle)

    def unlock(self, id_: str) -> LockInfo | None:
        holder = self.holder()
        if holder is None or holder.id != id_:
            return None
        if holder.is_alive:
            raise locked_error(holder, self.describe())
        # The kernel of another machine holds it, or a child of the process: a new file has a new lock.
        self.delete("lock")
        return holder

    def _take(self, handle: int, wait: float) -> None:
        until = time.monotonic() + wait
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError as problem:
                if problem.errno not in (errno.EAGAIN, errno.EACCES):
                    raise
            if time.monotonic() >= until:
                raise locked_error(_holder(handle), self.describe())
            time.sleep(min(0.1, max(0.0, until - time.monotonic())))

    def _prepare(self, folder: Path) -> None:
        if folder.is_dir():
            return
        folder.mkdir(parents=True, exist_ok=True)
        ignore = self.folder / ".gitignore"
        if not ignore.exists():
            ignore.write_text(_IGNORED, encoding="utf-8")

    def _mode(self, path: Path) -> int:
        """What runners write has digests of secrets in it; the state can be committed to git."""
        return 0o600 if path.is_relative_to(self.folder / "status") else 0o644

    @contextlib.contextmanager
    def _mutex(self) -> Iterator[None]:
        handle = os.open(self.folder / ".mutex", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _replace(self, path: Path, data: bytes, durable: bool) -> str:
        is_state = path.name == STATE_KEY
        version = ""
        try:
            with replacing(path, mode=self._mode(path), durable=durable) as file:
                file.write(data)
                file.flush()
                version = _version(os.fstat(file.fileno()))
                if is_state:
                    failpoint(Failpoint.COMMIT_BEFORE_RENAME)
        except OSError as problem:
            if is_state and self.version(path.name) == version:  # renamed, and the folder not synced
                raise _unsynced(path, problem) from None
            raise
        if is_state:
            failpoint(Failpoint.COMMIT_AFTER_RENAME)
        return version


def _version(info: os.stat_result) -> str:
    # A rename brings a new inode, so even two writes within one tick of the clock differ.
    return f"{info.st_mtime_ns:x}-{info.st_ino:x}-{info.st_size:x}"


def _overwrite(handle: int, data: bytes) -> None:
    os.ftruncate(handle, 0)
    os.pwrite(handle, data, 0)


def _holder(handle: int) -> LockInfo | None:
    try:
        return LockInfo.decode(os.pread(handle, 1 << 16, 0))
    except (ValueError, OSError):
        return None  # between taking the lock and writing its name, or written by hand


def _unreadable(path: Path, why: str) -> MzplanError:
    return error("MZ030", f"Cannot read {path}", f"{why}.", "check the path and its permissions.")


def _unsynced(path: Path, problem: OSError) -> MzplanError:
    return CommittedError(
        Diagnostic(
            code="MZ035",
            summary=f"{path} is committed, and may not survive a power failure",
            detail=f"Its folder could not be synced: {problem.strerror or problem}. Runners follow it.",
            hint="look at the disk (its logs); once it is well, `mzplan plan` shows what is committed.",
            exit_code=ExitCode.NOT_CONVERGED,
        )
    )


def _unwritable(path: Path, problem: OSError) -> MzplanError:
    hints = {
        errno.ENOSPC: "free some space on this disk, then run the command again.",
        errno.EROFS: "the file system is read-only: keep the state elsewhere (mzplan.yaml, state.path).",
        errno.EACCES: "give this user write access to the folder.",
    }
    return error(
        "MZ035",
        f"Cannot write {path}",
        f"{problem.strerror or problem}. Nothing was changed: what was there before is intact.",
        hints.get(problem.errno or 0, "check the path and its permissions."),
    )
