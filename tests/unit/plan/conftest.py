"""The committed project of most tests."""

from __future__ import annotations

import pytest

from mzplan.model.state import State
from tests.unit.small_projects import commit, shop


@pytest.fixture
def state() -> State:
    return commit(shop())
