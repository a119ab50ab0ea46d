"""The edit of a file and the commit of what it means, as one: both are done, or neither is.

    .mzplan/alter.lock     held by the one command that edits this folder's files
    .mzplan/alter.json     the edit under way: written before the commit, removed after the file is

The commit decides. Before it, the new content is written beside the file and removed again: so it can be
written. A crash leaves the journal: the next `apply` or `alter` looks whether its serial is in the store, and
finishes the edit or forgets it. Commands that look change nothing: they read what the file will hold.

Anybody may have written a journal. It is used only for a YAML file of the project, and only if it is whole.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.host.files import create_durably, make_private_folder, put_in_place, read_regular, write_durably
from mzplan.model.codec import decode, encode
from mzplan.model.diagnostics import ExitCode, MzplanError, error
from mzplan.model.json_text import parse
from mzplan.model.state import State
from mzplan.operations.local_folder import FOLDER, journal_path, refuse_unused, why_unused

if TYPE_CHECKING:
    from mzplan.config.edits import FileEdit
    from mzplan.store.store import Store

FORMAT_VERSION = 2
MAX_BYTES = 1 << 27  # of a journal: four times those of a configuration file
LOCK_WAIT = 2.0  # seconds that a command waits for another one that edits


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """An edit under way. `path` is relative to the project, links followed; `before` is the digest of the
    file's old content, `after_digest` of the new one; `serial` and `digest` are those of the state that is
    committed with it. `statement` as it was given (it holds no secret: it was checked)."""

    statement: str
    path: str
    before: str
    after: str = field(repr=False)
    after_digest: str
    serial: int
    digest: str

    @property
    def content(self) -> bytes:
        return self.after.encode()

    def encode(self) -> bytes:
        fields = {"format_version": FORMAT_VERSION, **encode(self)}
        return json.dumps({**fields, "checksum": _checksum(fields)}, indent=2).encode()

    @classmethod
    def decode(cls, data: bytes) -> Journal:
        """The inverse. Raises ValueError."""
        found = parse(data)
        if not isinstance(found, dict) or found.pop("checksum", None) != _checksum(found):
            raise ValueError("its checksum is not that of its content")
        if found.get("format_version") != FORMAT_VERSION:
            raise ValueError("it is of another version of mzplan")
        journal = decode(cls, found)
        if not journal.after or _digest(journal.content) != journal.after_digest:
            raise ValueError("the new content is not what its digest says")
        return journal


class _BusyError(Exception):
    """Somebody else edits."""


@contextlib.contextmanager
def editing(directory: str, wait: float = LOCK_WAIT, busy: Exception | None = None) -> Iterator[None]:
    """Be the one command that edits files of this folder. When another one is: raises `busy`, by default
    MZ033 (exit 6); MZ076 where `.mzplan` may be somebody else's."""
    refuse_unused(directory)
    folder = Path(directory) / FOLDER
    handle = _open_lock(folder)
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


