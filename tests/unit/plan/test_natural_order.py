"""Every output sorts names by the values of their numbers: s2 before s10."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.unit.cli_runs import apply, mzplan, write

NUMBERED = [f"s{number}" for number in range(1, 13)]
SOURCES = "sources:\n" + "".join(
    f"  {name}: {{connection: k, topic: t, format: {{type: json, schema: 'id BIGINT'}}}}\n"
    for name in random.Random(7).sample(NUMBERED, len(NUMBERED))
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve committed sources on a dry instance, declared in random order."""
    made = write(tmp_path_factory.mktemp("numbered"))
    (made / "more.yaml").write_text(SOURCES)
    (made / "first.json").write_text(mzplan(made, "plan", "--json").out)
    apply(made)
    return made


@pytest.mark.parametrize(
    "arguments",
    [
        "status",
        "status --json",
        "state list",
        "show",
        "graph",
        "graph --impact connection.k",
        "plan --replace source.s10 --replace source.s9 --target source.s2 --target source.s10",
        "history show 1 --json",
    ],
)
def test_every_list_counts(folder: Path, arguments: str) -> None:
    ran = mzplan(folder, *arguments.split())
    assert ran.code == 0, ran
    shown = [*dict.fromkeys(re.findall(r"\bsource[._](s\d+)\b", ran.out))]
    assert shown == [name for name in NUMBERED if name in shown]


def test_a_plan_counts(folder: Path) -> None:
    shown = re.findall(r'"address": "source\.(s\d+)"', (folder / "first.json").read_text())
    assert shown == NUMBERED
