"""Unpack the PySpark of another line next to .venv, and fetch its jars. Tests upgrade to it and back.

Only PySpark differs between the lines. First on PYTHONPATH, it hides the PySpark of .venv.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.java_options import start_quickly
from tests.spark_lines import environment_of, folder_of, other_line

LOCK = Path(__file__).with_name("other_line.lock")
JARS = "from mzplan.spark.process.session import open_session; open_session('fetch', {}).stop()"


def main() -> None:
    line = other_line()
    release, folder = line.tested[-1], folder_of(line)
    if not (folder / "pyspark").is_dir():
        print(f"Unpacking PySpark {release} (460 MB to download, once) …", flush=True)
        _unpack(release, folder)
    print(f"Fetching the jars of Spark {line.spark} …", flush=True)
    environment = {**os.environ, **environment_of(line)}
    start_quickly(environment)
    subprocess.run([sys.executable, "-c", JARS], env=environment, check=True)


def _unpack(release: str, folder: Path) -> None:
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    wanted = next(line for line in lines if line.startswith(f"pyspark=={release} "))
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    (part / "wanted.txt").write_text(wanted + "\n", encoding="utf-8")
    options = ["--no-deps", "--require-hashes", "--target", str(part), "-r", str(part / "wanted.txt")]
    uv = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--quiet", "--python", sys.executable]
    pip = [sys.executable, "-m", "pip", "install", "-q"]
    # As in the Makefile: pip may know a mirror that uv doesn't know.
    if subprocess.run([*uv, *options]).returncode:
        subprocess.run([*pip, *options], check=True)
    part.rename(folder)


if __name__ == "__main__":
    main()
