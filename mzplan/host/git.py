"""What git says of a checkout: its commit, and whether the files are as that commit has them.

Whoever made the checkout must not run anything here: a file monitor, a filter, a pager, a helper of a
remote. So git works in an empty repository of ours, which borrows the objects and the index of the real one:
hooks and configuration of the checkout, and of the machine, are not there. Of the real one git is asked only
where HEAD is, and which harmless settings it has. What git prints is untrusted text.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mzplan.model.history import GitRevision
from mzplan.model.words import one_line

WAIT = 3.0  # seconds that git has for all of it
_MOST = 1 << 16  # bytes that are read of a small file
_HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_NOTHING_RUNS = ("--no-pager", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
# How files lie on this disk; none of them runs anything.
_HARMLESS = re.compile(
    r"core\.(filemode|symlinks|ignorecase|precomposeunicode|autocrlf|eol|sparsecheckout)"
    r"|extensions\.objectformat"
)


def find_revision(directory: str, own: Iterable[str] = ()) -> GitRevision | None:
    """The commit that a folder is checked out from; None where it is in no checkout, or git can't say. `own`:
    paths whose changes don't count."""
    top = _checkout(Path(directory).resolve())
    git = _program() if top is not None else None
    if git is None or top is None:
        return None
    asking = _Asking(git, time.monotonic() + WAIT)
    try:
        real = _git_directory(top)
        commit = asking.text(f"--git-dir={real}", "rev-parse", "--verify", "--quiet", "HEAD").strip()
        if not _HASH.fullmatch(commit):
            return None
        with tempfile.TemporaryDirectory(prefix="mzplan-git-") as folder:
            borrowed = _Borrowed.of(real, Path(folder), asking)
            subject = borrowed.ask("log", "-1", "--no-show-signature", "--format=%s", commit, "--")
            return GitRevision(
                commit=commit, clean=_is_clean(borrowed, top, own), subject=one_line(subject.strip())
            )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _program() -> str | None:
    """The path of git; None if there is none, or if its path depends on the working directory."""
    path = shutil.which("git")
    return path if path is not None and Path(path).is_absolute() else None


def _checkout(directory: Path) -> Path | None:
    return next(
        (folder for folder in (directory, *directory.parents) if os.path.lexists(folder / ".git")), None
    )


def _git_directory(top: Path) -> Path:
    """`.git`, or the folder that a file of this name points to (a linked work tree, a submodule)."""
    dot_git = top / ".git"
    if not dot_git.is_file():
        return dot_git
    name = _small(dot_git).removeprefix("gitdir:").strip()
    return (top / name).resolve()


def _small(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MOST).decode(errors="replace")


@dataclass(frozen=True)
class _Asking:
    """git, and until when it may take (monotonic seconds)."""

    git: str
    until: float

    def text(self, *arguments: str, **variables: str) -> str:
        """What git prints. Raises SubprocessError where it fails, or does not end in time."""
        kept = {n: v for n, v in os.environ.items() if not n.startswith("GIT_")}
        environment = {
            **kept,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ALLOW_PROTOCOL": "none",  # of a partial clone nothing is fetched, by whatever helper
            "GIT_TERMINAL_PROMPT": "0",
            "LC_ALL": "C.UTF-8",
            **variables,
        }
        ran = subprocess.run(
            (self.git, *_NOTHING_RUNS, *arguments),
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=max(0.0, self.until - time.monotonic()),
            check=True,
        )
        return ran.stdout.decode(errors="replace")


@dataclass(frozen=True)
class _Borrowed:
    """A repository of ours on the objects and the index of another one."""

    asking: _Asking
    folder: Path
    variables: dict[str, str]

    @classmethod
    def of(cls, real: Path, folder: Path, asking: _Asking) -> _Borrowed:
        common = real / _small(real / "commondir").strip() if (real / "commondir").is_file() else real
        for name in ("refs", "objects", "info"):
            (folder / name).mkdir()
        if (common / "info" / "exclude").is_file():
            (folder / "info" / "exclude").write_text(_small(common / "info" / "exclude"), encoding="utf-8")
        head = asking.text(f"--git-dir={real}", "rev-parse", "--verify", "HEAD")
        (folder / "HEAD").write_text(head, encoding="ascii")
        (folder / "config").write_text(_settings(common / "config", asking), encoding="utf-8")
        places = {"GIT_OBJECT_DIRECTORY": common / "objects", "GIT_INDEX_FILE": real / "index"}
        return cls(asking, folder, {name: str(place) for name, place in places.items()})

    def ask(self, *arguments: str, top: Path | None = None) -> str:
        tree = () if top is None else ("-C", str(top), f"--work-tree={top}")
        return self.asking.text(*tree, f"--git-dir={self.folder}", *arguments, **self.variables)


def _settings(config: Path, asking: _Asking) -> str:
    """The settings of a repository that say how its files lie on the disk, as text of a configuration."""
    listed = asking.text("config", "--file", str(config), "--no-includes", "--null", "--list")
    entries = [entry.partition("\n") for entry in listed.split("\0")]
    lines = ["[core]\n\tbare = false\n\trepositoryformatversion = 1\n"]
    for name, _, value in entries:
        if _HARMLESS.fullmatch(name) and value.isalnum():
            section, _, key = name.partition(".")
            lines.append(f"[{section}]\n\t{key} = {value}\n")
    return "".join(lines)


def _is_clean(borrowed: _Borrowed, top: Path, own: Iterable[str]) -> bool | None:
    """None where git can't say so in time. What a submodule has inside is not looked at: that would be by its
    own configuration."""
    inside = [str(path.relative_to(top)) for path in map(Path, own) if path.is_relative_to(top)]
    without = [f":(exclude,top,literal){name}" for name in inside if name != "."]
    try:
        status = borrowed.ask(
            "status",
            "--porcelain",
            "--untracked-files=normal",
            "--ignore-submodules=dirty",
            "--",
            ":(top)",
            *without,
            top=top,
        )
    except subprocess.SubprocessError:
        return None
    return not status.strip()
