"""Each benchmark still runs and prints its figures. On as little as shows that, so no figure is asserted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.catalogue import BENCHMARKS

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.timeout(1500)  # the first one that asks runs them all


IN_A_BROWSER = "pages"


@pytest.fixture(scope="module")
def ran() -> subprocess.CompletedProcess[str]:
    """All of them, in one process: so they share servers and a Spark session. But the one that needs a
    browser, which only `make nightly` has."""
    return _run(*(name for name in BENCHMARKS if name != IN_A_BROWSER))


def _run(*names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *names, "--small"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.programs
def test_the_one_in_a_browser_prints_its_figures() -> None:
    shown = _run(IN_A_BROWSER)
    test_all_end_well(shown)
    test_it_prints_its_figures_in_the_table_of_the_readme(IN_A_BROWSER, shown)


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name != IN_A_BROWSER])
def test_it_prints_its_figures_in_the_table_of_the_readme(
    name: str, ran: subprocess.CompletedProcess[str]
) -> None:
    head, rule, *rows = _table(ran.stdout, f"{name} (small)", ran.stderr)
    recorded = _table((ROOT / "benchmarks" / "README.md").read_text(), name, "")
    assert recorded[:2] == [head, rule]
    assert set(rule) <= set("|-: ")
    assert rows
    for row in rows:
        assert any(character.isdigit() for character in row), row


def test_all_end_well(ran: subprocess.CompletedProcess[str]) -> None:
    assert ran.returncode == 0, ran.stderr[-8000:]


def _table(text: str, title: str, log: str) -> list[str]:
    """The lines of the first table under a heading."""
    _, found, rest = f"\n{text}".partition(f"\n## {title}\n")
    assert found, f"there is no {title!r}:\n{text}\n{log[-8000:]}"
    lines = rest.partition("\n## ")[0].splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("|"))
    last = next((i for i, line in enumerate(lines[first:], first) if not line.startswith("|")), len(lines))
    return lines[first:last]
