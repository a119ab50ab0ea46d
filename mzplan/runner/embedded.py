"""Starting and stopping the embedded runner: a detached process of this machine, one per instance."""

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

from mzplan.host.files import read_regular, write_durably
from mzplan.host.local_folder import FOLDER, refuse_unused, runtime_file, why_unused
from mzplan.host.processes import is_alive, send, started_at
from mzplan.model.codec import decode, parse_json
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.model.observed import Lease
from mzplan.model.resources import STATE_CONFIG_VARIABLE, Instance, ProjectSettings, start_command
from mzplan.runner.wake import listening, runtime_folder
from mzplan.schema.description import packages_of
from mzplan.secrets.policy import POLICY_VARIABLE
from mzplan.secrets.resolved import scrub_diagnostic
from mzplan.store.leases import is_local
from mzplan.store.store import Store

log = logging.getLogger("mzplan.runner")
PACKAGES_VARIABLE = "MZPLAN_SPARK_PACKAGES"  # JSON, from the command that starts a runner
TRIAL_VARIABLE = "MZPLAN_TRIAL"  # a pipe that this command holds open, and the serial that it is to commit
_NOTHING: Mapping[str, tuple[str, ...]] = {}
LEASE_WAIT = 120.0  # seconds for a new process to take its lease, as long as it lives
LISTEN_WAIT = 10.0  # seconds for a runner that leads to listen on its socket
STOP_WAIT = 45.0  # seconds for a runner to stop its queries before it is killed


def start(
    settings: ProjectSettings,
    store: Store,
    instance: str,
    packages: Mapping[str, tuple[str, ...]] = _NOTHING,
    policy: str | None = None,
    wait: float = math.inf,
    trial: int | None = None,
) -> Lease | None:
    """Start a runner detached, unless one leads; returns once it leads and listens (Spark may still be
    starting), None where it lives and does not lead within so many seconds.
    `packages`: what its Spark will need (see schema.description.packages_of), beside what the state needs.
    `policy`: the file of its policy, by default the one that the environment names.
    `trial`: the serial that this process is to commit: where it ends without, so does the runner.

    Raises MZ076 where `.mzplan` may be somebody else's, MZ062 (or what the runner itself reported, such as
    MZ061: no Java) when it ends at once.
    """
    lease = store.leases.leader(instance)
    if lease is not None:
        return lease
    refuse_unused(settings.directory)
    if runtime_folder(settings.directory) is None:
        raise _unwritable(settings.directory)
    forget_failure(settings, instance)
    process = _launch(settings, instance, packages, policy, trial)
    until = time.monotonic() + min(LEASE_WAIT, wait)
    while time.monotonic() < until:
        lease = store.leases.leader(instance)
        if lease is not None:
            _await_listening(settings, store, lease, process)
            return lease
        if process.poll() is not None and store.leases.leader(instance) is None:
            raise failure(settings, instance)
        time.sleep(0.02)
    if wait < LEASE_WAIT and process.poll() is None:
        return None
    raise failure(settings, instance)


