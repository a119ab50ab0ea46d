"""Runs a task as an executor does: in another process, without pandas."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """\
import pickle, sys
class NoPandas:
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, NoPandas())
task, given = pickle.load(open(sys.argv[1], "rb"))
try:
    print([one.to_pylist() if given else one for one in task(given)])
except RuntimeError as problem:
    print(problem)
"""


def run_elsewhere(task: object, given: object, folder: Path) -> str:
    """Return what the task printed: a list for each batch that it returned, or the text of its error."""
    from pyspark import cloudpickle

    (folder / "task").write_bytes(cloudpickle.dumps((task, given)))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", PROGRAM, str(folder / "task")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout
