"""`mzplan run`: acquires the lease of an instance, and runs its queries until it is stopped."""

from __future__ import annotations

import logging
import os
import secrets as tokens
import signal
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor as Pool
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mzplan.connectors.admission import GuardedSecrets, committed_guard, flows_of_state
from mzplan.controller.core import Controller
from mzplan.controller.executor import Executor, ExecutorContext, ExecutorGoneError
from mzplan.controller.jobs import Jobs
from mzplan.controller.memory import InMemoryController, InMemoryExecutor
from mzplan.controller.terms import NotAttachedError
from mzplan.host.checkout import runtime_file
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.cause import Cause
from mzplan.model.diagnostics import ExitCode, MzplanError, error
from mzplan.model.observed import Lease
from mzplan.model.resources import MetricsPlace, ProjectSettings, RunnerSettings
from mzplan.model.state import State
from mzplan.model.words import one_line
from mzplan.runner.embedded import delete_failure, required_packages, stop_without_commit, write_failure
from mzplan.runner.gates import Gates, gates_of
from mzplan.runner.logs import rotate
from mzplan.runner.loop import RoundsFailedError, Runner
from mzplan.runner.metrics import FindDrift, serve_metrics
from mzplan.runner.secret_values import ReceivedSecretValues
from mzplan.runner.shutdown import exit_if_busy, runner_error, shut_down
from mzplan.runner.telemetry import RunEvents, Telemetry, run_events_of
from mzplan.runner.wake import WakeListener, runtime_folder
from mzplan.runner.watchdog import Watchdog
from mzplan.runner.webhooks import notify
from mzplan.secrets.digests import ensure_key
from mzplan.secrets.guards import CommittedGuard
from mzplan.secrets.policy import Guard, Policy
from mzplan.secrets.providers import RemoteSecrets
from mzplan.secrets.references import Secrets
from mzplan.store.store import Store, open_store
from mzplan.warehouse.elsewhere import former_place, place_of_warehouse, stored_elsewhere

log = logging.getLogger("mzplan.runner")
STANDBY_INTERVAL = 1.0  # seconds between two attempts to acquire a lease that another runner holds


def run(
    settings: ProjectSettings,
    instance: str,
    *,
    find_drift: FindDrift,
    stand_by: bool = True,
    metrics: MetricsPlace | None = None,
    policy: Policy | None = None,
    until_caught_up: bool = False,
) -> ExitCode:
    """Lead the instance until SIGTERM, SIGINT or SIGHUP.

    Stands by while another runner leads. Without `stand_by`, returns at once instead, because two commands
    may each have started an embedded runner.

    `find_drift`: finds drift for the metrics.
    `until_caught_up`: return once the queries have read what was there, or can't.
    `metrics`: the address for metrics; overrides the address in the state.
    `settings`: the project's settings. Their runner settings apply only until a state
    contains runner settings.
    """
    ensure_key()  # before any query needs it, so that an error ends the runner
    store = open_store(settings)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, lambda *_: stopping.set())
    output = runtime_file(settings, instance, "log")
    threading.Thread(target=rotate, args=(output, stopping), name="log", daemon=True).start()
    lease = _acquire_lease(store, instance, stopping, stand_by)
    if lease is None:
        return ExitCode.OK
    failpoint(Failpoint.RUNNER_LEASED)
    stop_without_commit(store, stopping)
    return _serve(settings, store, lease, stopping, metrics, find_drift, policy, until_caught_up)


def run_dry(settings: ProjectSettings, instance: str, wait: float) -> bool:
    """Do one pass of a dry instance in this process: turn commits into observations. Contacts no server.

    Returns False if another process still leads the instance, or may lead it, after `wait` seconds.
    """
    store = open_store(settings)
    lease = store.leases.acquire(instance, "dry")
    until = time.monotonic() + wait
    while lease is None and time.monotonic() < until:  # a pass of another command takes only moments
        time.sleep(0.05)
        lease = store.leases.acquire(instance, "dry")
    if lease is None:
        return False
    jobs = Jobs(lambda kind: _InlinePool())
    gates = gates_of(store, instance, time.monotonic)
    executor = InMemoryExecutor(settings.project, store.read_status(instance))
    controller = InMemoryController(store, Secrets(settings.directory), jobs, executor, gates=gates)
    controller.attach(lease, Cause(cause="runner", detail="a dry pass"))  # never written down
    runner = Runner(controller, gates, default_settings=settings.runner)
    try:
        for _ in range(32):  # each query needs three rounds (stop, start, accept), some after others
            if not (runner.tick() or runner.tick()):  # an idle round may find what releases a query
                break
    finally:
        store.leases.renew(lease, released=True)
    return True