def _await_listening(
    settings: ProjectSettings, store: Store, lease: Lease, process: subprocess.Popen[bytes]
) -> None:
    """What a command hands to a runner that does not listen yet never arrives."""
    until = time.monotonic() + LISTEN_WAIT
    while listening(settings, lease.instance) is None and time.monotonic() < until:
        if process.poll() is not None:
            if store.leases.leader(lease.instance) is None:
                raise failure(settings, lease.instance)
            return  # another command has started one elsewhere
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
    # Without it, a file json.py in the project's folder would be imported for Python's own, here and in
    # Spark's workers: `python -m` looks into the current folder first.
    environment = {
        **os.environ,
        **_variables(settings),
        "PYTHONSAFEPATH": "1",
        PACKAGES_VARIABLE: json.dumps(packages),
    }
    if settings.state_config:
        environment[STATE_CONFIG_VARIABLE] = settings.state_config
    if policy := policy or os.environ.get(POLICY_VARIABLE):
        environment[POLICY_VARIABLE] = str(Path(policy).absolute())  # it starts in another folder
    with (
        open(runtime_file(settings, instance, "log"), "ab", opener=_own) as output,
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
    """The end of a pipe for a runner that is on trial: the other end closes with this process, however that
    ends."""
    if trial is None:
        yield ()
        return
    pipe, _ = os.pipe()
    environment[TRIAL_VARIABLE] = f"{pipe}:{trial}"
    try:
        yield (pipe,)
    finally:
        os.close(pipe)


def end_with_trial(store: Store, stopping: threading.Event) -> None:
    """Of a runner that a command has started to validate what it is about to commit: stop once that command
    has ended and not committed, as its kill can't be told from here. This process has the values of what was
    never committed."""
    given = os.environ.pop(TRIAL_VARIABLE, None)
    if given is not None:
        pipe, serial = map(int, given.split(":"))
        os.set_inheritable(pipe, False)
        threading.Thread(
            target=_await_commit, args=(pipe, serial, store, stopping), name="trial", daemon=True
        ).start()


def _await_commit(pipe: int, serial: int, store: Store, stopping: threading.Event) -> None:
    os.read(pipe, 1)  # returns once nobody holds the other end
    os.close(pipe)
    while not stopping.is_set():
        try:
            if store.read_state().serial < serial:
                log.info("the command that started this runner has ended, and serial %d is not there", serial)
                stopping.set()
            return
        except MzplanError:  # of the store, which may be back soon
            stopping.wait(1.0)


def _variables(settings: ProjectSettings) -> dict[str, str]:
    """What mzplan.yaml was filled in with, for the runner's environment: it must find the same store."""
    return {f"MZPLAN_VAR_{name.upper()}": json.dumps(value) for name, value in settings.variables.items()}


def _own(path: str, flags: int) -> int:
    """Open a file, unless it is a link or a pipe that nobody reads."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)


def _unwritable(directory: str) -> MzplanError:
    return error(
        "MZ035",
        f"{Path(directory) / FOLDER} can't be made",
        "The log of the runner is to be in it. Nothing was started.",
        "correct the folder's permissions.",
    )


def failure(settings: ProjectSettings, instance: str) -> MzplanError:
    """Why a runner has not come to lead: what it left behind for people, or the end of its log."""
    path = runtime_file(settings, instance, "log")
    return reported_failure(settings, instance) or error(
        "MZ062",
        f"The runner of instance {instance} did not start",
        f"The end of its log:\n{_tail(path)}",
        f"read {path}, then run the command again.",
    )


def ended(settings: ProjectSettings, instance: str) -> MzplanError:
    """Why a runner that has led leads no more: what it left behind for people, or the end of its log."""
    return reported_failure(settings, instance) or error(
        "MZ060",
        f"The runner of instance {instance} has ended",
        "It gave no reason, as a process that is killed or runs out of memory. The end of its log:\n"
        f"{_tail(runtime_file(settings, instance, 'log'))}",
        f"start it again: {start_command(Instance(name=instance, type='embedded'), settings.environment)}.",
    )


def reported_failure(settings: ProjectSettings, instance: str) -> MzplanError | None:
    """What a runner has left behind for people, if it has."""
    try:
        diagnostics = parse_json(read_regular(_failure_file(settings, instance), follow=False))
        return MzplanError(decode(tuple[Diagnostic, ...], diagnostics))
    except (OSError, ValueError):
        return None


def forget_failure(settings: ProjectSettings, instance: str) -> None:
    """What an earlier runner has left says nothing of the next one."""
    _failure_file(settings, instance).unlink(missing_ok=True)


def _failure_file(settings: ProjectSettings, instance: str) -> Path:
    return runtime_file(settings, instance, "error.json")


def leave_failure(problem: MzplanError, settings: ProjectSettings, instance: str) -> None:
    """Why this runner ends, for the command that has started it (see `failure`)."""
    text = json.dumps([scrub_diagnostic(d).to_json() for d in problem.diagnostics])
    write_durably(_failure_file(settings, instance), text.encode(), mode=0o600)


def packages_needed(store: Store) -> dict[str, tuple[str, ...]]:
    """The jars for what is committed, and for what the command that has started us is about to commit."""
    committed = packages_of(store.read_state().resources)
    given: dict[str, list[str]] = json.loads(os.environ.get(PACKAGES_VARIABLE) or "{}")
    names = sorted({*committed, *given})
    return {name: tuple(sorted({*committed.get(name, ()), *given.get(name, ())})) for name in names}


def stop(settings: ProjectSettings, store: Store, instance: str) -> bool:
    """Ask the embedded runner to stop its queries and end; False when none runs here. It is who listens on
    the runner's socket: whoever can write the store may name any process in a lease. Raises MZ111 where a
    lease names one that lives here, and does not."""
    pid = _running(settings, store, instance)
    if pid is None:
        return False
    started = started_at(pid)
    send(pid, signal.SIGTERM)
    until = time.monotonic() + STOP_WAIT
    while is_alive(pid, started):
        if time.monotonic() > until:
            send(pid, signal.SIGKILL)
        time.sleep(0.05)
    return True


def _running(settings: ProjectSettings, store: Store, instance: str) -> int | None:
    """The process of the runner that leads here, None when there is none. One that has just taken its lease
    is given LISTEN_WAIT to listen. Raises MZ111."""
    until = time.monotonic() + LISTEN_WAIT
    while True:
        pid = listening(settings, instance)
        if pid is not None:
            return pid
        lease = store.leases.leader(instance)
        if lease is None or not is_local(lease):  # of another machine, or container
            return None
        if time.monotonic() > until:
            raise _unknown(settings, lease)
        time.sleep(0.05)


def _unknown(settings: ProjectSettings, lease: Lease) -> MzplanError:
    path = runtime_file(settings, lease.instance, "sock")
    why = why_unused(settings.directory)
    unused = f" ({FOLDER} is not used: {why})" if why else ""
    return error(
        "MZ111",
        f"Process {lease.pid} is not known to be the runner of instance {lease.instance}",
        f"The lease names it, and it lives on this machine, but it does not listen at {path}{unused}. It was "
        "not stopped.",
        f"run mzplan down in the folder that started it; if it was this one, inspect the process (ps -fp "
        f"{lease.pid}), and end it: kill -TERM {lease.pid}",
    )


def _tail(path: Path, lines: int = 15) -> str:
    try:
        with open(path, "rb", opener=_own) as file:
            file.seek(max(0, path.stat().st_size - 16384))
            text = file.read().decode(errors="replace")
    except OSError:
        return "(no log)"
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])
