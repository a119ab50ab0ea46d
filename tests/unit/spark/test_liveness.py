"""How a runner detects that Spark can no longer run queries."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mzplan.spark import liveness
from mzplan.spark.liveness import Liveness


class Java:
    """Spark's Java process with its context."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.answer: Callable[[], bool] = lambda: False
        self.asked = 0

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.code = -9

    def wait(self, timeout: float) -> None:
        assert timeout < 5

    def isStopped(self) -> bool:  # noqa: N802
        self.asked += 1
        return self.answer()


def liveness_of(java: Java, *, submitted: bool = False) -> Liveness:
    gateway = SimpleNamespace(proc=None if submitted else java)
    context = SimpleNamespace(_gateway=gateway, _jsc=SimpleNamespace(sc=lambda: java))
    spark: Any = SimpleNamespace(sparkContext=context)
    return Liveness(spark)


def looked(alive: Liveness, java: Java, times: int = 1) -> str | None:
    """Return the result of the last of so many looks. Each question is answered."""
    why = None
    for _ in range(times):
        before = java.asked
        why = alive.why_dead()
        until = time.monotonic() + 10
        while why is None and java.asked == before and time.monotonic() < until:
            time.sleep(0.001)
    return why


@pytest.mark.parametrize(
    ("code", "text"),
    [(3, "it ran out of memory"), (-9, "was killed (SIGKILL)"), (-6, "by signal 6"), (1, "exit code is 1")],
)
def test_a_java_process_that_has_ended(code: int, text: str) -> None:
    java = Java()
    alive = liveness_of(java)
    assert looked(alive, java, 3) is None
    java.code = code
    why = alive.why_dead()
    assert why is not None and why.startswith("Spark's Java process has ended: ") and text in why


def test_a_context_that_was_stopped() -> None:
    java = Java()
    alive = liveness_of(java)
    java.answer = lambda: True
    assert looked(alive, java) is None
    why = eventually(alive)
    assert why == "Spark's context was stopped, and this process can't have another one."
    alive.kill()
    assert alive.why_ended() == alive.why_dead() == why  # not the signal that the runner itself has sent


def test_a_gateway_that_has_ended_and_one_call_that_failed() -> None:
    def refused() -> bool:
        raise ConnectionRefusedError

    java = Java()
    alive = liveness_of(java, submitted=True)  # there is no process to ask
    java.answer = refused
    assert looked(alive, java) is None
    java.answer = lambda: False
    assert looked(alive, java, 10) is None
    java.answer = refused
    assert looked(alive, java) is None
    why = eventually(alive)
    assert why is not None and "no longer accepts calls from Python" in why


def test_java_that_hangs_is_given_a_minute_and_looks_return_at_once() -> None:
    java, hangs = Java(), threading.Event()
    alive = liveness_of(java)

    def hang() -> bool:
        hangs.wait(60)
        return False

    java.answer = hang
    began = time.monotonic()
    assert all(alive.why_dead() is None for _ in range(liveness.SILENT))
    assert alive.why_dead() == "Spark's Java process hasn't answered for 60 s."
    assert time.monotonic() - began < 30
    hangs.set()


def test_a_session_that_is_closed_on_purpose() -> None:
    java = Java()
    alive = liveness_of(java)
    assert looked(alive, java) is None
    alive.close()
    java.answer = lambda: True
    assert alive.why_dead() is None


def eventually(alive: Liveness) -> str | None:
    until = time.monotonic() + 10
    while (why := alive.why_dead()) is None and time.monotonic() < until:
        time.sleep(0.01)
    return why
