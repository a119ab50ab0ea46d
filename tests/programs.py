"""Programs that no package of Python brings. A test that needs one is marked `programs`, and runs in
`make nightly` or `make smoke`. No other test finds them, so `make test` passes on a machine without them."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

FOLDERS = {"browser", "editors"}
"""Folders of tests that all need one."""

HIDDEN = {
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
    *("git", "node", "npm", "openssl", "prometheus", "promtool", "ssh", "ssh-keygen", "sshd"),
}


def set_path(item: pytest.Item) -> None:
    """What the test, and the servers that start for it, find on the PATH."""
    whole, bare = _paths()
    os.environ["PATH"] = whole if item.get_closest_marker("programs") else bare


@cache
def _paths() -> tuple[str, str]:
    """The PATH as it was given, and the same without those programs: links to what is beside them."""
    whole = os.environ["PATH"]
    return whole, os.pathsep.join(map(_without, whole.split(os.pathsep)))


@cache
def _without(folder: str) -> str:
    if not any((Path(folder) / name).exists() for name in HIDDEN):
        return folder
    links = tempfile.TemporaryDirectory(prefix="mzplan-path-")
    atexit.register(links.cleanup)
    Path(links.name).chmod(0o755)  # servers run as another user
    for program in Path(folder).iterdir():
        if program.name not in HIDDEN:
            (Path(links.name) / program.name).symlink_to(program)
    return links.name


def skip_without(missing: str | None) -> None:
    """Skip the test on a machine that is missing something; in CI, the test runs and is an error."""
    if missing and not os.environ.get("CI"):
        pytest.skip(f"{missing}; in CI this is an error")


def npm_modules(locked: Path, folder: Path, what: str) -> Path:
    """Install by npm what the lock file of one folder says into another; return its node_modules. Raises
    RuntimeError that names `what`."""
    for name in ("package.json", "package-lock.json"):
        shutil.copy(locked / name, folder / name)
    done = subprocess.run(
        ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"npm can't install {what}:\n{done.stderr[-2000:]}")
    return folder / "node_modules"
