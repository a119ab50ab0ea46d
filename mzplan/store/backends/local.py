"""The local backend: a folder of files on this machine."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.host.files import temporary_files_of
from mzplan.host.guarded_folder import GuardedFolder, refuse_foreign_links
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.store.backends.backend import (
    ANY,
    Blob,
    CommittedError,
    ConflictError,
    Expected,
    LockInfo,
    locked_error,
    removable,
)

STATE_KEY = "mzplan.state.json"
_IN_ROOT = (STATE_KEY, "hold.json", "parallelism.json")  # the folder may also contain other files
_FOLDERS = ("history", "leases", "status", "proposals", "journal", "events", "notifications")
_OWN_FILES = "lock\nhold.json\nparallelism.json\n.mutex\n.*.tmp\n"
IGNORED = f"status/\nleases/\nproposals/\njournal/\nevents/\nnotifications/\n{_OWN_FILES}"


class LocalBackend:
    """A folder of files. No link below it is followed, and each write is atomic.

    A kernel lock on `.mutex`, held for a comparison and a rename, guards compare-and-swap: a process that is
    stopped or waits for its disk holds up no other. The store's lock is a kernel lock on `lock`.
    """

    poll_interval = 0.05
    idle_interval = 0.5

    def __init__(self, folder: Path):
        self.folder = folder
        self._files = GuardedFolder(folder)

    def watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Do nothing: runners on this machine are woken over a socket instead."""
        return lambda: None

    def describe(self) -> str:
        return str(self.folder)

    def misplaced(self) -> MzplanError | None:
        """Return MZ030 if the folder can't exist; None if it exists or can be created."""
        why = ""
        try:
            if not self.folder.is_dir() and self.folder.lstat():
                why = os.strerror(errno.ENOTDIR)
        except FileNotFoundError:
            pass
        except OSError as problem:
            if problem.errno in (errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP):
                why = problem.strerror or ""
        return error("MZ030.cannot-read-name-folder-path", folder=self.folder, why=why) if why else None

    def read(self, key: str) -> Blob | None:
        path = self.folder / key
        try:
            with os.fdopen(self._files.open(key), "rb") as file:
                return Blob(file.read(), _version(os.fstat(file.fileno())))
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise _unreadable(path, problem) from None

    def version(self, key: str) -> str | None:
        try:
            return _version(self._files.stat(key))
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise _unreadable(self.folder / key, problem) from None

    def write(self, key: str, data: bytes, *, expected: Expected = ANY, durable: bool = True) -> str:
        try:
            self._prepare(key.rpartition("/")[0])
            try:
                return self._replace(key, data, expected, durable)
            except FileNotFoundError:  # a command has swept the temporary file
                return self._replace(key, data, expected, durable)
        except OSError as problem:
            raise _unwritable(self.folder / key, problem) from None

    def delete(self, key: str) -> None:
        try:
            self._files.delete(key)
        except OSError as problem:
            raise _unwritable(self.folder / key, problem) from None

    def list(self, prefix: str, after: str = "") -> list[str]:
        try:
            entries = self._files.entries(prefix)
        except NotADirectoryError:
            return []
        except OSError as problem:
            raise _unreadable(self.folder / prefix, problem) from None
        names = [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
        return [key for name in names if not name.startswith(".") and (key := f"{prefix}{name}") > after]

    @contextlib.contextmanager
    def lock(self, info: LockInfo, wait: float) -> Iterator[None]:
        path = self.folder / "lock"
        try:
            self._prepare("")
            handle = self._take(wait)
        except OSError as problem:
            raise _unwritable(path, problem) from None
        try:
            try:
                for key in _IN_ROOT:
                    self._files.sweep("", temporary_files_of(key))
                for folder in _FOLDERS:
                    self._files.sweep(folder, temporary_files_of())
                _overwrite(handle, info.encode())
            except OSError as problem:
                raise _unwritable(path, problem) from None
            yield
        finally:
            os.close(handle)  # this, or the end of the process, releases the kernel's lock

    def holder(self) -> LockInfo | None:
        path = self.folder / "lock"
        try:
            handle = self._files.open("lock", os.O_RDWR)
        except FileNotFoundError:
            return None
        except OSError as problem:
            raise _unreadable(path, problem) from None
        try:
            return None if _try_lock(handle) else _holder(handle)
        finally:
            os.close(handle)

    def unlock(self, id_: str) -> LockInfo | None:
        holder = removable(self.holder(), id_, self.describe())
        if holder is not None:
            # A kernel on another machine, or a child process, holds the lock on this file. A new file has a
            # new lock.
            self.delete("lock")
        return holder

    def _take(self, wait: float) -> int:
        """Return a handle of the lock file that holds the kernel's lock. Waits at most `wait` seconds."""
        until = time.monotonic() + wait
        while True:
            # Open the file for each try: `unlock` replaces it, and the former file's lock protects nothing.
            handle = self._files.open("lock", os.O_RDWR | os.O_CREAT)
            try:
                if _try_lock(handle) and self._is_lock_file(handle):
                    return handle
                if time.monotonic() >= until:
                    raise locked_error(_holder(handle), self.describe())
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)
            time.sleep(min(0.1, max(0.0, until - time.monotonic())))

    def _is_lock_file(self, handle: int) -> bool:
        """Whether the handle's file is still the lock file."""
        try:
            return os.path.samestat(os.fstat(handle), self._files.stat("lock"))
        except FileNotFoundError:
            return False

    def _prepare(self, folder: str) -> None:
        with contextlib.suppress(FileNotFoundError), self._files.folder(folder):
            refuse_foreign_links(str(self.folder))
            return
        with self._files.folder(folder, make=True):
            pass
        if not os.path.lexists(self.folder / ".gitignore"):
            with self._files.replacing(".gitignore", durable=False) as file:
                file.write(IGNORED.encode())

    @contextlib.contextmanager
    def _exclusively(self, key: str, expected: Expected) -> Iterator[None]:
        """Let no other process write. Raises ConflictError if the file has another version."""
        handle = self._files.open(".mutex", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if expected is not ANY and self.version(key) != expected:
                raise ConflictError(key)
            yield
        finally:
            os.close(handle)

    def _replace(self, key: str, data: bytes, expected: Expected, durable: bool) -> str:
        is_state = key == STATE_KEY
        version = ""
        # Runners' files contain digests of secrets and servers' messages. The state may be committed to git.
        mode = 0o600 if key.startswith(("status/", "events/", "notifications/")) else 0o644
        try:
            moving = self._exclusively(key, expected)
            with self._files.replacing(key, mode=mode, durable=durable, moving=moving) as file:
                file.write(data)
                file.flush()
                version = _version(os.fstat(file.fileno()))
                if is_state:
                    failpoint(Failpoint.COMMIT_BEFORE_RENAME)
        except OSError as problem:
            if is_state and self.version(key) == version:  # the file is renamed, but its folder isn't synced
                raise _unsynced(self.folder / key, problem) from None
            raise
        if is_state:
            failpoint(Failpoint.COMMIT_AFTER_RENAME)
        return version


def _version(info: os.stat_result) -> str:
    # A rename creates a new inode, so two writes within one clock tick differ.
    return f"{info.st_mtime_ns:x}-{info.st_ino:x}-{info.st_size:x}"


def _try_lock(handle: int) -> bool:
    """Take the kernel's lock of a file. Return False if another handle has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True


def _overwrite(handle: int, data: bytes) -> None:
    os.ftruncate(handle, 0)
    os.pwrite(handle, data, 0)


def _holder(handle: int) -> LockInfo | None:
    try:
        return LockInfo.decode(os.pread(handle, 1 << 16, 0))
    except (ValueError, OSError):
        return None  # just taken and not yet written, or edited by hand


def _unreadable(path: Path, problem: OSError) -> MzplanError:
    return error("MZ030.cannot-read-check-path-permissions", path=path, strerror=problem.strerror or problem)


def _unsynced(path: Path, problem: OSError) -> MzplanError:
    return CommittedError(
        Diagnostic.of("MZ035.committed-not", path=path, strerror=problem.strerror or problem)
    )


def _unwritable(path: Path, problem: OSError) -> MzplanError:
    hints = {
        errno.ENOSPC: "free some space on this disk, then run the command again.",
        errno.EROFS: "the file system is read-only: keep the state elsewhere (mzplan.yaml, state.path).",
        errno.EACCES: "give this user write access to the folder.",
    }
    return error(
        "MZ035.cannot-write-nothing-changed",
        path=path,
        strerror=problem.strerror or problem,
        get=hints.get(problem.errno or 0, "check the path and its permissions."),
    )
