"""Mutated files, with fixed seeds: what a project's authors wrote, and what a store holds. Each ends in a
clear answer, and what only looks changes nothing."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.faults.campaigns import SIZE
from tests.unit.cli_runs import Ran, apply, mzplan, write

ROOT = Path(__file__).parents[2]
PIECES = (
    b"\0",
    b"\xff",
    b"{",
    b"}",
    b"[",
    b"]",
    b": ",
    b"- ",
    b"&a ",
    b"*a",
    b"!!int ",
    b"'",
    b'"',
    b"\t",
    b"-1",
)
PIECES += (
    b"-1",
    b"null",
    b"1e999",
    b"9" * 400,
    b"${env:A}",
    b"${var.a}",
    b"x" * 5000,
    "\u202e\U0001f600".encode(),
)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """One to three changes: a piece put in, bytes left out, doubled or turned, a line moved."""
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(data) + 1)
        end = min(len(data), at + chance.choice((1, 1, 7, 80, 2000)))
        match chance.randrange(5):
            case 0:
                data = data[:at] + chance.choice(PIECES) + data[at:]
            case 1:
                data = data[:at] + data[end:]
            case 2:
                data = data[:end] + data[at:end] + data[end:]
            case 3:
                data = (
                    data[:at]
                    + bytes(byte ^ (1 << chance.randrange(8)) for byte in data[at:end][:3])
                    + data[at:][3:]
                )
            case _:
                lines = data.splitlines(keepends=True)
                chance.shuffle(lines)
                data = b"".join(lines[: chance.randint(0, len(lines))]) if len(lines) < 40 else data[:at]
    return data


def is_clear(ran: Ran) -> None:
    assert "Traceback" not in ran.err and "MZ079" not in ran.out + ran.err, ran
    assert ran.code in (0, 1, 5, 6, 7, 8, 64), ran


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("example", ["shop", "cdc", "local"])
def test_mutated_files_of_a_project(tmp_path: Path, example: str) -> None:
    chance = random.Random(11)
    source = ROOT / "examples" / example
    texts = {path.name: path.read_bytes() for path in source.glob("*.yaml")}
    assert texts
    for _ in range(150 * SIZE):
        name = chance.choice(sorted(texts))
        for other, data in texts.items():
            (tmp_path / other).write_bytes(mutated(data, chance) if other == name else data)
        before = everything(tmp_path)
        is_clear(mzplan(tmp_path, chance.choice(("validate", "plan", "graph")), "--no-color"))
        assert everything(tmp_path) == before


def test_mutated_files_of_a_store(tmp_path: Path) -> None:
    chance = random.Random(12)
    whole = tmp_path / "whole"
    whole.mkdir()
    write(whole, broker="a")
    apply(whole)
    assert mzplan(whole, "pause", "source.orders").code == 0
    assert mzplan(whole, "plan", "--out", str(whole / "saved.plan")).code == 0
    stored = [path for path in everything(whole) if path.startswith("state/") or path == "saved.plan"]
    commands = (
        ("plan",),
        ("status",),
        ("drift",),
        ("state", "list"),
        ("state", "pull"),
    )
    for number in range(8 * SIZE):
        for name in stored:
            folder = tmp_path / f"{number}"
            shutil.copytree(whole, folder)
            (folder / name).write_bytes(mutated((folder / name).read_bytes(), chance))
            before = everything(folder)
            look = ("show", str(folder / name)) if name == "saved.plan" else chance.choice(commands)
            is_clear(mzplan(folder, *look))
            assert everything(folder) == before, name
            is_clear(mzplan(folder, "apply", "--auto-approve", "--wait", "1s"))
            shutil.rmtree(folder)
