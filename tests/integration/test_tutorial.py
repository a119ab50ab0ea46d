"""The tutorial, as somebody new would type it: on real Spark, with no server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.docs_commands import DOCS, run_page


def test_the_tutorial_does_what_it_shows(tmp_path: Path) -> None:
    folder = tmp_path / "tutorial"
    folder.mkdir()
    try:
        run_page(DOCS / "tutorial.md", folder, seconds=240)
    finally:
        subprocess.run([sys.executable, "-m", "mzplan", "-C", str(folder), "down"], capture_output=True)
