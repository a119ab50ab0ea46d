"""Whether a file came with a checkout. If it did, the repository's authors wrote it, not this user."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

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
