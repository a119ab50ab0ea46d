"""The tutorial, as somebody new would type it: on real Spark, first with no server, then with its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples.servers.ports import free_port
from tests.machines import DOCS, run_page

PORTS = ("19192", "19193", "19194", "19195", "15532")


@pytest.mark.nightly
def test_the_tutorial_does_what_it_shows(tmp_path: Path) -> None:
    folder = tmp_path / "tutorial"
    folder.mkdir()
    ports = {port: str(free_port()) for port in PORTS}
    servers = [sys.executable, "-m", "examples.servers", "down", "--dir", str(tmp_path / "servers")]
    try:
        run_page(DOCS / "tutorial.md", folder, seconds=240, replaced=ports)
    finally:
        subprocess.run([sys.executable, "-m", "mzplan", "-C", str(folder), "down"], capture_output=True)
        subprocess.run([*servers, "--delete-data"], cwd=DOCS.parent, capture_output=True)
