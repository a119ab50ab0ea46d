"""The script that makes Spark's Python workers use the driver's interpreter and packages."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mzplan.spark.session import _scratch
from mzplan.spark.task_python import tasks_like_the_driver

SHOW = "import os, sys; print(sys.prefix, os.environ['PYTHONPATH'], sys.argv[1], sep='|')"
SPARKS = "/s/python/lib/pyspark.zip:/s/python/lib/py4j-0.10-src.zip:/s/jars/spark-core_2.13-4.0.5.jar"


@pytest.mark.parametrize(("before", "left"), [(f"{SPARKS}:", "/mine:/too"), ("", "/mine:/other.zip")])
def test_tasks_use_the_driver_s_packages_instead_of_spark_s_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, left: str
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    folder = tmp_path / "a folder's"
    folder.mkdir()
    with tasks_like_the_driver(folder):
        python = os.environ["PYSPARK_PYTHON"]
    command, environment = [python, "-c", SHOW, "a word"], {"PYTHONPATH": f"{before}{left}"}
    shown = subprocess.check_output(command, env=environment, text=True)
    assert shown.strip() == f"{sys.prefix}|{left}|a word"
    assert "PYSPARK_PYTHON" not in os.environ


def test_the_user_s_interpreter_stays_and_a_noexec_disk_needs_the_driver_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "python3.12")
    with tasks_like_the_driver(tmp_path):
        assert os.environ["PYSPARK_PYTHON"] == "python3.12"
    assert os.environ["PYSPARK_PYTHON"] == "python3.12" and not list(tmp_path.iterdir())
    monkeypatch.delenv("PYSPARK_PYTHON")
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as on a file system mounted noexec
    with tasks_like_the_driver(tmp_path):
        assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_a_cleaner_of_temporary_files_leaves_the_folder_alone() -> None:
    """systemd-tmpfiles asks for such a lock before it looks into a folder, and passes over one that it
    can't have."""
    handle = os.open(_scratch(), os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(handle)
