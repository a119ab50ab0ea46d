"""This checkout's wheel in an environment of its own, as pip would install it; packages in a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def install_wheel(folder: Path, made: Path, extra: str = "") -> None:
    """Make the virtual environment `made`, with all else in the versions of the lock. `folder`: for the
    wheel. Other packages are links to those of uv's cache, where there is one."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    uv = [sys.executable, "-m", "uv"]
    subprocess.run([*uv, "venv", "--quiet", "--python", sys.executable, str(made)], check=True, timeout=60)
    (folder / "no-spark.txt").write_text("pyspark ; sys_platform == 'none'\n")
    wanted = [f"mzplan{f'[{extra}]' if extra else ''} @ {wheel.as_uri()}"]
    if extra == "runner":
        _link_spark(made)
        wanted.append("py4j")
    pip = [*uv, "pip", "install", "--quiet", "--python", str(made), "--constraint", "requirements.lock"]
    without = ["--override", str(folder / "no-spark.txt")]
    subprocess.run([*pip, *without, *wanted], cwd=ROOT, check=True, timeout=300)


def _link_spark(made: Path) -> None:
    """Its programs, and a link to the package that is here: it comes as source, and a minute goes by before
    uv has made a wheel of it."""
    import pyspark

    package = Path(pyspark.__file__).parent
    (packages,) = made.glob("lib/*/site-packages")
    (packages / "pyspark").symlink_to(package)
    for program in (*(package / "bin").iterdir(), package / "find_spark_home.py"):
        shutil.copy(program, made / "bin")


def add_package(folder: Path, name: str, group: str, entry_point: str) -> dict[str, str]:
    """Add a package's metadata to a folder. Return the environment of a process that imports from there."""
    metadata = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{entry_point}\n")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}
