"""The Python interpreter for Spark tasks that run on the driver's machine."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

# Spark puts its own entries first; its jar is the last of them (PythonUtils.sparkPythonPath). A process that
# isn't forked from PySpark's daemon gets the address to which it must connect soon.
_SCRIPT = """\
#!/bin/sh
PYTHONPATH=${{PYTHONPATH#*/jars/spark-core_*.jar}}
export PYTHONPATH="${{PYTHONPATH#:}}"
if [ -n "$PYTHON_WORKER_FACTORY_PORT$PYTHON_WORKER_FACTORY_SOCK_PATH" ] && [ "$1" = -m ]; then
  exec {python} -I -S {early_connection} "$@"
fi
exec {python} "$@"
"""


@contextmanager
def tasks_like_the_driver(folder: Path) -> Iterator[None]:
    """Make a session that is opened inside this context run its tasks with the driver's interpreter.

    An existing PYSPARK_PYTHON wins. Later processes don't inherit the setting, because `folder` is removed
    when this process exits.
    """
    if os.environ.get("PYSPARK_PYTHON"):
        yield
        return
    os.environ["PYSPARK_PYTHON"] = _interpreter_path(folder)
    try:
        yield
    finally:
        del os.environ["PYSPARK_PYTHON"]


def _interpreter_path(folder: Path) -> str:
    """Return the path of a script in `folder` that runs this interpreter; or the interpreter itself.

    Spark makes Python tasks import PySpark from an archive of its source, which each process compiles again:
    half a second of CPU. The script takes the archive off the path, so that tasks import the installed
    package like the driver. A process that must connect to Spark does so before its imports. Returns the
    interpreter itself if the driver imported the archive, or if `folder` can't hold programs.
    """
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        return sys.executable
    script = folder / "python"
    early_connection = Path(__file__).with_name("early_connection.py")
    script.write_text(
        _SCRIPT.format(
            python=shlex.quote(sys.executable), early_connection=shlex.quote(str(early_connection))
        )
    )
    script.chmod(0o700)
    return str(script) if os.access(script, os.X_OK) else sys.executable
