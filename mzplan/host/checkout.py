"""Whether a file came with a checkout. If it did, the repository's authors wrote it, not this user.

The folder `.mzplan/` has a project's data that belongs to this machine alone. A checkout may contain such a
folder, as a link or with a journal in it. Then read-only commands and runners ignore the folder with a
warning, and commands that commit or start a runner refuse to run.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from mzplan.model.diagnostics import Diagnostic, error
from mzplan.model.resources import ProjectSettings

_GIT_WAIT = 10.0  # seconds
# The configuration of a repository must not run anything: no file monitor, no bare repository among its
# files.
_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "safe.bareRepository=explicit")

_MAX_LINKS = 40  # in one path; Linux has the same limit
_OTHER_WORK_TREES = (".hg", ".jj", ".svn")  # of tools that mzplan can't ask which files they track


def may_be_foreign(folder: Path) -> bool:
    """Whether others may have written a folder's files: in a repository's work tree, and in a CI job."""
    return bool(os.environ.get("CI")) or _is_below(folder.resolve(), ".git", *_OTHER_WORK_TREES)


def _is_below(real: Path, *names: str) -> bool:
    """Whether the folder or one of its parents has an entry with one of these names."""
    return any(os.path.lexists(parent / name) for parent in (real, *real.parents) for name in names)


def is_tracked(folder: Path, name: str) -> bool | None:
    """Whether git tracks this file, or any file in this folder; None if git can't answer."""
    real = folder.resolve()
    if not _is_below(real, ".git"):
        return False
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    pattern = re.sub(r"[*?\[\]\\]", r"\\\g<0>", name)
    command = (*_GIT, "-C", str(real), "ls-files", "-z", "--", f":(icase){pattern}")
    try:
        ran = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=_GIT_WAIT
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return bool(ran.stdout) if ran.returncode == 0 else None


def why_foreign_file(path: Path) -> str:
    """Return, in a few words, why somebody else may have written a file; "" if it is this user's own."""
    real = path.resolve()
    try:
        owner = real.stat().st_uid
    except OSError as problem:
        return f"its owner can't be read ({problem.strerror})"
    if owner != os.geteuid():
        return "it belongs to another user"
    if _is_below(real, *_OTHER_WORK_TREES):
        return "it is in a work tree of hg, jj or svn, so it may come with the repository"
    tracked = is_tracked(real.parent, real.name)
    if tracked is None:
        return "git can't say whether it comes with the repository"
    return "git tracks it, so the repository's authors wrote it" if tracked else ""


def links_of_path(path: Path) -> Iterator[Path]:
    """Yield the links on a path that may come from a repository.

    Git tracks these links, git can't answer, or they are in the work tree of another tool.
    """
    remaining, folder = list(reversed(path.absolute().parts[1:])), Path(path.absolute().anchor)
    for _ in range(_MAX_LINKS):
        while remaining and not (folder / remaining[-1]).is_symlink():
            part = remaining.pop()
            folder = folder.parent if part == ".." else folder / part
        if not remaining:
            return
        link = folder / remaining.pop()
        if is_tracked(folder, link.name) is not False or _is_below(folder.resolve(), *_OTHER_WORK_TREES):
            yield link
        target = link.readlink()
        if target.is_absolute():
            folder = Path(target.anchor)
        remaining += reversed([part for part in target.parts if part != target.anchor])


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
        raise error("MZ076.mzplan-cannot", why=why)


def pending_edit(directory: str) -> Diagnostic | None:
    """Return a diagnostic for a read-only command if the folder is ignored, or has an unfinished edit."""
    folder = Path(directory) / FOLDER
    if not folder.is_symlink() and not os.path.lexists(journal_path(directory)):
        return None
    if why := why_unused(directory):
        return Diagnostic.of("MZ076.mzplan-not", why=why)
    return Diagnostic.of("MZ076.edit-mzplan-alter")


def runtime_file(settings: ProjectSettings, instance: str, suffix: str) -> Path:
    """Return `.mzplan/<instance>.<suffix>`: the socket, log or last error of a runner.

    Runners of states with different variables have different files: a message for one runner, which may have
    secret values, must not reach another one.
    """
    name = f"{instance}-{settings.variant}" if settings.variant else instance
    return Path(settings.directory).resolve() / FOLDER / f"{name}.{suffix}"
