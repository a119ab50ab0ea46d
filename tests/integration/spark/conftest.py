"""Fixtures of the tests of mzplan.spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from string import Template

import pytest


@pytest.fixture
def fill(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Put the paths of two files into hostile text: one that it would make, and one with a secret."""
    made, secret = tmp_path / "made", tmp_path / "secret.txt"
    secret.write_text("s3cr3t\n")
    yield lambda text: Template(text).safe_substitute(X=made, F=secret)
    assert not made.exists()
