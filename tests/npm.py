"""Packages of npm that tests use, as the lock files beside them say."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def skip_without(missing: str | None) -> None:
    """Skip the test on a machine that is missing something; in CI, the test runs and is an error."""
    if missing and not os.environ.get("CI"):
        pytest.skip(f"{missing}; in CI this is an error")


def installed(locked: Path, folder: Path, what: str) -> Path:
    """Install what the lock file of one folder says into another; returns its node_modules. Raises
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
