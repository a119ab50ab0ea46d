"""The phases of a demonstration: each says what it waits for, and a failure stops every process."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from pathlib import Path

import pytest

from examples import phases as module
from examples import stage as stage_module
from examples.phases import Phases
from examples.servers import LastingThread, ServerError
from examples.servers.ports import free_port
from examples.stage import Stage, perform


def test_each_phase_is_in_the_table_with_its_seconds() -> None:
    phases = Phases(since=time.time() - 40)
    with phases.phase("mzplan plan"):
        time.sleep(0.15)
    phases.together("servers", {"Kafka": lambda: time.sleep(0.2), "PostgreSQL": lambda: None})
    rows = dict(re.findall(r"^  (.*?) +(\d+\.\d) s$", phases.table(), flags=re.M))
    assert list(rows) == ["packages", "mzplan plan", "servers", "  PostgreSQL", "  Kafka", "all"]
    assert 40 <= float(rows["packages"]) <= float(rows["all"]) - 0.3
    assert float(rows["servers"]) >= float(rows["  Kafka"]) >= 0.2


def test_tasks_run_at_once() -> None:
    meeting = threading.Barrier(2, timeout=30)
    Phases().together("servers", {"one": meeting.wait, "two": meeting.wait})


def test_what_is_awaited_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "_SAY_EVERY_S", 0.05)
    Phases().together("servers", {"Kafka": lambda: time.sleep(0.5), "PostgreSQL": lambda: None})
    said = capsys.readouterr().out
    assert "✓ PostgreSQL: after" in said and "waiting for Kafka\n" in said


def test_a_failure_waits_for_the_others_and_tells_them(capsys: pytest.CaptureFixture[str]) -> None:
    """A failure during a server's start must also stop that server."""
    phases = Phases()
    ended = threading.Event()

    def polls() -> None:
        assert phases.given_up.wait(30)
        time.sleep(0.2)
        ended.set()

    def fails() -> None:
        raise ServerError("port 19092 is taken")

    with pytest.raises(ServerError, match="19092"):
        phases.together("servers", {"Kafka": fails, "the runner": polls})
    assert ended.is_set()
    said = capsys.readouterr().out
    assert "✗ Kafka" in said and "to stop everything, waiting for the runner" in said
    assert "✓" not in said and "servers" not in phases.table()


def test_further_failures_are_said_too(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> None:
        raise ServerError("no room")

    with pytest.raises(ServerError):
        Phases().together("servers", {"Kafka": fails, "PostgreSQL": fails})
    assert capsys.readouterr().err == "error: no room\n"


def test_a_lasting_thread_outlives_its_work() -> None:
    thread = LastingThread(lambda: None)
    thread.outcome.result(30)
    thread.join(0.2)
    assert thread.is_alive() and thread.daemon


def test_a_port_that_is_in_use_is_named_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        monkeypatch.setattr(stage_module, "KAFKA_PORTS", (free_port(), taken))
        monkeypatch.setattr(stage_module, "POSTGRES_PORT", taken)
        monkeypatch.setattr(Stage, "mzplan", lambda *_, **__: None)
        began: list[Stage] = []
        assert perform(Stage("shop", tmp_path, Phases()), lambda stage: began.append(stage) or 0) == 1
    said = capsys.readouterr().err
    assert began == [] and all(f"port {taken} for {use}" in said for use in ("Kafka", "PostgreSQL"))
    assert f"process {os.getpid()}" in said and "examples/shop" in said
