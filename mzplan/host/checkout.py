"""Whether a file came with a checkout. If so, its repository's authors wrote it, and this user didn't."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

_GIT_WAIT = 10.0  # seconds
# A repository's configuration must run nothing: no file monitor, no bare repository among its files.
_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "safe.bareRepository=explicit")

_MOST_LINKS = 40  # in one path; Linux has the same limit
_NOT_ASKED = (".hg", ".jj", ".svn")  # work trees whose files mzplan doesn't look up


def may_be_foreign(folder: Path) -> bool:
    """Whether others may have written the files in a folder.

    That is so in a repository's work tree and in a CI job. Any other folder is the user's own.
    """
    return bool(os.environ.get("CI")) or _is_below(folder.resolve(), ".git", *_NOT_ASKED)


def _is_below(real: Path, *names: str) -> bool:
    """Whether the folder or one of its parents has an entry with one of these names."""
    return any(os.path.lexists(parent / name) for parent in (real, *real.parents) for name in names)


def is_tracked(folder: Path, name: str) -> bool | None:
    """Whether git's index has a file or folder of this name, or files in it; None if git can't answer."""
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


def why_not_own(path: Path) -> str:
    """Return why somebody else may have written a file, in a few words; "" if it is this user's own."""
    real = path.resolve()
    try:
        owner = real.stat().st_uid
    except OSError as problem:
        return f"it can't be looked at ({problem.strerror})"
    if owner != os.geteuid():
        return "it belongs to another user"
    if _is_below(real, *_NOT_ASKED):
        return "it is in a work tree of hg, jj or svn, which are not asked whether the repository brings it"
    tracked = is_tracked(real.parent, real.name)
    if tracked is None:
        return "git can't be asked whether the repository brings it"
    return "git tracks it, so the repository's authors have written it" if tracked else ""


def links_on(path: Path) -> Iterator[Path]:
    """Yield the links on a path that a repository may have brought.

    Git tracks these links or can't answer, or they are in the work tree of another tool.
    """
    left, at = list(reversed(path.absolute().parts[1:])), Path(path.absolute().anchor)
    for _ in range(_MOST_LINKS):
        while left and not (at / left[-1]).is_symlink():
            part = left.pop()
            at = at.parent if part == ".." else at / part
        if not left:
            return
        link = at / left.pop()
        if is_tracked(at, link.name) is not False or _is_below(at.resolve(), *_NOT_ASKED):
            yield link
        target = link.readlink()
        if target.is_absolute():
            at = Path(target.anchor)
        left += reversed([part for part in target.parts if part != target.anchor])
