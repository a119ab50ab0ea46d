"""`make quickstart`, as the README has it: it checks itself what it shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_the_quickstart_shows_what_it_says() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "examples.quickstart"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=550,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
