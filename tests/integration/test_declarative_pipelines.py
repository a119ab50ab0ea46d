"""examples/declarative_pipelines, as its README says: the same change by both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mzplan.host.spark_lines import NEWEST, installed_line

ROOT = Path(__file__).parents[2]
README = ROOT / "examples/declarative_pipelines/README.md"


@pytest.mark.nightly
def test_the_comparison_prints_what_its_page_shows(tmp_path: Path) -> None:
    assert installed_line() is NEWEST
    command = [sys.executable, "-m", "examples.declarative_pipelines.compare", "--root", str(tmp_path)]
    ran = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=550)
    log = tmp_path / "pipeline.log"
    assert ran.returncode == 0, ran.stdout + ran.stderr + (log.read_text() if log.exists() else "")
    shown = README.read_text(encoding="utf-8").partition("```text\nSpark ")[2].partition("\n```")[0]
    assert ran.stdout.strip() == f"Spark {shown}"
