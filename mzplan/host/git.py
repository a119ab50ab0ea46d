"""Asks git which commit is checked out, and whether the files match it.

The authors of a checkout must not be able to run anything on this machine: no file monitor, filter, pager or
remote helper. So git works in an empty repository that mzplan creates. It borrows the objects and the index
of the checkout's repository, but not its hooks and configuration. From the checkout's repository itself,
mzplan reads only HEAD and a few harmless settings. All output of git is untrusted text.

Also the author of a commit: the user, the host, and the person that a CI system names.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mzplan.host.processes import user
from mzplan.model.history import GitRevision
from mzplan.model.words import one_line

# The variable that identifies a CI system, our name for it, and its variable for the person who started the
# job. Forgejo and Gitea set GitHub's variables.
_CIS = (
    ("GITHUB_ACTIONS", "github", "GITHUB_ACTOR"),
    ("GITLAB_CI", "gitlab", "GITLAB_USER_LOGIN"),
    ("BUILDKITE", "buildkite", "BUILDKITE_BUILD_CREATOR"),
    ("CIRCLECI", "circleci", "CIRCLE_USERNAME"),
    ("TF_BUILD", "azure", "BUILD_REQUESTEDFOR"),
    ("JENKINS_URL", "jenkins", "BUILD_USER_ID"),
    ("BITBUCKET_BUILD_NUMBER", "bitbucket", "BITBUCKET_STEP_TRIGGERER_UUID"),
    ("DRONE", "drone", "DRONE_COMMIT_AUTHOR"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Author:
    """The author of a commit. `actor` is the person who started the CI job, if the CI system names one."""

    user: str
    host: str
    ci: str | None = None
    actor: str | None = None


def author(environment: Mapping[str, str] = os.environ) -> Author:
    """Return the author of the commits of this process. The text is safe to print."""
    ci, actor = next(
        ((name, environment.get(variable)) for mark, name, variable in _CIS if environment.get(mark)),
        (None, None),
    )
    return Author(
        user=one_line(user()),
        host=one_line(socket.gethostname()),
        ci=ci,
        actor=one_line(actor) if actor else None,
    )


TIMEOUT = 3.0  # seconds for all calls of git together
_MAX_BYTES = 1 << 16  # bytes that are read from a small file
# A remote: https://login@host/path.git, ssh://git@host:22/path.git, or git@host:path.git.
_REMOTE = re.compile(
    r"(?:(?:https?|ssh|git)://(?:[^@/\s]*@)?([\w.-]+)(:\d+)?/|(?:[\w.-]+@)([\w.-]+):/?)([\w./~-]+?)(?:\.git)?/?"
)
_HASH = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_SAFE_OPTIONS = ("--no-pager", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
# Settings about the files on the disk. No setting among them can run anything.
_HARMLESS_SETTINGS = re.compile(
    r"core\.(filemode|symlinks|ignorecase|precomposeunicode|autocrlf|eol|sparsecheckout)"
    r"|extensions\.objectformat"
)


def find_revision(directory: str, ignored: Iterable[str] = ()) -> GitRevision | None:
    """Return the commit that a folder was checked out from; None without a checkout, or if git can't answer.

    `ignored` are paths whose changes don't count.
    """
    top = _checkout(Path(directory).resolve())
    program = _program() if top is not None else None
    if program is None or top is None:
        return None
    git = _Git(program, time.monotonic() + TIMEOUT)
    try:
        real = _git_directory(top)
        commit = git.text(f"--git-dir={real}", "rev-parse", "--verify", "--quiet", "HEAD").strip()
        if not _HASH.fullmatch(commit):
            return None
        with tempfile.TemporaryDirectory(prefix="mzplan-git-") as folder:
            borrowed = _BorrowedRepository.of(real, Path(folder), git)
            subject = borrowed.ask("log", "-1", "--no-show-signature", "--format=%s", commit, "--")
            return GitRevision(
                commit=commit,
                clean=_is_clean(borrowed, top, ignored),
                subject=one_line(subject.strip()),
                repository=_repository(real, git),
            )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _repository(real: Path, git: _Git) -> str:
    """Return the web address of the remote `origin`; "" if there is none."""
    config = _common(real) / "config"
    try:
        remote = git.text("config", "--file", str(config), "--no-includes", "--get", "remote.origin.url")
    except subprocess.SubprocessError:
        return ""
    return web_address(remote.strip())


def web_address(remote: str) -> str:
    """Return the https address of a remote, without a login; "" for a remote that isn't on a server."""
    parts = _REMOTE.fullmatch(remote)
    if parts is None:
        return ""
    host, port, other_host, path = parts.groups()
    shown_port = port if port and remote.startswith("http") else ""
    return f"https://{host or other_host}{shown_port}/{path}"


