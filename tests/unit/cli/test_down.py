"""`mzplan down` stops only the runner of its own project, whatever process a lease names."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mzplan.config import load_project
from mzplan.host.checkout import runtime_file
from mzplan.host.processes import started_at
from mzplan.runner import embedded
from mzplan.runner.wake import WakeListener, listener_pid
from mzplan.store.formats import encode_lease
from mzplan.store.leases import new_lease
from mzplan.store.store import open_store
from tests.unit.cli_runs import add_settings, mzplan, write

# What a runner does as soon as it leads: the same arguments, in the same folder.
RUNNER = """
import sys, threading
from mzplan.config import load_project
from mzplan.host.checkout import runtime_file
from mzplan.runner.wake import WakeListener, runtime_folder
settings = load_project(sys.argv[2])
assert runtime_folder(settings.directory)
path = runtime_file(settings, sys.argv[5], "sock")
WakeListener(path, lambda secret_values: 0, threading.Event()).start()
print("listens", flush=True)
threading.Event().wait()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(embedded, "LISTEN_WAIT", 0.2)
    return write(tmp_path / "own", "embedded")


@contextlib.contextmanager
def process(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE) as started:
        try:
            yield started
        finally:
            started.kill()


@contextlib.contextmanager
def runner(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", RUNNER, "-C", str(folder), "run", "--instance", "local"]
    with process(*command) as started:
        assert started.stdout is not None and started.stdout.readline() == b"listens\n"
        yield started


def forge(folder: Path, pid: int, instance: str = "local", **fields: str) -> None:
    """Write a lease that names any process."""
    lease = replace(
        new_lease(instance, "forged", 7), pid=pid, pid_started=started_at(pid), ttl=600.0, **fields
    )
    open_store(load_project(folder)).backend.write(f"leases/{instance}.json", encode_lease(lease))


def ended(started: subprocess.Popen[bytes]) -> bool:
    """Whether the process has ended. Waits a little, because a signal arrives later."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        started.wait(0.3)
    return started.returncode is not None


def test_the_runner_of_another_project_is_not_ended(folder: Path) -> None:
    """Neither if its arguments are those of this project's runner, nor if a link leads to its socket."""
    other = write(folder.parent / "other", "embedded")
    imitated = ("-C", str(folder), "run", "--instance", "local")
    imitation = (sys.executable, "-c", "import time; time.sleep(600)", *imitated)
    with runner(other) as theirs, process(*imitation) as imitating:
        for one in (theirs, imitating):
            forge(folder, one.pid)
            assert mzplan(folder, "down").code == 1
            assert not ended(one)
        (folder / ".mzplan").mkdir(mode=0o700, exist_ok=True)
        (folder / ".mzplan/local.sock").symlink_to(other / ".mzplan/local.sock")
        forge(folder, theirs.pid)
        assert mzplan(folder, "down").code == 1
        assert not ended(theirs)


def test_the_runner_is_ended_whatever_the_lease_says(folder: Path) -> None:
    with runner(folder) as own, process("sleep", "600") as victim:
        forge(folder, victim.pid, host="elsewhere")
        ran = mzplan(folder, "down", "--json")
        assert ran.code == 0 and ran.json()["instances"] == [{"name": "local", "stopped": True}]
        assert ended(own) and not ended(victim)


def test_down_without_a_runner_stops_nothing(folder: Path) -> None:
    assert "No runner of instance local runs here" in mzplan(folder, "down").out
    with runner(folder) as killed:
        killed.kill()
        killed.wait()
    assert (folder / ".mzplan/local.sock").exists()
    forge(folder, killed.pid)
    assert "No runner of instance local runs here" in mzplan(folder, "down").out


def test_a_process_that_a_lease_names_is_not_ended_and_keeps_no_other_runner_alive(folder: Path) -> None:
    add_settings(folder, "  a: {type: embedded}\n")
    with process("sleep", "600") as victim, runner(folder) as own:
        forge(folder, victim.pid, "a")
        ran = mzplan(folder, "down", "--json")
        assert (ran.code, ran.error()["code"]) == (1, "MZ111")
        assert f"kill -TERM {victim.pid}" in ran.error()["hint"]
        assert ended(own) and not ended(victim)


def test_a_runner_that_ends_leaves_the_socket_of_its_successor(folder: Path) -> None:
    settings = load_project(folder)
    path = runtime_file(settings, "local", "sock")
    path.parent.mkdir(mode=0o700)
    listeners = [WakeListener(path, lambda secret_values: 0, threading.Event()) for _ in range(2)]
    for listener in listeners:
        listener.start()
    listeners[0].close()
    assert listener_pid(settings, "local") is not None
    listeners[1].close()
    assert listener_pid(settings, "local") is None and not path.exists()


def test_a_runner_that_survives_sigkill_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one whose disk doesn't answer. The command doesn't wait for it forever."""
    sent: list[int] = []
    monkeypatch.setattr(embedded, "send_signal", lambda _, number: sent.append(number))
    monkeypatch.setattr(embedded, "STOP_WAIT", 0.1)
    monkeypatch.setattr(embedded, "KILL_WAIT", 0.1)
    with runner(folder) as stuck:
        ran = mzplan(folder, "down", "--json")
        assert (ran.code, ran.error()["code"]) == (1, "MZ074")
        assert str(stuck.pid) in ran.error()["detail"]
    assert sent == [signal.SIGTERM, signal.SIGKILL]
