"""The edit of a file and the commit of what it means, as one: both are done, or neither is.

    .mzplan/alter.lock     held by the one command that edits this folder's files
    .mzplan/alter.json     the edit under way: written before the commit, removed after the file is

The commit decides. The new content lies beside the file before it, so that only a rename is left to be done
after it. A crash leaves the journal: whoever comes next looks whether its serial is in the store, and
finishes the edit or forgets it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.host.files import create_durably, put_in_place, write_durably
from mzplan.model.codec import decode, encode
from mzplan.model.diagnostics import ExitCode, MzplanError, error
from mzplan.model.json_text import parse
from mzplan.model.state import State

if TYPE_CHECKING:
    from mzplan.config.edits import FileEdit
    from mzplan.store.store import Store

FORMAT_VERSION = 1
LOCK_WAIT = 2.0  # seconds that a command waits for another one that edits


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """An edit under way. `before` is the digest of the file's old content; `serial` and `digest` are those of
    the state that is committed with it. `statement` as it was given (it holds no secret: it was checked)."""

    statement: str
    location: str
    before: str
    after: str = field(repr=False)
    serial: int
    digest: str

    @property
    def content(self) -> bytes:
        return self.after.encode()

    def encode(self) -> bytes:
        return json.dumps({"format_version": FORMAT_VERSION, **encode(self)}, indent=2).encode()

    @classmethod
    def decode(cls, data: bytes) -> Journal:
        """The inverse. Raises ValueError."""
        return decode(cls, parse(data))


class _BusyError(Exception):
    """Somebody else edits."""


@contextlib.contextmanager
def editing(directory: str, wait: float = LOCK_WAIT, busy: Exception | None = None) -> Iterator[None]:
    """Be the one command that edits files of this folder. When another one is: raises `busy`, by default
    MZ033 (exit 6)."""
    folder = Path(directory) / ".mzplan"
    folder.mkdir(mode=0o700, exist_ok=True)
    handle = os.open(folder / "alter.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        until = time.monotonic() + wait
        while not _locked(handle):
            if time.monotonic() >= until:
                raise busy or error(
                    "MZ033",
                    "Another command is editing the files of this project",
                    "A `mzplan alter` in this folder has not finished yet. Nothing was changed.",
                    "wait until it has finished, then run the command again.",
                    exit_code=ExitCode.LOCKED,
                )
            time.sleep(0.02)
        yield
    finally:
        os.close(handle)  # and with it, or with the process, the kernel's lock


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        return False
    return True


@contextlib.contextmanager
def committing(directory: str, store: Store, edit: FileEdit, statement: str, new: State) -> Iterator[None]:
    """Around the commit of `new`: the file is written if it is committed, and left alone if it is not.
    The caller holds `editing` and the lock of the state."""
    from mzplan.store.store import digest_of_state

    prepared = _prepare(edit)
    try:
        failpoint(Failpoint.ALTER_PREPARED)
        journal = Journal(
            statement=statement,
            location=edit.location,
            before=_digest(edit.before),
            after=edit.after.decode(),
            serial=new.serial,
            digest=digest_of_state(new),
        )
        write_durably(_journal_path(directory), journal.encode())
        failpoint(Failpoint.ALTER_JOURNALED)
        yield
        failpoint(Failpoint.ALTER_COMMITTED)
    except BaseException:
        # Whatever went wrong: what the store holds decides.
        with contextlib.suppress(MzplanError, OSError):
            settle(directory, store)
        prepared.unlink(missing_ok=True)
        raise
    try:
        settle(directory, store)
    except OSError as problem:
        raise error(
            "MZ035",
            f"{edit.path} could not be written: {problem.strerror or problem}",
            f"Serial {new.serial} is committed; the next command in this folder writes the file.",
            "make room on the disk, or correct the permissions, then run `mzplan plan`.",
            exit_code=ExitCode.NOT_CONVERGED,
        ) from None


def write(edit: FileEdit) -> None:
    """Write an edit that nothing is committed with: whole, or not at all."""
    put_in_place(_prepare(edit), Path(edit.location))


def settle_left(directory: str, store: Store) -> None:
    """Finish or forget what a crash has left, unless the command that edits is still at work."""
    with contextlib.suppress(_BusyError), editing(directory, wait=0.0, busy=_BusyError()):
        settle(directory, store)


def settle(directory: str, store: Store) -> str | None:
    """Finish or forget what a crash has left, by what is committed. The caller holds `editing`. Returns what
    was done, for people. Raises MZ076 where the file has been changed by somebody else meanwhile."""
    path = _journal_path(directory)
    try:
        journal = Journal.decode(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as problem:
        raise _unreadable(path, str(problem)) from None
    file = Path(journal.location)
    temporary = _temporary(file)
    if store.serial_digest(journal.serial) != journal.digest:
        temporary.unlink(missing_ok=True)
        path.unlink()
        return f"forgot an edit of {file} that was never committed"
    try:
        there = _digest(file.read_bytes())
    except OSError:
        there = ""
    if there not in (journal.before, _digest(journal.content)):
        raise _changed(journal, path)
    if there == journal.before:
        put_in_place(_write_beside(file, journal.content), file)
    failpoint(Failpoint.ALTER_WRITTEN)
    temporary.unlink(missing_ok=True)
    path.unlink()
    return f"wrote the edit of {file} that was committed as serial {journal.serial}"


def _journal_path(directory: str) -> Path:
    return Path(directory) / ".mzplan" / "alter.json"


def _temporary(file: Path) -> Path:
    return file.with_name(f".{file.name}.mzplan-alter")  # hidden: no configuration


def _prepare(edit: FileEdit) -> Path:
    """Put the new content beside the file. Raises MZ035, with nothing changed, where that can't be done."""
    file = Path(edit.location)
    try:
        if file.read_bytes() != edit.before:
            raise error("MZ076", f"{edit.path} has just been changed", "Nothing was changed.", "try again.")
        return _write_beside(file, edit.after)
    except OSError as problem:
        _temporary(file).unlink(missing_ok=True)
        raise error(
            "MZ035",
            f"{edit.path} can't be edited: {problem.strerror or problem}",
            "Nothing was changed.",
            "check its folder's permissions and the space on its disk.",
        ) from None


def _write_beside(file: Path, content: bytes) -> Path:
    temporary = _temporary(file)
    mode = file.stat().st_mode & 0o7777
    if not os.access(file, os.W_OK):
        raise PermissionError(errno.EACCES, "it may not be written")
    temporary.unlink(missing_ok=True)  # of a crash: its name is known, so that it never stays
    create_durably(temporary, content, mode=mode)
    return temporary


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _changed(journal: Journal, path: Path) -> MzplanError:
    return error(
        "MZ076",
        f"{journal.location} lacks an edit that is committed",
        f"Serial {journal.serial} was committed by `{journal.statement}`, which was then interrupted; "
        "since then somebody has changed the file, so it was left alone.",
        f"make the edit in the file (the statement says which), then delete {path}.",
    )


def _unreadable(path: Path, problem: str) -> MzplanError:
    return error(
        "MZ076",
        f"{path} is damaged: {problem}",
        "It says whether an edit of a file has to be finished.",
        "compare the files with `mzplan plan`, then delete it.",
    )
