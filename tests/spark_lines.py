"""The other line of Spark, beside the one in .venv: `python -m tools.other_line` unpacks it."""

from __future__ import annotations

import os
from pathlib import Path

from mzplan.host.spark_lines import LINES, NEWEST, OLDEST, SparkLine, installed_line

FOLDER = Path(__file__).parents[1] / ".venv-lines"


def other_line() -> SparkLine:
    """The line farthest from the installed one."""
    return OLDEST if installed_line() is not OLDEST else NEWEST


def folder_of(line: SparkLine) -> Path:
    """Where its PySpark is unpacked."""
    return FOLDER / f"pyspark-{line.tested[-1]}"


def environment_of(line: SparkLine) -> dict[str, str]:
    """For a process whose Spark is to be of that line."""
    assert line in LINES
    folder = folder_of(line)
    assert (folder / "pyspark").is_dir(), f"{folder} is missing: python -m tools.other_line"
    path = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
    return {"PYTHONPATH": path}
