"""Starts and stops the embedded runner: a detached process on this machine, one per instance."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from mzplan.host.checkout import FOLDER, refuse_unused, runtime_file, why_unused
from mzplan.host.files import read_regular, write_durably
from mzplan.host.processes import is_alive, send_signal, started_at
from mzplan.model.codec import decode, parse_json
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.model.observed import Lease
from mzplan.model.resources import STATE_CONFIG_VARIABLE, Instance, ProjectSettings, start_command
from mzplan.runner.wake import listener_pid, runtime_folder
from mzplan.schema.description import PACKAGES, packages_of, packages_of_schemas
from mzplan.secrets.policy import POLICY_VARIABLE, Guard
from mzplan.secrets.resolved import scrub_diagnostic
from mzplan.store.leases import is_local
from mzplan.store.store import Store

log = logging.getLogger("mzplan.runner")
PACKAGES_VARIABLE = "MZPLAN_SPARK_PACKAGES"  # JSON; set by the command that starts a runner
TRIAL_VARIABLE = "MZPLAN_TRIAL"  # a pipe whose other end the command holds, and the serial to be committed
_NO_PACKAGES: Mapping[str, tuple[str, ...]] = {}
LEASE_WAIT = 120.0  # seconds for a new process to acquire its lease, as long as it is alive
LISTEN_WAIT = 10.0  # seconds for a leading runner to listen on its socket
STOP_WAIT = 45.0  # seconds for a runner to stop its queries before it is killed
KILL_WAIT = 15.0  # seconds for a killed runner to be gone


def start(
    settings: ProjectSettings,
    store: Store,
    instance: str,
    packages: Mapping[str, tuple[str, ...]] = _NO_PACKAGES,
    policy: str | None = None,
    wait: float = math.inf,
    trial: int | None = None,
) -> Lease | None:
    """Start a detached runner, unless one leads already. Return its lease once it leads and listens.

    Spark may still be starting when this returns. Returns None if the runner is alive but doesn't lead
    within `wait` seconds.

    `packages`: the jars that Spark needs in addition to the state's (see schema.description.packages_of).
    `policy`: the runner's policy file; by default the file that the environment names.
    `trial`: the serial that this process will commit. If this process exits without the commit, the runner
    stops.

    Raises MzplanError: MZ076 if `.mzplan` may belong to another user; MZ062, or the runner's own error (such
    as MZ061: no Java), if the runner exits at once.
    """
    lease = store.leases.leader(instance)
    if lease is not None:
        return lease
    refuse_unused(settings.directory)
    if runtime_folder(settings.directory) is None:
        raise error("MZ035.no-runtime-folder", folder=Path(settings.directory) / FOLDER)
    delete_failure(settings, instance)
    process = _launch(settings, instance, packages, policy, trial)
    until = time.monotonic() + min(LEASE_WAIT, wait)
    while time.monotonic() < until:
        lease = store.leases.leader(instance)
        if lease is not None:
            _await_listening(settings, store, lease, process)
            return lease
        if process.poll() is not None and store.leases.leader(instance) is None:
            raise start_error(settings, instance)
        time.sleep(0.02)
    if wait < LEASE_WAIT and process.poll() is None:
        return None
    raise start_error(settings, instance)


def _await_listening(
    settings: ProjectSettings, store: Store, lease: Lease, process: subprocess.Popen[bytes]
) -> None:
    """Wait until the runner listens, because secret values that a command sends earlier would be lost."""
    until = time.monotonic() + LISTEN_WAIT
    while listener_pid(settings, lease.instance) is None and time.monotonic() < until:
        if process.poll() is not None:
            if store.leases.leader(lease.instance) is None:
                raise start_error(settings, lease.instance)
            return  # a runner that another command started leads instead
        time.sleep(0.02)


def _launch(
    settings: ProjectSettings,
    instance: str,
    packages: Mapping[str, tuple[str, ...]],
    policy: str | None,
    trial: int | None,
) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-m",
        "mzplan",
        "-C",
        settings.directory,
        "run",
        "--instance",
        instance,
        "--no-standby",
    ]
    if settings.environment:
        command += ["--env", settings.environment]
    # `python -m` looks into the current folder first. Without PYTHONSAFEPATH, a file json.py in the project's
    # folder would replace Python's own module, in the runner and in Spark's workers.
    environment = {
        **os.environ,
        # The variables of mzplan.yaml, so that the runner finds the same store.
        **{f"MZPLAN_VAR_{name.upper()}": json.dumps(value) for name, value in settings.variables.items()},
        "PYTHONSAFEPATH": "1",
        PACKAGES_VARIABLE: json.dumps(packages),
    }
    if settings.state_config:
        environment[STATE_CONFIG_VARIABLE] = settings.state_config
    if policy := policy or os.environ.get(POLICY_VARIABLE):
        environment[POLICY_VARIABLE] = str(Path(policy).absolute())  # the runner starts in another folder
    with (
        open(runtime_file(settings, instance, "log"), "ab", opener=_open_safely) as output,
        _pipe_of_trial(environment, trial) as pipe,
    ):
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=settings.directory,
            env=environment,
            start_new_session=True,
            pass_fds=pipe,
        )


@contextmanager
def _pipe_of_trial(environment: dict[str, str], trial: int | None) -> Iterator[tuple[int, ...]]:
    """Yield the reading end of a pipe for a runner on trial. The other end closes when this process exits."""
    if trial is None:
        yield ()
        return
    pipe, _ = os.pipe()
    environment[TRIAL_VARIABLE] = f"{pipe}:{trial}"
    try:
        yield (pipe,)
    finally:
        os.close(pipe)


def stop_without_commit(store: Store, stopping: threading.Event) -> None:
    """Stop a runner on trial if the command that started it has exited without its commit.

    The command starts such a runner to validate its changes. If the command is killed, the runner must not
    keep the secret values of changes that were never committed. The pipe shows that the command has exited.
    """
    trial = os.environ.pop(TRIAL_VARIABLE, None)
    if trial is not None:
        pipe, serial = map(int, trial.split(":"))
        os.set_inheritable(pipe, False)
        threading.Thread(
            target=_await_commit, args=(pipe, serial, store, stopping), name="trial", daemon=True
        ).start()


def _await_commit(pipe: int, serial: int, store: Store, stopping: threading.Event) -> None:
    os.read(pipe, 1)  # returns once the command has ended, which closes the other end
    os.close(pipe)
    while not stopping.is_set():
        try:
            if store.read_state().serial < serial:
                log.info("stopping: the command ended without committing serial %d", serial)
                stopping.set()
            return
        except MzplanError:  # the store can't be read; it may recover soon
            stopping.wait(1.0)


def _open_safely(path: str, flags: int) -> int:
    """Open a file; refuse a symbolic link, and a pipe without a reader."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


