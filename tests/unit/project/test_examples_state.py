"""The examples keep their state in the checkout's state folder, and copies keep their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mzplan.cli.init import copy_example
from mzplan.config import environment_names, load_configuration, load_project

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", ["cdc", "files", "local", "nexmark", "shop"])
def test_an_example_keeps_its_state_in_the_checkout(name: str, tmp_path: Path) -> None:
    settings = load_project(ROOT / "examples" / name)
    assert (ROOT / "examples" / name / settings.state["path"]).resolve() == ROOT / "state" / name
    copy_example(name, tmp_path)
    assert load_project(tmp_path).state["path"] == "state"


def test_each_environment_of_an_example_keeps_its_own(tmp_path: Path) -> None:
    copy_example("environments", tmp_path)
    for name in environment_names(tmp_path):
        there = load_configuration(ROOT / "examples" / "environments", environment=name)
        settings = load_project(ROOT / "examples" / "environments", environment=name)
        place = ROOT / "examples" / "environments" / settings.state["path"]
        assert place.resolve() == ROOT / "state" / "environments" / name
        copied = load_project(tmp_path, environment=name)
        assert copied.state["path"] == f"state/{name}" and copied.warehouse == f"./warehouse/{name}"
        assert len(there.resources) == 4
    assert environment_names(tmp_path) == ("dev", "staging", "prod")


@pytest.mark.programs
def test_states_of_the_examples_are_not_in_version_control() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    paths = ["state/shop/mzplan.state.json", "state/README.md", "state/.gitignore"]
    done = subprocess.run(["git", "check-ignore", *paths], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["state/shop/mzplan.state.json"]