def _acquire_lease(store: Store, instance: str, stopping: threading.Event, stand_by: bool) -> Lease | None:
    owner = f"{socket.gethostname()}:{os.getpid()}:{tokens.token_hex(4)}"
    logged = ""
    while not stopping.is_set():
        try:
            lease = store.leases.acquire(instance, owner)
            if lease is not None:
                log.info("leading instance %s, epoch %d", instance, lease.epoch)
                return lease
            # An empty lease may still have a leader, so it is free only after some time.
            if not stand_by and store.leases.leader(instance) is not None:
                log.info("instance %s has a runner already", instance)
                return None
            now = f"another runner leads instance {instance}: standing by"
        except MzplanError as problem:
            if not logged:
                raise
            # A standby must survive an outage of the store, because the outage may end the leader.
            now = f"standing by for instance {instance}, and retrying: {problem}"
        if now != logged:
            log.info("%s", now)
        logged = now
        stopping.wait(STANDBY_INTERVAL)
    return None


def _serve(
    settings: ProjectSettings,
    store: Store,
    lease: Lease,
    stopping: threading.Event,
    metrics: MetricsPlace | None,
    find_drift: FindDrift,
    policy: Policy | None,
    until_caught_up: bool,
) -> ExitCode:
    is_private = runtime_folder(settings.directory) is not None
    guard = policy or committed_guard(store)
    grants = (guard.grant,) if isinstance(guard, CommittedGuard) else ()
    secret_values = ReceivedSecretValues(*grants)
    socket_file = runtime_file(settings, lease.instance, "sock")
    wake_event = threading.Event()
    listener = WakeListener(socket_file, secret_values.receive, wake_event)
    if is_private:
        delete_failure(settings, lease.instance)
        listener.start()  # `mzplan down` finds this process by its socket
    log.info("secrets go only where %s allows", policy.path if policy else "the committed state")
    secrets = GuardedSecrets(settings.directory, guard, remote=RemoteSecrets())
    state = store.read_state()
    settings = replace(settings, warehouse=state.warehouse or settings.warehouse)
    # Both the file and the state must declare the instance as dry. A file alone must not stop real queries.
    declared, committed = settings.instances.get(lease.instance), state.instances.get(lease.instance)
    is_dry = declared is not None and {declared.type, (committed or declared).type} == {"dry"}
    jobs = Jobs()
    gates = gates_of(store, lease.instance, time.monotonic, until_caught_up=until_caught_up)
    warehouse = absolute_warehouse(settings)
    former = _former_place(store, state, lease.instance, warehouse)
    controller = _controller(
        settings,
        store,
        secrets,
        jobs,
        lease.instance,
        is_dry,
        gates,
        wake_event,
        former,
        until_caught_up,
        policy,
    )
    controller.lead(lease.instance, lease.owner)

    telemetry = Telemetry(
        lease.instance,
        lambda place: serve_metrics(runner, place, warehouse, find_drift),
        lambda event_settings: (
            RunEvents() if is_dry else run_events_of(settings, event_settings, secrets, policy, warehouse)
        ),
        metrics,
        notifier=None
        if is_dry
        else lambda hook: notify(runner, settings.project, hook, secrets, policy, find_drift),
    )
    runner = Runner(
        controller,
        gates,
        on_commit=partial(_on_commit, settings, guard, telemetry),
        default_settings=settings.runner,
        secret_values=secret_values,
        observe_runs=telemetry.observe,
        warehouse_place=former or place_of_warehouse(warehouse),
    )
    unwatch = store.backend.watch(wake_event.set)
    problem: list[MzplanError] = []
    opening = (controller.executor, problem, stopping, wake_event)
    threading.Thread(target=_open_engine, args=opening, name="open", daemon=True).start()
    threading.Thread(target=_wake, args=(stopping, wake_event), name="stop", daemon=True).start()

    def fail(why: str) -> None:
        problem.append(runner_error(runner, why))
        stopping.set()

    watchdog = Watchdog(runner, fail, runner.status.write_end)
    watchdog.start()
    lost = None
    try:
        lost = _run_rounds(runner, stopping, problem)
    finally:
        watchdog.close()
        unwatch()
        work = shut_down(runner, jobs, listener, telemetry, problem, lost)
        if problem and is_private:
            write_failure(problem[0], settings, lease.instance)
        exit_if_busy(work)
    if problem:
        raise problem[0]
    if lost:
        return ExitCode.ERROR
    is_short = until_caught_up and not gates.caught_up.is_complete
    return ExitCode.NOT_CONVERGED if is_short else ExitCode.OK


