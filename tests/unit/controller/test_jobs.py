"""Each kind of background job has its own threads."""

from __future__ import annotations

import threading
from collections.abc import Iterator

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
        jobs.set_budget("start", 1)
        assert jobs.is_full("start")
        jobs.set_budget("start", BUDGETS["start"] + 1)
        assert not jobs.is_full("start")
        others = [jobs.submit("start", n, threading.Event().is_set) for n in range(BUDGETS["start"])]
        assert [future.result(20.0) for future in others] == [False] * len(others)
    finally:
        let.set()
    assert first.result(20.0)


def test_no_job_starts_after_the_shutdown(jobs: Jobs) -> None:
    jobs.shutdown()
    with pytest.raises(RuntimeError):
        jobs.submit("lag", "sink.a", print)
