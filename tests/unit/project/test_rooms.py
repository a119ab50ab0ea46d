"""A room of features can be left out: the core neither imports it nor breaks without it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LEFT_OUT = ("ddl", "snapshot")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project without two rooms: their folders, and their lines in cli.main."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("mzplan", "schemas", "tests", "examples"):
        # What examples have been run with may be large.
        ignored = ("__pycache__", ".mzplan", *(["warehouse"] if name == "examples" else []))
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns(*ignored))
    shutil.copy(ROOT / "pyproject.toml", folder)
    commands = folder / "mzplan" / "cli" / "main.py"
    for room in LEFT_OUT:
        shutil.rmtree(folder / "mzplan" / "features" / room)
        line = rf'\n    "\w+": "features\.{room}\.command",'
        left, lines = re.subn(line, "", commands.read_text(encoding="utf-8"))
        assert lines == 1
        commands.write_text(left, encoding="utf-8")
    return folder


def _run(folder: Path, *arguments: str) -> str:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(folder), "PATH": path}
    done = subprocess.run(arguments, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_what_is_left_is_whole(copy: Path) -> None:
    _run(copy, "ruff", "check", "--no-cache", "mzplan")
    _run(copy, "lint-imports", "--no-cache")


def test_the_core_does_not_miss_them(copy: Path) -> None:
    shown = _run(copy, sys.executable, "-m", "mzplan", "--help")
    assert not re.search(rf"^  ({'|'.join(LEFT_OUT)}) ", shown, flags=re.MULTILINE)
    assert re.search(r"^  plan ", shown, flags=re.MULTILINE)
    _run(copy, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/cases/test_cases.py")