def start_error(settings: ProjectSettings, instance: str) -> MzplanError:
    """Return why a runner never led: the error that it reported, or MZ062 with the end of its log."""
    path = runtime_file(settings, instance, "log")
    return reported_failure(settings, instance) or error(
        "MZ062.runner-not-started", instance=instance, log=_tail(path), path=path
    )


def exit_error(settings: ProjectSettings, instance: str) -> MzplanError:
    """Return why a runner stopped leading: the error that it reported, or MZ060 with the end of its log."""
    return reported_failure(settings, instance) or error(
        "MZ060.runner-vanished",
        instance=instance,
        log=_tail(runtime_file(settings, instance, "log")),
        command=start_command(Instance(name=instance, type="embedded"), settings.environment),
    )


def reported_failure(settings: ProjectSettings, instance: str) -> MzplanError | None:
    """Return the error in a runner's error file; None without a readable file."""
    try:
        diagnostics = parse_json(read_regular(_failure_file(settings, instance), follow=False))
        return MzplanError(decode(tuple[Diagnostic, ...], diagnostics))
    except (OSError, ValueError):
        return None


def delete_failure(settings: ProjectSettings, instance: str) -> None:
    """Delete the error file of an earlier runner."""
    _failure_file(settings, instance).unlink(missing_ok=True)


