"""Families of processes that are frozen while they come and go."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from examples.servers.process import _state, children_of, descendants_of, frozen, send
from tests.support import eventually

BREEDER = "while true; do /bin/true; done & while true; do sleep 0.01; done"

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")


def test_a_family_that_is_frozen_while_it_starts_and_ends_children() -> None:
    with subprocess.Popen(["bash", "-c", BREEDER]) as process:
        try:
            eventually("it has children", lambda: bool(children_of(process.pid)), 10)
            for _ in range(20):
                with frozen(process.pid):
                    family = [process.pid, *descendants_of(process.pid)]
                    # A child that had just ended when its parent was stopped waits for it as a zombie.
                    assert {_state(pid) for pid in family} <= {"T", "Z"}
                eventually("it goes on", lambda: _state(process.pid) != "T", 10)
        finally:
            for pid in [process.pid, *descendants_of(process.pid)]:
                send(pid, signal.SIGKILL)
