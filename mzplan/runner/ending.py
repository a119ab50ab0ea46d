"""Ends a runner: waits for work in progress, records why the runner ends, and releases its lease."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable

from mzplan.controller.work import WorkPool
from mzplan.model.cause import Cause
from mzplan.model.diagnostics import ExitCode, MzplanError, error
from mzplan.runner.beside import LAST_SECONDS, Beside
from mzplan.runner.loop import Runner
from mzplan.runner.wake import WakeListener

log = logging.getLogger("mzplan.runner")

GONE = 6.0  # seconds until the process ends after the engine is found dead; 10 with the time to notice
ENDING = 60.0  # seconds until the process ends after any other failure: it stops the queries first
WORK_SECONDS = 20.0  # seconds that a stopping runner waits for work in progress; `down` waits 45
GONE_WORK_SECONDS = 2.0  # seconds that a runner with a dead engine waits for work in progress


def end(
    runner: Runner,
    pool: WorkPool,
    listener: WakeListener,
    beside: Beside,
    problem: list[MzplanError],
    lost: str | None,
) -> threading.Thread:
    """Stop the queries and the work, and release the lease. Return the thread that waits for the work.

    `problem`: why the runner can't continue. `lost`: how it lost its lease.
    After a failure, the process ends within GONE or ENDING seconds. After a requested stop there is no such
    limit: the caller decides how long to wait.
    """
    log.info("stopping")
    executor = runner.controller.executor
    is_gone = executor.failure_reason() is not None
    if is_gone or problem or lost or sys.exc_info()[0] is not None:
        end_within(GONE if is_gone else ENDING)
    beside.close_server()
    pool.shutdown(wait=False, cancel_futures=True)
    runner.answering.close()
    if executor.is_open():  # otherwise no query runs, and Java, which is still starting, ends with us
        executor.close()  # before the work: a slow check must not delay the stop of the queries
    left = _end_work(pool, listener, GONE_WORK_SECONDS if is_gone else WORK_SECONDS)
    _let_go(runner, problem, lost)
    beside.close(lost=lost is not None)
    return left


def ended_error(runner: Runner, why: str) -> MzplanError:
    return error(
        "MZ060",
        f"The runner of instance {runner.instance} has ended",
        why,
        "a standby leads at once, and systemd or Kubernetes starts it again; else start it: mzplan up.",
    )


def _end_work(pool: WorkPool, listener: WakeListener, seconds: float) -> threading.Thread:
    """Wait some seconds for work in progress, then close the listener. Return the thread that still waits.

    The wait is limited because data that others wrote may keep a check busy.
    """
    ending = threading.Thread(target=pool.shutdown, daemon=True)
    ending.start()
    ending.join(seconds)
    listener.close()
    return ending


def leave(work: threading.Thread) -> None:
    """Exit the process if `work` is still alive: Python would wait for its threads without limit."""
    if work.is_alive():
        log.error("work that changes nothing does not end: this process ends without it")
        logging.shutdown()
        os._exit(ExitCode.ERROR)


def _let_go(runner: Runner, problem: list[MzplanError], lost: str | None) -> None:
    """Write the last event and status, and release the lease. Waits at most LAST_SECONDS for the writes."""
    first = problem[0].diagnostics[0] if problem else None
    reason = (first.detail or f"{first.summary}.") if first is not None else ""
    why = f"its runner has ended: {reason or lost or 'it was stopped'}"
    cause = Cause(cause="runner", detail=why)
    runner.controller.events.add("runner-ended", cause=cause, detail=why)

    def write() -> None:
        if reason:
            runner.status.end(reason)
        runner.write_events(at_once=True)

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    writing.join(LAST_SECONDS)
    runner.controller.release()


def end_within(seconds: float, last: Callable[[], None] = lambda: None) -> None:
    """Exit this process with an error after the given seconds, unless it has ended by then.

    Python waits for all threads except daemons, so a thread that hangs would keep the process and its lease
    forever. `last` runs before the exit, for at most one second.
    """

    def force() -> None:
        time.sleep(seconds)
        log.error("the runner has not ended within %.0f s: its process ends without waiting", seconds)
        lasting = threading.Thread(target=last, daemon=True)
        lasting.start()
        lasting.join(1.0)
        logging.shutdown()
        os._exit(ExitCode.ERROR)

    threading.Thread(target=force, name="end", daemon=True).start()