def _failure_file(settings: ProjectSettings, instance: str) -> Path:
    return runtime_file(settings, instance, "error.json")


def write_failure(problem: MzplanError, settings: ProjectSettings, instance: str) -> None:
    """Write why this runner exits to its error file, for the command that started it (see `start_error`)."""
    text = json.dumps([scrub_diagnostic(d).to_json() for d in problem.diagnostics])
    write_durably(_failure_file(settings, instance), text.encode(), mode=0o600)


def required_packages(store: Store, policy: Guard | None = None) -> dict[str, tuple[str, ...]]:
    """Return the jars for the committed queries, with the jars in PACKAGES_VARIABLE.

    Leave out jars that connections list and the policy doesn't.
    """
    committed = packages_of(store.read_state().resources)
    extra: dict[str, list[str]] = json.loads(os.environ.get(PACKAGES_VARIABLE) or "{}")
    names = sorted({*committed, *extra})
    found = {name: tuple(sorted({*committed.get(name, ()), *extra.get(name, ())})) for name in names}
    if policy is None or PACKAGES not in found:
        return found
    own = packages_of_schemas()
    return {**found, PACKAGES: tuple(one for one in found[PACKAGES] if one in own or _may_load(policy, one))}


def _may_load(policy: Guard, package: str) -> bool:
    try:
        policy.load("", package)
    except MzplanError:
        return False
    return True


def stop(settings: ProjectSettings, store: Store, instance: str) -> bool:
    """Stop the embedded runner and its queries. Return False if no runner runs here.

    Stops the process that listens on the runner's socket, whatever process the lease names. Kills the process
    after STOP_WAIT seconds.
    Raises MzplanError: MZ111 if the lease's process is alive on this machine but doesn't listen; MZ074 if the
    process is still there KILL_WAIT seconds after it was killed.
    """
    pid = _runner_pid(settings, store, instance)
    if pid is None:
        return False
    started = started_at(pid)
    send_signal(pid, signal.SIGTERM)
    if not _has_ended(pid, started, STOP_WAIT):
        send_signal(pid, signal.SIGKILL)
        if not _has_ended(pid, started, KILL_WAIT):
            raise _unkillable(instance, pid)
    return True


def _has_ended(pid: int, started: float, seconds: float) -> bool:
    """Wait at most `seconds` for a process to end. Return whether it has ended."""
    until = time.monotonic() + seconds
    while is_alive(pid, started):
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True


def _unkillable(instance: str, pid: int) -> MzplanError:
    return error("MZ074.unkillable", instance=instance, pid=pid, seconds=KILL_WAIT)


def _runner_pid(settings: ProjectSettings, store: Store, instance: str) -> int | None:
    """Return the process id of the runner that leads here; None without such a runner.

    Waits LISTEN_WAIT seconds for a runner that has just acquired its lease. Raises MzplanError: MZ111.
    """
    until = time.monotonic() + LISTEN_WAIT
    while True:
        pid = listener_pid(settings, instance)
        if pid is not None:
            return pid
        lease = store.leases.leader(instance)
        if lease is None or not is_local(lease):  # its runner is on another machine, or in another container
            return None
        if time.monotonic() > until:
            raise _unknown_process(settings, lease)
        time.sleep(0.05)


def _unknown_process(settings: ProjectSettings, lease: Lease) -> MzplanError:
    path = runtime_file(settings, lease.instance, "sock")
    why = why_unused(settings.directory)
    unused = f" ({FOLDER} is not used: {why})" if why else ""
    return error("MZ111.unproven-runner", pid=lease.pid, instance=lease.instance, path=path, unused=unused)


def _tail(path: Path, lines: int = 15) -> str:
    try:
        with open(path, "rb", opener=_open_safely) as file:
            file.seek(max(0, path.stat().st_size - 16384))
            text = file.read().decode(errors="replace")
    except OSError:
        return "(no log)"
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])
