"""What the README shows and names is true."""

from __future__ import annotations

import re
from pathlib import Path

import click

from mzplan.cli.main import cli

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_plan_in_the_readme_is_what_mzplan_prints() -> None:
    golden = (ROOT / "tests/cases/broker_moved/plan.txt").read_text(encoding="utf-8")
    assert f"$ mzplan plan\n{golden.rstrip()}\n```" in README


def test_the_commands_and_make_targets_in_the_readme_exist() -> None:
    named = set(re.findall(r"^\| `mzplan (\w+)|`mzplan (\w+)|/ `(\w+)`", README, flags=re.M))
    words = {word for found in named for word in found if word}
    assert words >= {"plan", "apply", "status", "destroy", "down"}
    assert words <= set(cli.list_commands(click.Context(cli)))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", README, flags=re.M):
        assert re.search(rf"^{target}:", makefile, flags=re.M), target
