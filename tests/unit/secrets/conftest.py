"""A cache of secrets with a clock that tests set."""

from __future__ import annotations

from pathlib import Path

import pytest

from mzplan.secrets.references import Secrets
from mzplan.secrets.remote import RemoteSecrets


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def secrets(clock: Clock, tmp_path: Path) -> Secrets:
    """Secrets of a runner without variables, which reads a remote secret again after a minute."""
    return Secrets(str(tmp_path), {}, RemoteSecrets(60.0, clock))