def _former_place(store: Store, state: State, instance: str, warehouse: str) -> str:
    """Return where the queries' storage is, and log it, if it isn't in this warehouse; else ""."""
    stored = [r.place for r in state.resources.values() if r.digest and r.instance == instance]
    former = former_place(store.read_status(instance), warehouse, stored)
    if former:
        log.error("%s", MzplanError([stored_elsewhere(former, warehouse, instance)]))
    return former


def _run_rounds(runner: Runner, stopping: threading.Event, problem: list[MzplanError]) -> str | None:
    """Do rounds until the runner is stopped or can't continue.

    Returns how it lost its lease, or None. Adds the reason to `problem` if it can't continue.
    """
    try:
        runner.serve(stopping)
    except NotAttachedError as why:
        log.error("%s All queries are stopped.", why)
        return str(why)
    except (ExecutorGoneError, RoundsFailedError) as why:
        problem.append(runner_error(runner, str(why)))
    return None


def _on_commit(
    settings: ProjectSettings, guard: Guard, telemetry: Telemetry, state: State, now: RunnerSettings
) -> None:
    """Apply the settings of a new state, before the runner acts on its queries."""
    _ensure_warehouse(settings, state)
    if isinstance(guard, CommittedGuard):  # a commit doesn't change a policy
        guard.set_committed(flows_of_state(state))
    telemetry.configure(now, state.commit.git if state.commit is not None else None)


def _ensure_warehouse(settings: ProjectSettings, state: State) -> None:
    """Raise MzplanError MZ044 if the state has another warehouse than this runner was started with.

    Before the first commit, a runner takes the warehouse from its own mzplan.yaml.
    """
    wanted = replace(settings, warehouse=state.warehouse or settings.warehouse)
    if absolute_warehouse(wanted) == absolute_warehouse(settings):
        return
    raise error(
        "MZ044.other-warehouse-than-runner",
        serial=state.serial,
        warehouse=state.warehouse,
        own=settings.warehouse,
    )


def _open_engine(
    executor: Executor, problem: list[MzplanError], stopping: threading.Event, wake_event: threading.Event
) -> None:
    began = time.monotonic()
    try:
        executor.open()
        log.info("ready after %.1f s", time.monotonic() - began)
    except MzplanError as failed:
        problem.append(failed)
        stopping.set()
    except Exception as failed:  # for example, py4j's errors if Java has ended meanwhile
        log.exception("Spark could not be opened")
        detail = one_line(f"{type(failed).__name__}: {failed}")
        problem.append(error("MZ062.spark-not-started", reason=detail))
        stopping.set()
    wake_event.set()


def _wake(stopping: threading.Event, wake_event: threading.Event) -> None:
    """Wake the loop when it should stop."""
    stopping.wait()
    wake_event.set()


def _controller(
    settings: ProjectSettings,
    store: Store,
    secrets: Secrets,
    jobs: Jobs,
    instance: str,
    is_dry: bool,
    gates: Gates,
    wake_event: threading.Event,
    former: str,
    until_caught_up: bool,
    policy: Policy | None,
) -> Controller:
    if is_dry:
        executor = InMemoryExecutor(settings.project, store.read_status(instance))
        return InMemoryController(store, secrets, jobs, executor, gates=gates, wake_event=wake_event)
    from mzplan.spark.delta_storage import SparkController  # imports pyspark

    context = ExecutorContext(
        project=settings.project,
        directory=settings.directory,
        warehouse=absolute_warehouse(settings),
        former_place=former,
        packages=required_packages(store, policy),
        secrets=secrets,
        until_caught_up=until_caught_up,
    )
    return SparkController(context, store, secrets, jobs, gates=gates, wake_event=wake_event)


def absolute_warehouse(settings: ProjectSettings) -> str:
    """Return the warehouse as an absolute path or URI; relative paths start at the project's folder."""
    if "://" in settings.warehouse or settings.warehouse.startswith("file:"):
        return settings.warehouse
    return str((Path(settings.directory) / settings.warehouse).resolve())


class _InlinePool(Pool):
    """A pool that runs each task at once, in the caller's thread: a dry pass needs no concurrency."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future
