"""Packages as an installer leaves them, for other processes to find."""

from __future__ import annotations

import os
from pathlib import Path


def add_package(folder: Path, name: str, group: str, entry_point: str) -> dict[str, str]:
    """Add a package's metadata to a folder. Return the environment of a process that imports from there."""
    metadata = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{entry_point}\n")
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}
