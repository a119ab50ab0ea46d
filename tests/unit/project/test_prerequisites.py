"""tools/prerequisites.sh lists everything that a machine is missing, with the command that installs it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "tools" / "prerequisites.sh"
JAVA = {"java": "echo 'openjdk version \"17.0.9\"' >&2"}
OLD_PYTHON = {"old": 'case "$2" in "") ;; *) [ "$1" = --version ] && echo Python 3.9.2; exit 1;; esac'}


def install(folder: Path, programs: dict[str, str]) -> None:
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the only folder of the PATH, with Python and the programs that the script uses."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sed", "head"):
        (folder / name).symlink_to(str(shutil.which(name)))
    install(folder, {"python3": f'exec {sys.executable} "$@"'})
    return folder


def run(path: Path, *arguments: str, **more: str) -> tuple[int, str]:
    release = path.parent / "os-release"
    release.write_text("ID=debian\nVERSION_ID=12\n")
    environment = {"PATH": str(path), "SBIN": "/nowhere", "OS_RELEASE": str(release), **more}
    done = subprocess.run(["/bin/sh", SCRIPT, *arguments], capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout + done.stderr


def test_everything_missing_is_listed_at_once(path: Path) -> None:
    code, listed = run(path, "nightly")
    assert code == 1
    for what in ("Java 17 or 21", "a browser, chromium", "npm", "git", "sshd", "prometheus and promtool"):
        assert f"  - {what}" in listed
    packages = "openjdk-17-jre-headless chromium git npm openssh-server prometheus"
    assert f"sudo apt-get install {packages}\n" in listed
    assert "brew install openjdk@17 chromium git node prometheus\n" in listed


@pytest.mark.parametrize(
    ("programs", "python", "says", "says_not"),
    [
        (JAVA, "", "", " "),
        ({"java": "echo 'java version \"1.8.0_392\"' >&2"}, "", "'java' is Java 8;", "npm"),
        ({**JAVA, **OLD_PYTHON}, "old", "make PYTHON=python3.12", "apt-get"),
        (JAVA, "none", "there is no 'none'", "npm"),
    ],
    ids=["enough", "old-java", "old-python", "no-python"],
)
def test_running_needs_only_python_and_java(
    path: Path, programs: dict[str, str], python: str, says: str, says_not: str
) -> None:
    install(path, programs)
    code, listed = run(path, "run", **({"PYTHON": python} if python else {}))
    assert code == bool(says) and says in listed and says_not not in listed
