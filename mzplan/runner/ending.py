"""How a runner ends: it waits for work that is under way, says why it ends, and gives its lease back."""

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

GONE = 6.0  # seconds to end in, once the engine is known to be gone: 10 in all, with the time to notice
ENDING = 60.0  # seconds to end in for any other reason but a stop: the queries are stopped first
WORK_SECONDS = 20.0  # that a runner which stops gives to looks that are under way: `down` waits 45
GONE_WORK_SECONDS = 2.0  # the same for one whose engine is gone


def end(
    runner: Runner,
    pool: WorkPool,
    listener: WakeListener,
    beside: Beside,
    problem: list[MzplanError],
    lost: str | None,
) -> threading.Thread:
    """Stop the queries and the work, and give the lease back. Returns the thread that waits for the work.

    `problem`: why the runner can't go on; `lost`: how it lost its lease. The process ends within seconds,
    unless somebody has asked it to stop: then they decide how long it may take.
    """
    log.info("stopping")
    executor = runner.controller.executor
    is_gone = executor.why_dead() is not None
    if is_gone or problem or lost or sys.exc_info()[0] is not None:
        end_within(GONE if is_gone else ENDING)
    beside.close_server()
    pool.shutdown(wait=False, cancel_futures=True)
    runner.answering.close()
    if executor.is_open():  # else nothing runs, and Java, which still starts, ends with this process
        executor.close()  # first the queries: a slow check must not delay them
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
    """Wait for looks that are under way, but not for ever: what others have left may keep one busy. Then
    nobody is listened to any more."""
    ending = threading.Thread(target=pool.shutdown, daemon=True)
    ending.start()
    ending.join(seconds)
    listener.close()
    return ending


def leave(work: threading.Thread) -> None:
    """Python would wait for its threads as long as they like."""
    if work.is_alive():
        log.error("work that changes nothing does not end: this process ends without it")
        logging.shutdown()
        os._exit(ExitCode.ERROR)


def _let_go(runner: Runner, problem: list[MzplanError], lost: str | None) -> None:
    """Write the last event and status, and give the lease back. A store that hangs is not waited for."""
    first = problem[0].diagnostics[0] if problem else None
    reason = (first.detail or f"{first.summary}.") if first is not None else ""
    why = f"its runner has ended: {reason or lost or 'it was stopped'}"
    cause = Cause(cause="runner", detail=why)
    runner.controller.notes.note("runner-ended", cause=cause, detail=why)

    def write() -> None:
        if reason:
            runner.status.end(reason)
        runner.write_events(at_once=True)

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    writing.join(LAST_SECONDS)
    runner.controller.release()


def end_within(seconds: float, last: Callable[[], None] = lambda: None) -> None:
    """End this process as failed, after so many seconds, unless it has ended by then.

    A thread that hangs (Python waits for all but daemons) would keep it, and its lease, for ever. `last` is
    done before, for a second at most.
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
