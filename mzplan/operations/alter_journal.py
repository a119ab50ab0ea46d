"""Edits files and commits the change as one unit: both happen, or neither.

    .mzplan/alter.lock     held by the one command that edits this folder's files
    .mzplan/alter.json     the edit in progress: written before the commit, removed once the files are written

The store decides: the edit counts if the journal's serial is committed. Before the commit, mzplan writes the
new contents beside the files and removes them again, to prove that they can be written. After a crash, the
journal remains. The next `apply` or `alter` looks for its serial in the store, and finishes or forgets the
edit. Commands that only read don't write the files: they use the new contents from the journal.

A checkout could contain a forged journal. So mzplan uses only an intact journal, and only for YAML files of
the project.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mzplan.config.edits import is_project_file
from mzplan.host.checkout import FOLDER, journal_path, refuse_unused, why_unused
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.host.files import (
    create_durably,
    make_private_folder,
    move_into_place,
    read_regular,
    temporary_files_of,
    write_durably,
)
from mzplan.host.guarded_folder import GuardedFolder
from mzplan.model.diagnostics import MzplanError, error
from mzplan.model.state import State
from mzplan.operations.edit_journal import EditedFile, Journal, digest_of, edited_file
from mzplan.store.backends.backend import UnknownWriteError
from mzplan.store.store import digest_of_state

if TYPE_CHECKING:
    from mzplan.config.edits import FileEdit
    from mzplan.store.store import Store

MAX_BYTES = 1 << 27  # of a journal: four times the limit of a configuration file
LOCK_WAIT = 2.0  # seconds that a command waits for another editing command


class _BusyError(Exception):
    """Another command is editing."""


@contextlib.contextmanager
def editing(directory: str, wait: float = LOCK_WAIT, busy: Exception | None = None) -> Iterator[None]:
    """Lock the files of this folder against other commands that edit them.

    Raises `busy` (by default MZ033, exit 6) if another command holds the lock after `wait` seconds. Raises
    MZ076 if `.mzplan` may belong to another user.
    """
    refuse_unused(directory)
    folder = Path(directory) / FOLDER
    handle = _open_lock(folder)
    try:
        until = time.monotonic() + wait
        while not _locked(handle):
            if time.monotonic() >= until:
                raise busy or error("MZ033.another-command")
            time.sleep(0.02)
        GuardedFolder(folder).sweep("", temporary_files_of("alter.json"))
        yield
    finally:
        os.close(handle)  # releases the lock, as does the end of the process


def _open_lock(folder: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        make_private_folder(folder)
        return os.open(folder / "alter.lock", flags, 0o600)
    except OSError as problem:
        raise error(
            "MZ035.cannot-written", file=folder / "alter.lock", strerror=problem.strerror or problem
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
def committing(
    directory: str, store: Store, edits: Sequence[FileEdit], statement: str, new: State
) -> Iterator[None]:
    """Wrap the commit of `new`, and write the files only if it is committed.

    The caller holds `editing` and the lock of the state.
    """
    for edit in edits:
        _prepare(edit).unlink()  # proves that the file can be written
    failpoint(Failpoint.ALTER_PREPARED)
    try:
        journal = _journal_of(directory, edits, statement, new, store.environment)
        write_durably(journal_path(directory), journal)
        failpoint(Failpoint.ALTER_JOURNALED)
        yield
        failpoint(Failpoint.ALTER_COMMITTED)
    except UnknownWriteError:
        raise  # the commit may still succeed, so the next command checks
    except BaseException:
        # After any failure, the store's content decides.
        with contextlib.suppress(MzplanError, OSError):
            finish_edit(directory, store)
        raise
    try:
        finish_edit(directory, store)
    except OSError as problem:
        names = ", ".join(edit.path for edit in edits)
        raise error(
            "MZ035.not-written", names=names, strerror=problem.strerror or problem, serial=new.serial
        ) from None


def write(edits: Sequence[FileEdit]) -> None:
    """Write edits without a commit: prepare all, then replace each file atomically."""
    prepared = list[tuple[Path, Path]]()
    try:
        for edit in edits:
            prepared.append((_prepare(edit), Path(edit.location)))
        while prepared:
            move_into_place(*prepared[0])
            del prepared[0]
    finally:
        for temporary, _ in prepared:
            temporary.unlink(missing_ok=True)


def waiting_edit(directory: str, store: Store) -> Mapping[str, bytes]:
    """Return the new contents of files, by real path, of a committed edit that isn't finished.

    Changes nothing. Raises MZ076 like `finish_edit`.
    """
    journal = None if why_unused(directory) else _read(directory)
    if journal is None or journal.environment != store.environment:  # another environment's store decides
        return {}
    if store.serial_digest(journal.serial) != journal.digest:
        return {}
    return {str(path): file.content for path, file in _due(directory, journal)}


def finish_left_edit(directory: str, store: Store) -> str | None:
    """Finish or forget the edit left by a crash, unless its command is still running."""
    if os.path.lexists(journal_path(directory)):
        with contextlib.suppress(_BusyError), editing(directory, wait=0.0, busy=_BusyError()):
            return finish_edit(directory, store)
    return None


def finish_edit(directory: str, store: Store) -> str | None:
    """Finish or forget the edit left by a crash. The caller holds `editing`.

    Returns a message about the edit, or None if there was none. Raises MZ076 if a file was changed meanwhile,
    or if the journal is damaged, names a file outside the project, or belongs to another environment.
    """
    journal = _read(directory)
    if journal is None:
        return None
    if journal.environment != store.environment:
        raise _elsewhere(journal, journal_path(directory))
    path, names = journal_path(directory), ", ".join(file.path for file in journal.files)
    for file in journal.files:
        _path_of(directory, file)
    if store.serial_digest(journal.serial) != journal.digest:
        path.unlink()
        return f"forgot an edit of {names} that was never committed"
    for place, file in _due(directory, journal):
        move_into_place(_write_beside(place, file.content), place)
    failpoint(Failpoint.ALTER_WRITTEN)
    path.unlink()
    return f"wrote the edit of {names} that was committed as serial {journal.serial}"


def _read(directory: str) -> Journal | None:
    path = journal_path(directory)
    try:
        return Journal.decode(read_regular(path, follow=False, max_bytes=MAX_BYTES))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise _unreadable(path, getattr(problem, "strerror", None) or str(problem)) from None


def _path_of(directory: str, file: EditedFile) -> Path:
    """Return the real path of a journal's file. Raises MZ076 if it isn't a file of the project."""
    path = os.path.realpath(Path(os.path.realpath(directory)) / file.path)
    if not is_project_file(directory, path):
        raise _unreadable(journal_path(directory), f"{file.path} is not a YAML file of this project")
    return Path(path)


def _due(directory: str, journal: Journal) -> list[tuple[Path, EditedFile]]:
    """Return the files that still have their old content, with their paths.

    Raises MZ076 for a file with neither its old nor its new content, OSError for an unreadable file.
    """
    due = []
    for file in journal.files:
        path = _path_of(directory, file)
        try:
            digest = digest_of(read_regular(path))
        except FileNotFoundError:
            digest = ""
        if digest not in (file.before, file.after_digest):
            raise _changed(journal, file, journal_path(directory))
        if digest == file.before:
            due.append((path, file))
    return due


def _journal_of(
    directory: str, edits: Sequence[FileEdit], statement: str, new: State, environment: str
) -> bytes:
    """Return the encoded journal. Raises MZ035 if a name or the statement isn't UTF-8."""
    root = os.path.realpath(directory)
    try:
        first, *others = (edited_file(os.path.relpath(e.location, root), e.before, e.after) for e in edits)
        encoded = Journal(
            path=first.path,
            before=first.before,
            after=first.after,
            after_digest=first.after_digest,
            also=tuple(others),
            statement=statement,
            serial=new.serial,
            digest=digest_of_state(new),
            environment=environment,
        ).encode()
        Journal.decode(encoded)
    except ValueError as problem:
        raise error("MZ035.mzplan-cannot", path=edits[0].path, problem=problem) from None
    return encoded


