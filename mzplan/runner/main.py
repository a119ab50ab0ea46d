"""`mzplan run`: from a lease to queries that run, until told to stop."""

from __future__ import annotations

import json
import logging
import os
import secrets as tokens
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor as Pool
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mzplan.controller.executor import Executor, ExecutorContext
from mzplan.controller.memory import InMemoryExecutor
from mzplan.failpoints import Failpoint, failpoint
from mzplan.model.diagnostics import ExitCode, MzplanError, error
from mzplan.model.resources import ProjectSettings
from mzplan.model.state import Lease
from mzplan.runner.lease import LeaseKeeper
from mzplan.runner.loop import Runner
from mzplan.runner.wake import WakeListener, runtime_folder
from mzplan.secrets import Secrets
from mzplan.state.store import Store, open_store

log = logging.getLogger("mzplan.runner")

WORKERS = 8  # starts, stops and checks at once
STANDBY = 1.0  # seconds between looks at a lease that somebody else holds


def run(settings: ProjectSettings, instance: str, *, stand_by: bool = True) -> ExitCode:
    """Lead the instance until SIGTERM or SIGINT. With another leader alive: stand by, or (embedded, where
    two commands may have started one each) leave at once."""
    store = open_store(settings)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    lease = _lead(store, instance, stopping, stand_by)
    if lease is None:
        return ExitCode.OK
    failpoint(Failpoint.RUNNER_LEASED)
    return _serve(settings, store, lease, stopping)


def run_dry(settings: ProjectSettings, instance: str) -> None:
    """One pass of a dry instance, in this process: commits become observations, nothing is reached."""
    store = open_store(settings)
    lease = store.acquire_lease(instance, "dry")
    until = time.monotonic() + 30.0
    while lease is None and time.monotonic() < until:  # another command's pass: it takes moments
        time.sleep(0.05)
        lease = store.acquire_lease(instance, "dry")
    if lease is None:
        raise error("MZ060", f"Instance {instance} is led by another process", "It is a dry instance.")
    executor = InMemoryExecutor(settings.project, store.read_status(instance))
    runner = Runner(
        store, executor, Secrets(settings.directory), lease, _Inline(), retain_dropped=settings.retain_dropped
    )
    try:
        for _ in range(16):  # stop, start, accept: each query is settled in three rounds; canaries first
            if not runner.tick() and not runner.under_way:
                break
        runner.tick()
    finally:
        store.renew_lease(lease, released=True)


def _lead(store: Store, instance: str, stopping: threading.Event, stand_by: bool) -> Lease | None:
    owner = f"{socket.gethostname()}:{os.getpid()}:{tokens.token_hex(4)}"
    told = False
    while not stopping.is_set():
        lease = store.acquire_lease(instance, owner)
        if lease is not None:
            log.info("leading instance %s, epoch %d", instance, lease.epoch)
            return lease
        if not stand_by:
            log.info("instance %s has a runner already", instance)
            return None
        if not told:
            log.info("another runner leads instance %s: standing by", instance)
            told = True
        stopping.wait(STANDBY)
    return None


def _serve(settings: ProjectSettings, store: Store, lease: Lease, stopping: threading.Event) -> ExitCode:
    folder = runtime_folder(settings.directory)
    fatal = folder / f"{lease.instance}.error.json"
    fatal.unlink(missing_ok=True)
    lost: list[str] = []

    def on_lost(why: str) -> None:
        lost.append(why)
        log.error("the lease is lost: %s; stopping every query", why)
        stopping.set()

    secrets = Secrets(settings.directory)
    executor = _executor(settings, store, lease.instance)
    keeper = LeaseKeeper(store, lease, on_lost)
    keeper.start()
    pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="work")
    runner = Runner(store, executor, secrets, lease, pool, retain_dropped=settings.retain_dropped)
    listener = WakeListener(folder / f"{lease.instance}.sock", secrets, runner.wake)
    listener.start()
    unwatch = store.backend.watch(runner.wake.set)
    problem: list[MzplanError] = []
    opener = threading.Thread(
        target=_open, args=(executor, runner, problem, stopping), name="open", daemon=True
    )
    opener.start()
    try:
        runner.run(_either(stopping, runner))
    finally:
        log.info("stopping")
        listener.close()
        unwatch()
        opener.join(timeout=60.0)
        pool.shutdown(wait=False, cancel_futures=True)
        runner.answering.close()
        executor.close()  # first the queries: when the lease is lost, a slow check must not delay them
        pool.shutdown(wait=True)
        keeper.release()
    if problem:
        fatal.write_text(json.dumps([d.to_json() for d in problem[0].diagnostics]), encoding="utf-8")
        raise problem[0]
    return ExitCode.ERROR if lost else ExitCode.OK


def _open(executor: Executor, runner: Runner, problem: list[MzplanError], stopping: threading.Event) -> None:
    began = time.monotonic()
    try:
        executor.open()
        log.info("ready after %.1f s", time.monotonic() - began)
    except MzplanError as found:
        problem.append(found)
        stopping.set()
    runner.wake.set()


def _either(stopping: threading.Event, runner: Runner) -> threading.Event:
    """The stop event; setting it also wakes the loop, so that stopping is not delayed by a round."""

    def waker() -> None:
        stopping.wait()
        runner.wake.set()

    threading.Thread(target=waker, name="stop", daemon=True).start()
    return stopping


def _executor(settings: ProjectSettings, store: Store, instance: str) -> Executor:
    declared = settings.instances.get(instance)
    if declared is not None and declared.type == "dry":
        return InMemoryExecutor(settings.project, store.read_status(instance))
    from mzplan.spark.executor import SparkExecutor  # imports pyspark

    context = ExecutorContext(
        project=settings.project,
        directory=settings.directory,
        warehouse=absolute_warehouse(settings),
    )
    return SparkExecutor(context)


def absolute_warehouse(settings: ProjectSettings) -> str:
    """The warehouse as an absolute path or URI (a relative path is relative to the project's folder)."""
    if "://" in settings.warehouse or settings.warehouse.startswith("file:"):
        return settings.warehouse
    return str((Path(settings.directory) / settings.warehouse).resolve())


def configure_logging() -> None:
    """Logs to stderr, one line each, UTC."""
    logging.Formatter.converter = time.gmtime
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    for noisy in ("asyncssh", "py4j", "pyspark"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


class _Inline(Pool):
    """A pool that works at once, in the caller's thread: a dry pass needs no concurrency."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future
