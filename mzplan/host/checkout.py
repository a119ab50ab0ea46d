"""Whether a file came with a checkout: what its repository's authors have written is not this user's word."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

_GIT_WAIT = 10.0  # seconds
# Nothing that a repository configures may run: neither its file monitor, nor a bare one among its files.
_GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "safe.bareRepository=explicit")

_MOST_LINKS = 40  # of one path, as Linux has it
_NOT_ASKED = (".hg", ".jj", ".svn")  # of work trees whose tool is not asked what is in them


def may_be_foreign(folder: Path) -> bool:
    """Whether others may have written the files in a folder: it is in a repository's work tree, or a CI job
    runs here. A folder of neither kind is its user's own."""
    return bool(os.environ.get("CI")) or _is_below(folder.resolve(), ".git", *_NOT_ASKED)


def _is_below(real: Path, *names: str) -> bool:
    """Whether the folder, or one above it, has one of these."""
    return any(os.path.lexists(parent / name) for parent in (real, *real.parents) for name in names)


def is_tracked(folder: Path, name: str) -> bool | None:
    """Whether git has a file or folder of this name, or files in it, in its index; None where it can't be
    asked."""
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
    """Why a file may be somebody else's word, in a few words; "" where it is this user's own."""
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
    """The links that a path goes through, if a repository may have brought them: git tracks them, or can't be
    asked, or they are in a work tree of another tool."""
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
