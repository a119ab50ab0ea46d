"""docs/alter.md is correct: its examples run, and its grammar and options match the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mzplan.features.alter.alteration import edit_only
from mzplan.operations.project import open_project
from tests.unit.config_files import write
from tests.unit.reporters import SilentReporter

PAGE = (Path(__file__).parents[4] / "docs" / "alter.md").read_text(encoding="utf-8")
PROJECT = re.findall(r"```yaml\n(.*?)```", PAGE, re.S)[0]
EXAMPLES = re.findall(r"```sql\n(.*?)```\n```diff\n(.*?)```", PAGE, re.S)


@pytest.mark.parametrize(("statement", "diff"), EXAMPLES)
def test_an_example_edits_what_the_page_says(tmp_path: Path, statement: str, diff: str) -> None:
    project = open_project(str(write(tmp_path, {"shop.yaml": PROJECT})))
    (edit,) = edit_only(project, SilentReporter(), statement).edits
    changed = [line for line in edit.diff.splitlines()[2:] if line[:1] in "+-"]
    assert changed == diff.splitlines()
