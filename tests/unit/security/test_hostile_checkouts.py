"""In a hostile checkout, no command shows or changes anything outside the project's folder.

The commands come from the command line itself, so a new command is tested, too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from mzplan.cli.main import cli
from tests.unit.cli_runs import apply, mzplan, write
from tests.unit.security.test_security_checkout import SET, everything, put_journal

SECRET = "machine example.org login me password hunter2"
SERVERS = {"run", "ui"}  # They serve until somebody stops them.
ARGUMENTS = {
    "alter": [SET],
    "pause": ["source.orders"],
    "resume": ["source.orders"],
    "restart": ["source.orders"],
    "completion": ["bash"],
    "append": ["source.orders", "--file", "rows.jsonl"],
    "expire": ["source.orders", "--before", "1"],
    "state mv": ["source.orders", "source.sales"],
}


def commands(command: click.Command, *path: str) -> Iterator[list[str]]:
    """Yield the arguments of each command, with a value for each required argument."""
    name = " ".join(path)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for one in command.list_commands(context):
            found = command.get_command(context, one)
            assert found is not None
            yield from commands(found, *path, one)
    elif name not in SERVERS:
        required = [p for p in command.params if isinstance(p, click.Argument) and p.required]
        values = ["1" if isinstance(p.type, click.IntRange) else "source.orders" for p in required]
        options = {option for parameter in command.params for option in parameter.opts}
        approved = ["--auto-approve"] if "--auto-approve" in options else []
        waiting = ["--wait", "0s"] if "--wait" in options else []
        yield [*path, *ARGUMENTS.get(name, values), *approved, *waiting]


def yaml_files(folder: Path, outside: Path) -> None:
    """Plant links, a pipe and a device among the project's files."""
    targets = {"git.yaml": ".git/config", "key.yaml": "keys/token", "hidden.yaml": ".hidden.yaml"}
    for target in targets.values():
        (folder / target).parent.mkdir(exist_ok=True)
        (folder / target).write_text(SECRET)
    (folder / "deep").mkdir()
    out = {"out.yaml": outside / "x.yaml", "deep/out.yml": outside / "y.yaml", "linked": outside}
    devices = {"self.yaml": "/proc/self/environ", "zero.yaml": "/dev/zero"}
    for name, target in {**targets, **out, **devices}.items():
        (folder / name).symlink_to(target)
    os.mkfifo(folder / "pipe.yaml")


def settings_link(folder: Path, outside: Path) -> None:
    (folder / "mzplan.yaml").unlink()
    (folder / "mzplan.yaml").symlink_to(os.path.relpath(outside / "x.yaml", folder))


def settings_pipe(folder: Path, outside: Path) -> None:
    (folder / "mzplan.yaml").unlink()
    os.mkfifo(folder / "mzplan.yaml")


def journal_pipe(folder: Path, outside: Path) -> None:
    os.mkfifo(folder / ".mzplan" / "alter.json")


def journal_device(folder: Path, outside: Path) -> None:
    (folder / ".mzplan" / "alter.json").symlink_to("/dev/zero")


def journal_outside(folder: Path, outside: Path) -> None:
    put_journal(folder, f"../{outside.name}/x.yaml", "connections: {}\n")


def folder_link(folder: Path, outside: Path) -> None:
    put_journal(folder)
    (folder / ".mzplan").rename(outside / "theirs")
    (folder / ".mzplan").symlink_to(outside / "theirs")


NOT_READ = (
    "out.yaml",
    "deep/out.yml",
    "the folder linked",
    "git.yaml",
    "key.yaml",
    "hidden.yaml",
    "self.yaml",
)
PLANTS: dict[Callable[[Path, Path], None], tuple[int, list[str]]] = {
    yaml_files: (1, [f"Can't read {name}" for name in (*NOT_READ, "zero.yaml", "pipe.yaml")]),
    settings_link: (1, ["Can't read mzplan.yaml", "leads out"]),
    settings_pipe: (1, ["Can't read mzplan.yaml", "pipe"]),
    journal_pipe: (1, ["MZ076"]),
    journal_device: (1, ["MZ076"]),
    journal_outside: (1, ["MZ076", "is not a YAML file of this project"]),
    folder_link: (0, ["warning: .mzplan is not used"]),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_no_command_shows_or_changes_anything_outside_a_hostile_checkout(
    plant: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    folder, outside, kept = (tmp_path / name for name in ("project", "outside", "kept"))
    apply(write(folder))
    (folder / "rows.jsonl").write_text('{"id": 1}\n')
    (folder / ".mzplan").mkdir(exist_ok=True)
    shutil.copytree(folder, kept)
    tested = list(commands(cli))
    assert ["validate"] in tested
    for command in tested:
        outside.mkdir()
        for name in ("x.yaml", "y.yaml"):
            (outside / name).write_text(f"{SECRET}: [\n")
        plant(folder, outside)
        before = everything(outside)
        ran = mzplan(folder, *command)
        assert everything(outside) == before, command
        assert not any(word in ran.out + ran.err for word in ("hunter2", "login", "PATH=")), command
        if command == ["validate"]:
            code, words = PLANTS[plant]
            missing = [word for word in words if word not in ran.err]
            assert (ran.code, missing) == (code, []), ran
        assert ran.code != 0 or command[0] != "apply", ran
        shutil.rmtree(folder)
        shutil.rmtree(outside)
        shutil.copytree(kept, folder)
