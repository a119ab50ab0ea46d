"""The Python of Spark's tasks, where they run on the driver's machine."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

# Spark's own entries stand first, and end with its jar (PythonUtils.sparkPythonPath).
_SCRIPT = """\
#!/bin/sh
PYTHONPATH=${{PYTHONPATH#*/jars/spark-core_*.jar}}
export PYTHONPATH="${{PYTHONPATH#:}}"
exec {python} "$@"
"""


@contextmanager
def tasks_like_the_driver(folder: Path) -> Iterator[None]:
    """A session that is opened within has the driver's interpreter for its tasks, whatever `python3` is; a
    PYSPARK_PYTHON that is set wins. Processes that are started later don't inherit it: `folder` goes with us.
    """
    if os.environ.get("PYSPARK_PYTHON"):
        yield
        return
    os.environ["PYSPARK_PYTHON"] = _by_way_of_a_script(folder)
    try:
        yield
    finally:
        del os.environ["PYSPARK_PYTHON"]


def _by_way_of_a_script(folder: Path) -> str:
    """The interpreter that runs here, by way of a script in `folder`.

    Spark has Python tasks import PySpark from an archive of its source, which each process compiles anew:
    half a second of CPU. The script takes the archive off their path, so that they find the installed
    package, as the driver did. Where that was the archive itself, or `folder` may not hold programs, there
    is not a script.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return sys.executable
    script = folder / "python"
    script.write_text(_SCRIPT.format(python=shlex.quote(sys.executable)))
    script.chmod(0o700)
    return str(script) if os.access(script, os.X_OK) else sys.executable
