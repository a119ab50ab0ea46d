"""Finds Java and checks its version, before Spark fails with an obscure error."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from mzplan.model.diagnostics import MzplanError, error

MINIMUM_JAVA = 17
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')  # 1.8.0_392 is Java 8
_TIMEOUT_S = 120  # it takes a fraction of a second, but a stalled machine may need much longer
_HINT = (
    "install a JDK 17 or 21 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless; macOS: "
    "brew install openjdk@17), or set JAVA_HOME to one."
)


def require_java() -> str:
    """Return the path of a `java` that Spark 4 runs on.

    Looks where Spark's launcher looks: in JAVA_HOME if it is set, else on the PATH. Raises MzplanError MZ061
    if Java is missing or too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    where = f"in JAVA_HOME ({home})" if home else "on the PATH"
    if java is None or not os.access(java, os.X_OK):
        raise _error(
            "Java was not found", f"Spark runs on Java {MINIMUM_JAVA} or 21, and there is none {where}."
        )
    try:
        process = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=_TIMEOUT_S)
        version = _VERSION.search(process.stderr + process.stdout)
    except (OSError, subprocess.TimeoutExpired):
        version = None
    if version is None:
        raise _error("Java does not run", f"{java} ({where}) does not say which version it is.")
    if int(version[1]) < MINIMUM_JAVA:
        raise _error(
            f"Java {version[1]} is too old",
            f"Spark needs Java {MINIMUM_JAVA} or 21; {java} is Java {version[1]}.",
        )
    return java


def _error(summary: str, detail: str) -> MzplanError:
    return error("MZ061", summary, detail, _HINT)
