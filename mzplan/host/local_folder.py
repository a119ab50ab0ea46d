"""The folder `.mzplan/`: a project's data that belongs to this machine alone.

A checkout may contain such a folder, as a link or with a journal in it. Then read-only commands and runners
ignore the folder with a warning, and commands that commit or start a runner refuse to run.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mzplan.host.checkout import is_tracked
from mzplan.model.diagnostics import Diagnostic, refusal
from mzplan.model.resources import ProjectSettings

FOLDER = ".mzplan"


def journal_path(directory: str) -> Path:
    """Return the path of the journal of an unfinished edit."""
    return Path(directory) / FOLDER / "alter.json"


def why_foreign(directory: str) -> str:
    """Return, in a few words, why the folder isn't this user's own; "" if it is, or if there is none."""
    try:
        status = (Path(directory) / FOLDER).lstat()
    except FileNotFoundError:
        return ""
    if stat.S_ISLNK(status.st_mode):
        return "it is a link"
    if not stat.S_ISDIR(status.st_mode):
        return "it isn't a folder"
    if status.st_uid != os.geteuid():
        return "it belongs to another user"
    return ""


def why_unused(directory: str) -> str:
    """Return, in a few words, why the folder can't be used; "" if it can, or if there is none."""
    if (why := why_foreign(directory)) or not os.path.lexists(Path(directory) / FOLDER):
        return why
    tracked = is_tracked(Path(directory), FOLDER)
    if tracked:
        return "git tracks it, so the repository's authors wrote it"
    if tracked is None and os.path.lexists(journal_path(directory)):
        return "it holds a journal, and git can't say whether it comes with the repository"
    return ""


def refuse_unused(directory: str) -> None:
    """Raise MZ076 (exit code 7) if the folder can't be used. For commands that commit."""
    if why := why_unused(directory):
        raise refusal(
            "MZ076",
            f"{FOLDER} can't be used: {why}",
            "Somebody else's files in it could overwrite yours. Nothing was changed.",
            f"look at what is in it, then delete it (`git rm -r --cached {FOLDER}` if git tracks it).",
        )


def pending_edit(directory: str) -> Diagnostic | None:
    """Return a diagnostic for a read-only command if the folder is ignored, or has an unfinished edit."""
    folder = Path(directory) / FOLDER
    if not folder.is_symlink() and not os.path.lexists(journal_path(directory)):
        return None
    if why := why_unused(directory):
        return Diagnostic(
            severity="warning",
            code="MZ076",
            summary=f"{FOLDER} is not used: {why}",
            detail="If it holds an unfinished edit of `mzplan alter`, the edit is ignored.",
            hint=f"look at what is in it, then delete it (`git rm -r --cached {FOLDER}` if git tracks it).",
        )
    return Diagnostic(
        severity="notice",
        code="MZ076",
        summary="An edit of `mzplan alter` is in progress, or was interrupted",
        detail="If it is committed, the files are read as if it were made.",
        hint="if no other command is running, `mzplan apply` finishes or discards it.",
    )


def runtime_file(settings: ProjectSettings, instance: str, suffix: str) -> Path:
    """Return `.mzplan/<instance>.<suffix>`: the socket, log or last error of a runner.

    Runners of states with different variables have different files: a message for one runner, which may have
    secret values, must not reach another one.
    """
    name = f"{instance}-{settings.variant}" if settings.variant else instance
    return Path(settings.directory).resolve() / FOLDER / f"{name}.{suffix}"
