"""tools/prerequisites.sh: what a fresh machine lacks, all of it at once, with the line that installs it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "tools" / "prerequisites.sh"
PROGRAMS = {
    "java": "echo 'openjdk version \"17.0.9\"' >&2",
    **dict.fromkeys(("chromium", "npm", "git", "sshd", "prometheus", "promtool"), ""),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A folder that is all of the PATH: with what the script itself is written in, and a Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sed", "head"):
        (folder / name).symlink_to(str(shutil.which(name)))
    program(folder, "python3", f'exec {sys.executable} "$@"')
    return folder


def program(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def run(
    path: Path, *arguments: str, system: str = "ID=debian\nVERSION_ID=12\n", **more: str
) -> tuple[int, str]:
    release = path.parent / "os-release"
    release.write_text(system)
    environment = {"PATH": str(path), "SBIN": "/nowhere", "OS_RELEASE": str(release), **more}
    done = subprocess.run(["/bin/sh", SCRIPT, *arguments], capture_output=True, text=True, env=environment)
    return done.returncode, done.stdout + done.stderr


def test_all_that_is_missing_is_said_at_once(path: Path) -> None:
    code, said = run(path, "nightly")
    assert code == 1
    for what in ("Java 17 or 21", "a browser, chromium", "npm", "git", "sshd", "prometheus and promtool"):
        assert f"  - {what}" in said
    assert "sudo apt-get install openjdk-17-jre-headless chromium git npm openssh-server prometheus\n" in said
    assert "brew install openjdk@17 chromium git node prometheus\n" in said


def test_the_packages_are_those_of_the_system(path: Path) -> None:
    def packages(system: str) -> tuple[int, str]:
        return run(path, "nightly", "--packages", system=system)

    assert packages("ID=debian\nVERSION_ID=13\n") == (
        0,
        "openjdk-21-jre-headless chromium git npm openssh-server prometheus\n",
    )
    assert packages('ID=ubuntu\nVERSION_ID="24.04"\n') == (
        0,
        "openjdk-17-jre-headless chromium-browser git npm openssh-server prometheus\n",
    )


def test_nothing_is_missing(path: Path) -> None:
    for name, text in PROGRAMS.items():
        program(path, name, text)
    assert run(path, "nightly") == (0, "")
    assert run(path, "nightly", "--packages") == (0, "\n")


def test_running_needs_java_alone(path: Path) -> None:
    program(path, "java", PROGRAMS["java"])
    assert run(path, "run") == (0, "")
    program(path, "java", "echo 'java version \"1.8.0_392\"' >&2")
    code, said = run(path, "run")
    assert code == 1
    assert "mzplan needs what is missing here" in said and "'java' is Java 8;" in said
    assert "npm" not in said


def test_java_home_names_another(path: Path, tmp_path: Path) -> None:
    (tmp_path / "jdk" / "bin").mkdir(parents=True)
    program(tmp_path / "jdk" / "bin", "java", PROGRAMS["java"])
    assert run(path, "run", JAVA_HOME=str(tmp_path / "jdk")) == (0, "")


def test_sshd_may_be_where_only_root_looks(path: Path, tmp_path: Path) -> None:
    for name, text in PROGRAMS.items():
        folder = tmp_path / "sbin" if name == "sshd" else path
        folder.mkdir(exist_ok=True)
        program(folder, name, text)
    assert run(path, "nightly", SBIN=str(tmp_path / "sbin")) == (0, "")


def test_prometheus_without_promtool_does_not_do(path: Path) -> None:
    for name in PROGRAMS.keys() - {"promtool"}:
        program(path, name, PROGRAMS[name])
    assert run(path, "nightly", "--packages") == (0, "prometheus\n")


def test_python(path: Path) -> None:
    program(path, "java", PROGRAMS["java"])
    program(path, "old", 'case "$2" in "") ;; *) [ "$1" = --version ] && echo Python 3.9.2; exit 1;; esac')
    code, said = run(path, "run", PYTHON="old")
    assert code == 1 and "make PYTHON=python3.12" in said and "apt-get" not in said
    code, said = run(path, "run", PYTHON="none")
    assert code == 1 and "there is no 'none'" in said and "apt-get install python3 python3-venv" in said
