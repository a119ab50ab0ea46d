"""Shuts down a runner: waits for work in progress, records why the runner exits, and releases its lease."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable

from mzplan.controller.jobs import Jobs
from mzplan.model.cause import Cause
from mzplan.model.diagnostics import ExitCode, MzplanError, error
from mzplan.runner.loop import Runner
from mzplan.runner.telemetry import LAST_SECONDS, Telemetry
from mzplan.runner.wake import WakeListener

log = logging.getLogger("mzplan.runner")

DEAD_ENGINE_SECONDS = 6.0  # until the process exits once a dead engine is noticed; 10 from its death
SHUTDOWN_SECONDS = 60.0  # seconds until the process ends after any other failure: it stops the queries first
WORK_SECONDS = 20.0  # seconds that a stopping runner waits for work in progress; `down` waits 45
DEAD_WORK_SECONDS = 2.0  # seconds that a runner with a dead engine waits for work in progress


def shut_down(
    runner: Runner,
    jobs: Jobs,
    listener: WakeListener,
    telemetry: Telemetry,
    problem: list[MzplanError],
    lost: str | None,
) -> threading.Thread:
    """Stop the queries and the work, and release the lease. Return the thread that waits for the work.

    `problem`: why the runner can't continue. `lost`: how it lost its lease.
    After a failure, the process exits within DEAD_ENGINE_SECONDS or SHUTDOWN_SECONDS. A requested stop has no
    such limit: the caller decides how long to wait.
    """
    log.info("stopping")
    executor = runner.controller.executor
    is_dead = executor.failure_reason() is not None
    if is_dead or problem or lost or sys.exc_info()[0] is not None:
        exit_within(DEAD_ENGINE_SECONDS if is_dead else SHUTDOWN_SECONDS)
    telemetry.close_server()
    jobs.shutdown(wait=False)
    if executor.is_open():  # otherwise no query runs, and a starting JVM ends with this process
        executor.close()  # before the work: a slow check must not delay the stop of the queries
    work = _end_work(jobs, listener, DEAD_WORK_SECONDS if is_dead else WORK_SECONDS)
    _release(runner, problem, lost)
    telemetry.close(lost=lost is not None)
    return work


def runner_error(runner: Runner, reason: str) -> MzplanError:
    return error("MZ060.runner-ended", instance=runner.instance, reason=reason)


def _end_work(jobs: Jobs, listener: WakeListener, seconds: float) -> threading.Thread:
    """Wait some seconds for work in progress, then close the listener. Return the thread that still waits.

    The wait is limited because data from other writers may keep a check busy.
    """
    thread = threading.Thread(target=jobs.shutdown, daemon=True)
    thread.start()
    thread.join(seconds)
    listener.close()
    return thread


def exit_if_busy(work: threading.Thread) -> None:
    """Exit the process if `work` is still alive: Python would wait for its threads without limit."""
    if work.is_alive():
        log.error("a check is still running: exiting without it")
        logging.shutdown()
        os._exit(ExitCode.ERROR)


def _release(runner: Runner, problem: list[MzplanError], lost: str | None) -> None:
    """Write the last event and status, and release the lease. Waits at most LAST_SECONDS for the writes."""
    first = problem[0].diagnostics[0] if problem else None
    reason = (first.detail or f"{first.summary}.") if first is not None else ""
    usual = "its queries have caught up" if runner.gates.caught_up.is_complete else "it was stopped"
    why = f"its runner has ended: {reason or lost or usual}"
    cause = Cause(cause="runner", detail=why)
    runner.controller.events.add("runner-ended", cause=cause, detail=why)

    def write() -> None:
        if reason:
            runner.status.write_end(reason)
        runner.write_events(at_once=True)

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    thread.join(LAST_SECONDS)
    runner.controller.release()


def exit_within(seconds: float, before_exit: Callable[[], None] = lambda: None) -> None:
    """Exit this process with an error after the given seconds, unless it has exited by then.

    Python waits for all threads except daemons, so a thread that hangs would keep the process and its lease
    forever. `before_exit` runs before the exit, for at most one second.
    """

    def force() -> None:
        time.sleep(seconds)
        log.error("the runner has not stopped within %.0f s: exiting without waiting", seconds)
        thread = threading.Thread(target=before_exit, daemon=True)
        thread.start()
        thread.join(1.0)
        logging.shutdown()
        os._exit(ExitCode.ERROR)

    threading.Thread(target=force, name="end", daemon=True).start()
