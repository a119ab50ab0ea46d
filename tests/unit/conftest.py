"""Runners in memory, which are closed in the end, and a committed state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from mzplan.model.state import State
    from tests.unit.runner.test_runner import World
    from tests.unit.runner.test_runner_handover import Worlds

# How long an example takes is a matter of what else the machine does.
settings.register_profile("mzplan", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mzplan")


@pytest.fixture
def state() -> State:
    """Return the committed shop."""
    from tests.unit.small_projects import commit, shop

    return commit(shop())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    from tests.unit.runner.test_runner import World

    made = World(tmp_path / "state")
    yield made
    made.jobs.shutdown()


@pytest.fixture
def alive(world: World) -> World:
    """A runner whose source and sink run."""
    from tests.unit.runner.test_runner import make_state

    world.apply(make_state(1))
    return world


@pytest.fixture
def worlds(tmp_path: Path) -> Iterator[Worlds]:
    from tests.unit.runner.test_runner_handover import Worlds

    made = Worlds(tmp_path / "state")
    yield made
    made.jobs.shutdown()
