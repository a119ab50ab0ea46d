"""The table of Spark's functions is what the installed Spark says."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mzplan.connectors.frames.types import CLOCK
from mzplan.host.spark_lines import installed_line
from mzplan.schema.sql.functions import AGGREGATES, functions
from tests.integration.spark_lab import Lab
from tests.spark_lines import environment_of, other_line
from tools.spark_functions import compare, functions_of

pytestmark = pytest.mark.nightly


def test_the_table_has_the_functions_of_this_spark(lab: Lab) -> None:
    line = installed_line().spark
    known = {name for name, function in functions().items() if function.since <= line}
    assert {name for name in functions_of(lab.spark) if name.isidentifier()} - known <= {CLOCK}


def test_every_aggregate_of_this_spark_counts_as_one(lab: Lab) -> None:
    groups = functions_of(lab.spark).items()
    assert {name for name, (group, _) in groups if group == "agg_funcs"} <= AGGREGATES


def test_no_function_of_the_other_line_is_typed_wrong() -> None:
    environment = {**os.environ, **environment_of(other_line())}
    command = [sys.executable, "-m", "tools.spark_functions"]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert output.rstrip().endswith(", 0 calls wrong"), output


def test_no_function_is_typed_wrong_and_most_are_typed(lab: Lab) -> None:
    report = compare(lab.spark)
    assert report.wrong == []
    assert report.share >= 0.95, report.untyped
