"""The pairs of tests/cases/state on each line of Spark that is here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases.state_pairs import Pair
from tests.integration.spark.query_states import PAIRS, check
from tests.integration.spark_lab import Lab
from tests.spark_lines import environment_of, other_line

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_spark_does_with_the_state_what_the_plan_says(pair: Pair, lab: Lab, tmp_path: Path) -> None:
    check(pair, lab.spark, tmp_path)


@pytest.mark.timeout(3600)
def test_the_other_line_of_spark_does_the_same(tmp_path: Path) -> None:
    line = other_line()
    command = [sys.executable, "-m", "tests.integration.spark.query_states", str(tmp_path)]
    environment = {**os.environ, **environment_of(line)}
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-5000:]
    assert f"{len(PAIRS)} pairs on Spark {line.spark}." in ran.stdout
