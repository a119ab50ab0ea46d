"""Each kind of background job has its own threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from mzplan.controller.jobs import BUDGETS, Jobs


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    made = Jobs()
    yield made
    made.shutdown()


def test_a_busy_kind_delays_only_its_own_jobs(jobs: Jobs) -> None:
    let = threading.Event()
    try:
        blocked = [jobs.submit("release", number, let.wait, 60.0) for number in range(3)]
        assert jobs.submit("survey", "source.a", str.upper, "done").result(20.0) == "DONE"
        assert jobs.is_full("release") and not jobs.is_full("survey")
        assert [(job.key, job.is_running) for job in jobs.reports(0.0) if not job.is_running] == [
            ("2", False)
        ]
        assert jobs.reports(60.0) == ()
    finally:
        let.set()
    assert [future.result(20.0) for future in blocked] == [True] * 3
    assert jobs.reports(0.0) == ()


def test_a_job_can_say_what_it_works_on(jobs: Jobs) -> None:
    let, named = threading.Event(), threading.Event()

    def work() -> None:
        jobs.set_key("sink.b")
        named.set()
        let.wait(60.0)

    done = jobs.submit("lag", "", work)
    try:
        assert named.wait(20.0)
        assert [job.key for job in jobs.reports(0.0)] == ["sink.b"]
    finally:
        let.set()
    done.result(20.0)


def test_the_number_of_jobs_of_a_kind_can_change(jobs: Jobs) -> None:
    let = threading.Event()
    try:
        first = jobs.submit("start", "a", let.wait, 60.0)
        jobs.set_threads("start", 1)
        assert jobs.is_full("start")
        jobs.set_threads("start", BUDGETS["start"].threads + 1)
        assert not jobs.is_full("start")
        others = [jobs.submit("start", n, threading.Event().is_set) for n in range(BUDGETS["start"].threads)]
        assert [future.result(20.0) for future in others] == [False] * len(others)
    finally:
        let.set()
    assert first.result(20.0)


def test_no_job_starts_after_the_shutdown(jobs: Jobs) -> None:
    jobs.shutdown()
    with pytest.raises(RuntimeError):
        jobs.submit("lag", "sink.a", print)


def test_a_job_that_hangs_leaves_its_place_once(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise one server that hangs would stop the checks of all others."""
    let, now = threading.Event(), [1000.0]
    monkeypatch.setattr(
        "mzplan.controller.jobs.time", SimpleNamespace(monotonic=lambda: now[0], time=time.time)
    )
    try:
        hanging = jobs.submit("upstream", "source.a", let.wait, 60.0)
        waiting = jobs.submit("upstream", "source.b", let.wait, 60.0)
        assert [(job.key, job.is_running, job.hangs) for job in jobs.reports(0.0)] == [
            ("source.a", True, False),
            ("source.b", False, False),
        ]
        now[0] += 61.0
        assert ("source.a", True, True) in {(job.key, job.is_running, job.hangs) for job in jobs.reports(0.0)}
        assert waiting.running()
        now[0] += 61.0
        third = jobs.submit("upstream", "source.c", let.wait, 60.0)
        jobs.reports(0.0)
        assert not third.running()
    finally:
        let.set()
    assert [future.result(20.0) for future in (hanging, waiting, third)] == [True] * 3
