"""tools/run_tests.sh runs failed tests once more. It passes only if each of them ran and passed then."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "tools" / "run_tests.sh"
HEAD = "import os\nTOGETHER = 'PYTEST_XDIST_WORKER' in os.environ\n"  # and not once more, alone
FAILS = "def test_it():\n    print('ERROR x\\n' * 20)\n    assert %s\n"


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (FAILS % "not TOGETHER", 0, "flaky: FAILED test_a.py::test_it"),
        (FAILS % "False", 1, "1 failed"),
        ("assert not TOGETHER\ndef test_it(): assert False\n", 1, "1 failed"),
        ("def test_it():\n    if not TOGETHER: os._exit(0)\n    assert False\n", 1, "Only 0 of them ran"),
        (
            "def test_it():\n    if TOGETHER: os._exit(1)\ndef test_after(): assert False\n",
            1,
            "a worker crashed",
        ),
    ],
    ids=["flaky", "failing", "not collected", "ends the second run", "crashes the first run"],
)
def test_a_run_passes_only_if_each_failed_test_passes_alone(
    tmp_path: Path, text: str, code: int, said: str
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q\n")
    (tmp_path / "test_a.py").write_text(HEAD + text)
    (tmp_path / "test_b.py").write_text(HEAD + FAILS % "not TOGETHER")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | {"FLAKY": "flaky"}
    command = [str(SCRIPT), "-n", "1", "--max-worker-restart", "1", "-p", "no:hypothesispytest", "."]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, said in done.stdout) == (code, True), done.stdout + done.stderr
    assert (tmp_path / "flaky").exists() == (code == 0)