def _open_lock(folder: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        make_private_folder(folder)
        return os.open(folder / "alter.lock", flags, 0o600)
    except OSError as problem:
        raise error(
            "MZ035",
            f"{folder / 'alter.lock'} can't be written: {problem.strerror or problem}",
            "It is held by the one command that edits. Nothing was changed.",
            "correct the folder's permissions; delete the file if it is a link.",
        ) from None


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

    _rehearse(edit)
    failpoint(Failpoint.ALTER_PREPARED)
    journal = Journal(
        statement=statement,
        path=os.path.relpath(edit.location, os.path.realpath(directory)),
        before=_digest(edit.before),
        after=edit.after.decode(),
        after_digest=_digest(edit.after),
        serial=new.serial,
        digest=digest_of_state(new),
    )
    try:
        write_durably(journal_path(directory), _encoded(journal, edit))
        failpoint(Failpoint.ALTER_JOURNALED)
        yield
        failpoint(Failpoint.ALTER_COMMITTED)
    except BaseException:
        # Whatever went wrong: what the store holds decides.
        with contextlib.suppress(MzplanError, OSError):
            settle(directory, store)
        raise
    try:
        settle(directory, store)
    except OSError as problem:
        raise error(
            "MZ035",
            f"{edit.path} could not be written: {problem.strerror or problem}",
            f"Serial {new.serial} is committed; the next `mzplan apply` in this folder writes the file.",
            "make room on the disk, or correct the permissions, then run `mzplan apply`.",
            exit_code=ExitCode.NOT_CONVERGED,
        ) from None


def write(edit: FileEdit) -> None:
    """Write an edit that nothing is committed with: whole, or not at all."""
    put_in_place(_prepare(edit), Path(edit.location))


def waiting_edit(directory: str, store: Store) -> Mapping[str, bytes]:
    """By real path: what a file holds once an edit that waits, and is committed, is made. Changes nothing.
    Raises MZ076 as `settle`."""
    journal = None if why_unused(directory) else _read(directory)
    if journal is None or store.serial_digest(journal.serial) != journal.digest:
        return {}
    file = _file_of(directory, journal)
    return {str(file): journal.content} if _is_due(directory, journal, file) else {}


def settle_left(directory: str, store: Store) -> str | None:
    """Finish or forget what a crash has left, unless the command that edits is still at work."""
    if os.path.lexists(journal_path(directory)):
        with contextlib.suppress(_BusyError), editing(directory, wait=0.0, busy=_BusyError()):
            return settle(directory, store)
    return None


def settle(directory: str, store: Store) -> str | None:
    """Finish or forget what a crash has left, as the store says. The caller holds `editing`. Returns what was
    done, for people. Raises MZ076 where the file has been changed by somebody else meanwhile, and where the
    journal is damaged or of a file that is not the project's."""
    journal = _read(directory)
    if journal is None:
        return None
    path, file = journal_path(directory), _file_of(directory, journal)
    if store.serial_digest(journal.serial) != journal.digest:
        path.unlink()
        return f"forgot an edit of {file} that was never committed"
    if _is_due(directory, journal, file):
        put_in_place(_write_beside(file, journal.content), file)
    failpoint(Failpoint.ALTER_WRITTEN)
    path.unlink()
    return f"wrote the edit of {file} that was committed as serial {journal.serial}"


def _read(directory: str) -> Journal | None:
    path = journal_path(directory)
    try:
        return Journal.decode(read_regular(path, follow=False, most=MAX_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise _unreadable(path, getattr(problem, "strerror", None) or str(problem)) from None


def _file_of(directory: str, journal: Journal) -> Path:
    """The real path of the journal's file. Raises MZ076 unless the project's loader reads it."""
    from mzplan.config.edits import is_declaring

    file = os.path.realpath(Path(os.path.realpath(directory)) / journal.path)
    if not is_declaring(directory, file):
        raise _unreadable(journal_path(directory), f"{journal.path} is no YAML file of this project")
    return Path(file)


def _is_due(directory: str, journal: Journal, file: Path) -> bool:
    """Whether the file is the old one, not yet the new one. Raises MZ076 where the file is neither."""
    try:
        there = _digest(read_regular(file))
    except OSError:
        there = ""
    if there not in (journal.before, journal.after_digest):
        raise _changed(journal, journal_path(directory))
    return there == journal.before


def _encoded(journal: Journal, edit: FileEdit) -> bytes:
    """Raises MZ035 for what could not be read again: a name or a statement that is no UTF-8."""
    try:
        encoded = journal.encode()
        Journal.decode(encoded)
    except ValueError as problem:
        raise error(
            "MZ035",
            f"The edit of {edit.path} can't be put into a journal: {problem}",
            "After a crash it could not be finished. Nothing was changed.",
            "names of files and folders of the project, and the statement, must be UTF-8.",
        ) from None
    return encoded


def _rehearse(edit: FileEdit) -> None:
    """Show that the edit can be written, before anything is committed. Raises MZ035, MZ076."""
    _prepare(edit).unlink()


def _prepare(edit: FileEdit) -> Path:
    """Put the new content beside the file. Raises MZ035, with nothing changed, where that can't be done."""
    file = Path(edit.location)
    try:
        if file.read_bytes() != edit.before:
            raise error("MZ076", f"{edit.path} has just been changed", "Nothing was changed.", "try again.")
        return _write_beside(file, edit.after)
    except OSError as problem:
        raise error(
            "MZ035",
            f"{edit.path} can't be edited: {problem.strerror or problem}",
            "Nothing was changed.",
            "check its folder's permissions and the space on its disk.",
        ) from None


def _write_beside(file: Path, content: bytes) -> Path:
    temporary = file.with_name(f".{file.name[:200]}.{secrets.token_hex(6)}.tmp")  # hidden: no configuration
    mode = file.stat().st_mode & 0o7777
    if not os.access(file, os.W_OK):
        raise PermissionError(errno.EACCES, "it may not be written")
    create_durably(temporary, content, mode=mode)
    return temporary


def _checksum(fields: Mapping[str, object]) -> str:
    return _digest(json.dumps(fields, sort_keys=True).encode())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _changed(journal: Journal, path: Path) -> MzplanError:
    return error(
        "MZ076",
        f"{journal.path} lacks an edit that is committed",
        f"Serial {journal.serial} was committed by `{journal.statement}`, which was then interrupted; "
        "since then somebody has changed the file, so it was left alone.",
        f"make the edit in the file (the statement says which), then delete {path}.",
    )


def _unreadable(path: Path, problem: str) -> MzplanError:
    return error(
        "MZ076",
        f"{path} is damaged: {problem}",
        "It says whether an edit of a file has to be finished.",
        "delete it, then compare the files with `mzplan plan`.",
    )
