"""Programs that aren't in a Python package. A test that needs one is marked `programs`.

These tests run in `make nightly` or `make smoke`. The other tests run with a PATH without these programs, so
`make test` passes on a machine that doesn't have them.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

FOLDERS = {"browser", "editors"}  # Every test in them needs such a program.
HIDDEN = {
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"),
    *("git", "node", "npm", "openssl", "prometheus", "promtool", "ssh", "ssh-keygen", "sshd"),
}


def set_path(item: pytest.Item) -> None:
    """Set the PATH of a test and of the servers that start for it."""
    whole, bare = _paths()
    os.environ["PATH"] = whole if item.get_closest_marker("programs") else bare


@cache
def _paths() -> tuple[str, str]:
    """Return the PATH as it was given, and a PATH without the hidden programs."""
    whole = os.environ["PATH"]
    return whole, os.pathsep.join(map(_without, whole.split(os.pathsep)))


@cache
def _without(folder: str) -> str:
    if not any((Path(folder) / name).exists() for name in HIDDEN):
        return folder
    links = tempfile.TemporaryDirectory(prefix="mzplan-path-")
    atexit.register(links.cleanup)
    Path(links.name).chmod(0o755)  # Servers run as another user.
    for program in Path(folder).iterdir():
        if program.name not in HIDDEN:
            (Path(links.name) / program.name).symlink_to(program)
    return links.name


def skip_without(missing: str | None) -> None:
    """Skip the test on a machine where something is missing. In CI, the test runs and is an error."""
    if missing and not os.environ.get("CI"):
        pytest.skip(f"{missing}; in CI this is an error")


def npm_modules(locked: Path, folder: Path, what: str) -> Path:
    """Install the packages of a folder's lock file into another folder, and return its node_modules.

    Raises RuntimeError, which names `what`.
    """
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
