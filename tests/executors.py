"""Runs a task as an executor does: in another process, without pandas."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

PROGRAM = """\
import importlib, pickle, sys
class NoPandas:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoPandas())
task, given, limits = pickle.load(open(sys.argv[1], "rb"))
for name, value in limits.items():
    module, _, limit = name.rpartition(".")
    setattr(importlib.import_module(module), limit, value)
try:
    print([one.to_pylist() if given else one for one in task(given)])
except RuntimeError as problem:
    print(problem)
"""


def run_elsewhere(
    task: object, given: object, folder: Path, limits: Mapping[str, float] | None = None
) -> str:
    """Return what the task printed: a list for each batch that it returned, or the text of its error.

    `limits`: shorter time limits, by the full name of the constant."""
    from pyspark import cloudpickle

    (folder / "task").write_bytes(cloudpickle.dumps((task, given, dict(limits or {}))))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", PROGRAM, str(folder / "task")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