def _program() -> str | None:
    """Return the path of git; None without git, or if its path depends on the working directory."""
    path = shutil.which("git")
    return path if path is not None and Path(path).is_absolute() else None


def _checkout(directory: Path) -> Path | None:
    return next(
        (folder for folder in (directory, *directory.parents) if os.path.lexists(folder / ".git")), None
    )


def _git_directory(top: Path) -> Path:
    """Return `.git`, or the folder that a `.git` file points to (a linked work tree, a submodule)."""
    dot_git = top / ".git"
    if not dot_git.is_file():
        return dot_git
    name = _read_small(dot_git).removeprefix("gitdir:").strip()
    return (top / name).resolve()


def _common(real: Path) -> Path:
    """Return the git directory that all work trees share."""
    return real / _read_small(real / "commondir").strip() if (real / "commondir").is_file() else real


def _read_small(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_MAX_BYTES).decode(errors="replace")


@dataclass(frozen=True)
class _Git:
    """The git program and its deadline in monotonic seconds."""

    program: str
    deadline: float

    def text(self, *arguments: str, **variables: str) -> str:
        """Return git's output. Raises SubprocessError if git fails or exceeds the deadline."""
        inherited = {n: v for n, v in os.environ.items() if not n.startswith("GIT_")}
        environment = {
            **inherited,
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ALLOW_PROTOCOL": "none",  # a partial clone must not fetch objects through a helper
            "GIT_TERMINAL_PROMPT": "0",
            "LC_ALL": "C.UTF-8",
            **variables,
        }
        ran = subprocess.run(
            (self.program, *_SAFE_OPTIONS, *arguments),
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=max(0.0, self.deadline - time.monotonic()),
            check=True,
        )
        return ran.stdout.decode(errors="replace")


@dataclass(frozen=True)
class _BorrowedRepository:
    """A repository of mzplan that uses the objects and the index of another repository."""

    git: _Git
    folder: Path
    variables: dict[str, str]

    @classmethod
    def of(cls, real: Path, folder: Path, git: _Git) -> _BorrowedRepository:
        common = _common(real)
        for name in ("refs", "objects", "info"):
            (folder / name).mkdir()
        if (common / "info" / "exclude").is_file():
            (folder / "info" / "exclude").write_text(
                _read_small(common / "info" / "exclude"), encoding="utf-8"
            )
        head = git.text(f"--git-dir={real}", "rev-parse", "--verify", "HEAD")
        (folder / "HEAD").write_text(head, encoding="ascii")
        (folder / "config").write_text(_settings(common / "config", git), encoding="utf-8")
        places = {"GIT_OBJECT_DIRECTORY": common / "objects", "GIT_INDEX_FILE": real / "index"}
        return cls(git, folder, {name: str(place) for name, place in places.items()})

    def ask(self, *arguments: str, top: Path | None = None) -> str:
        tree = () if top is None else ("-C", str(top), f"--work-tree={top}")
        return self.git.text(*tree, f"--git-dir={self.folder}", *arguments, **self.variables)


def _settings(config: Path, git: _Git) -> str:
    """Return a git configuration with a repository's settings about its files on the disk."""
    listed = git.text("config", "--file", str(config), "--no-includes", "--null", "--list")
    entries = [entry.partition("\n") for entry in listed.split("\0")]
    lines = ["[core]\n\tbare = false\n\trepositoryformatversion = 1\n"]
    for name, _, value in entries:
        if _HARMLESS_SETTINGS.fullmatch(name) and value.isalnum():
            section, _, key = name.partition(".")
            lines.append(f"[{section}]\n\t{key} = {value}\n")
    return "".join(lines)


def _is_clean(borrowed: _BorrowedRepository, top: Path, ignored: Iterable[str]) -> bool | None:
    """Return whether the files match the commit; None if git can't answer in time.

    Changes inside submodules don't count, because git would read the submodule's configuration to find them.
    """
    inside = [str(path.relative_to(top)) for path in map(Path, ignored) if path.is_relative_to(top)]
    exclusions = [f":(exclude,top,literal){name}" for name in inside if name != "."]
    try:
        status = borrowed.ask(
            "status",
            "--porcelain",
            "--untracked-files=normal",
            "--ignore-submodules=dirty",
            "--",
            ":(top)",
            *exclusions,
            top=top,
        )
    except subprocess.SubprocessError:
        return None
    return not status.strip()
