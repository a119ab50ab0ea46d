"""Every output sorts names by the values of their numbers: s2 before s10."""

from __future__ import annotations

import random
import re
from pathlib import Path

from tests.unit.cli_runs import apply, mzplan, write

NUMBERED = [f"s{number}" for number in range(1, 13)]
SOURCES = "sources:\n" + "".join(
    f"  {name}: {{connection: k, topic: t, format: {{type: json, schema: 'id BIGINT'}}}}\n"
    for name in random.Random(7).sample(NUMBERED, len(NUMBERED))
)


COMMANDS = (
    "status",
    "status --json",
    "state list",
    "show",
    "graph",
    "graph --impact connection.k",
    "plan --replace source.s10 --replace source.s9 --target source.s2 --target source.s10",
    "history show 1 --json",
)


def test_every_list_counts(tmp_path: Path) -> None:
    """Twelve sources on a dry instance, declared in random order."""
    folder = write(tmp_path)
    (folder / "more.yaml").write_text(SOURCES)
    first = mzplan(folder, "plan", "--json").out
    assert re.findall(r'"address": "source\.(s\d+)"', first) == NUMBERED
    apply(folder)
    for command in COMMANDS:
        ran = mzplan(folder, *command.split())
        assert ran.code == 0, ran
        shown = [*dict.fromkeys(re.findall(r"\bsource[._](s\d+)\b", ran.out))]
        assert shown and shown == [name for name in NUMBERED if name in shown], command
