"""The examples that `init --from` copies: inside the wheel, or beside the package in a checkout."""

from __future__ import annotations

import shutil
from pathlib import Path

from mzplan.model.diagnostics import ExitCode, error

_PACKAGED = Path(__file__).parent.parent / "_examples"
_CHECKOUT = Path(__file__).parent.parent.parent / "examples"
# What running an example leaves in its folder.
_LEFT = ("state", "warehouse", "lake", "__pycache__")


def examples() -> dict[str, str]:
    """The examples by name, with what each is about: the first line of its mzplan.yaml, a comment."""
    folder = _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT
    found = {}
    for file in sorted(folder.glob("*/mzplan.yaml")):
        with file.open(encoding="utf-8") as lines:
            first = lines.readline().strip()
        found[file.parent.name] = first.removeprefix("#").strip() if first.startswith("#") else ""
    return found


def example_folder(name: str) -> Path:
    """Where an example is. Raises MzplanError MZ070 (usage), listing them all, for an unknown one."""
    known = examples()
    if name in known:
        return (_PACKAGED if _PACKAGED.is_dir() else _CHECKOUT) / name
    listed = "\n".join(f"{each}: {about}" if about else each for each, about in known.items())
    raise error(
        "MZ070",
        f"There is no example {name!r}",
        f"There are:\n{listed}" if known else "This installation has none.",
        "name one of them: mzplan init --from EXAMPLE",
        exit_code=ExitCode.USAGE,
    )


def copy_example(name: str, to: Path) -> list[Path]:
    """Copy an example's files, without what running it has left there; returns what was written.

    The examples of a checkout keep their states together, in its folder `state`; a copy keeps its own.
    Nothing is overwritten: raises MzplanError MZ070 before the first file when one of them exists.
    """
    folder = example_folder(name)
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and _belongs(file, folder)]
    written = [to / file.relative_to(folder) for file in files]
    there = [path for path in written if path.exists()]
    if there:
        raise error(
            "MZ070",
            f"{there[0]} exists already",
            "An example overwrites nothing. Nothing was changed.",
            f"begin in another folder: mzplan -C FOLDER init --from {name}",
        )
    for file, path in zip(files, written, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        if file == folder / "mzplan.yaml":
            text = file.read_text(encoding="utf-8")
            path.write_text(text.replace(f"../../state/{name}", "state"), encoding="utf-8")
        else:
            shutil.copyfile(file, path)
    return written


def _belongs(file: Path, folder: Path) -> bool:
    parts = file.relative_to(folder).parts
    return not any(part.startswith(".") or part in _LEFT for part in parts)