def _prepare(edit: FileEdit) -> Path:
    """Write the new content beside the file. Raises MZ035 if that fails, with nothing changed."""
    file = Path(edit.location)
    try:
        if file.read_bytes() != edit.before:
            raise error("MZ076.changed", path=edit.path)
        return _write_beside(file, edit.after)
    except OSError as problem:
        raise error("MZ035.cannot-edited", path=edit.path, strerror=problem.strerror or problem) from None


def _write_beside(file: Path, content: bytes) -> Path:
    # The loader doesn't read files whose names begin with a dot.
    temporary = file.with_name(f".{file.name[:200]}.{secrets.token_hex(6)}.tmp")
    mode = file.stat().st_mode & 0o7777
    if not os.access(file, os.W_OK):
        raise PermissionError(errno.EACCES, "it is read-only")
    GuardedFolder(file.parent).sweep("", temporary_files_of(file.name))
    create_durably(temporary, content, mode=mode)
    return temporary


def _changed(journal: Journal, file: EditedFile, path: Path) -> MzplanError:
    return error(
        "MZ076.missing-edit",
        path=file.path,
        statement=journal.statement,
        serial=journal.serial,
        journal_path=path,
    )


def _elsewhere(journal: Journal, path: Path) -> MzplanError:
    """Return the error for an edit of another environment, whose store knows its commit."""
    which = f" --env {shlex.quote(journal.environment)}" if journal.environment else ""
    return error(
        "MZ076.edit-mzplan",
        environment=journal.environment,
        path=journal.path,
        which=which,
        journal_path=path,
    )


def _unreadable(path: Path, problem: str) -> MzplanError:
    return error("MZ076.damaged", path=path, problem=problem)
