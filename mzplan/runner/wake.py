"""The wake-up socket of an embedded runner: `.mzplan/<instance>.sock`, mode 0600.

A message on it wakes the runner. The message may carry values of `${env:…}` references (see
ReceivedSecretValues), and the servers to which the next commit sends secrets. Only the runner's own user can
write to the socket, and that user can read everything that the runner can.

Correctness never depends on the socket. A runner that isn't woken polls every half second, and a runner
reports a missing value. `mzplan down` relies on the fact that the process that listens on the socket is the
project's runner.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from mzplan.host.checkout import FOLDER, runtime_file, why_foreign, why_unused
from mzplan.host.files import make_private_folder
from mzplan.model.resources import ProjectSettings
from mzplan.secrets.policy import Flow, SecretValues

log = logging.getLogger("mzplan.wake")
_LIMIT = 16 << 20  # bytes of one message
_TIMEOUT = 2.0  # seconds
_PAUSE = 1.0  # seconds to wait after a failed `accept`
_PEER = struct.Struct("3i")  # pid, user, group


def runtime_folder(directory: str | Path) -> Path | None:
    """Create the project's `.mzplan/` for its owner only, and return its path.

    Returns None if the folder isn't used or can't be made. A runner needs it only for wake-up calls and for
    its error file.
    """
    folder = Path(directory).resolve() / FOLDER
    try:
        why = why_unused(str(directory))
        if not why:
            make_private_folder(folder)
    except OSError as problem:
        why = problem.strerror or str(problem)
    if why:
        log.warning(
            "%s is not used: %s. Commands can't wake this runner: it polls every half second", FOLDER, why
        )
    return None if why else folder


def _is_own_socket(path: Path) -> bool:
    """Whether the path is a socket of this user. Commands send secret values only to such a socket."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid()


@contextlib.contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """Yield a path to the same file that fits into a socket address (about 100 bytes)."""
    if len(os.fsencode(path)) < 100:
        yield str(path)
        return
    handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{path.name}"
    finally:
        os.close(handle)


class WakeListener:
    """Receives wake-up calls on a thread of its own.

    `receive`: called with the secret values of each message; returns the number for the answer.
    `event`: set after each message.
    """

    def __init__(self, path: Path, receive: Callable[[SecretValues], int], event: threading.Event):
        self.path = path
        self.receive = receive
        self.event = event
        self._socket: socket.socket | None = None
        self._file: os.stat_result | None = None

    def start(self) -> None:
        """Start to listen. If that fails, log a warning; the runner then only polls."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.path.unlink(missing_ok=True)
            with _short_path(self.path) as address:
                listener.bind(address)
                Path(address).chmod(0o600)  # before `listen`: until then, nobody can connect
            self._file = self.path.lstat()
            listener.listen(16)
        except OSError as problem:
            log.warning("no wake-up socket (%s): polling every half second instead", problem)
            listener.close()
            return
        self._socket = listener
        threading.Thread(target=self._serve, name="wake", daemon=True).start()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            with contextlib.suppress(OSError):  # keep the socket of a successor
                if self._file is not None and os.path.samestat(self.path.lstat(), self._file):
                    self.path.unlink(missing_ok=True)

    def _serve(self) -> None:
        assert self._socket is not None
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError as problem:
                if self._socket.fileno() < 0:
                    return  # closed
                log.warning("can't accept a wake-up call: %s", problem)  # such as too many open files
                time.sleep(_PAUSE)
                continue
            # No message may end the thread. JSON that is nested too deeply raises RecursionError.
            expected = (OSError, ValueError, TypeError, AttributeError, RecursionError)
            with connection, contextlib.suppress(*expected):
                connection.settimeout(_TIMEOUT)
                with connection.makefile("rb") as file:
                    message = json.loads(file.readline(_LIMIT))
                number = self.receive(
                    SecretValues(
                        values={str(k): str(v) for k, v in message.get("env", {}).items()},
                        flows=[
                            Flow(str(name), tuple(map(str, way))) for name, way in message.get("flows", ())
                        ],
                        proposal=str(message.get("proposal", "")),
                        state=str(message.get("state", "")),
                        retry_failed=message.get("again") is True,
                    )
                )
                self.event.set()
                connection.sendall(b"ok %d\n" % number)


def send_wake(settings: ProjectSettings, instance: str, secret_values: SecretValues) -> int | None:
    """Wake a runner of this machine, and send it the secret values.

    Returns the `secret_values_in_use` that its Status shows once it uses the values. Returns None if no
    runner listens; a runner still polls by itself.
    """
    message = {
        "wake": True,
        "env": dict(secret_values.values),
        "flows": list(secret_values.flows),
        "proposal": secret_values.proposal,
        "state": secret_values.state,
        "again": secret_values.retry_failed,
    }
    try:
        with _connection(settings, instance) as client:
            client.sendall(json.dumps(message).encode() + b"\n")
            word, _, number = client.recv(32).strip().partition(b" ")
            return int(number) if word == b"ok" else None
    except (OSError, ValueError):
        return None


def listener_pid(settings: ProjectSettings, instance: str) -> int | None:
    """Return the process id of the runner that listens on this folder's socket; None without one.

    The id comes from the kernel, and only this user can have made the socket.
    """
    try:
        with _connection(settings, instance) as client:
            peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    except OSError:
        return None
    pid, user, _ = _PEER.unpack(peer)
    return pid if pid > 0 and user == os.geteuid() else None  # 0: the process is in another container


@contextlib.contextmanager
def _connection(settings: ProjectSettings, instance: str) -> Iterator[socket.socket]:
    """Yield a connection to the instance's socket. Raises OSError if no process of this user listens."""
    path = runtime_file(settings, instance, "sock")
    if why_foreign(settings.directory) or not _is_own_socket(path):
        raise OSError
    with _short_path(path) as address, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_TIMEOUT)
        client.connect(address)
        yield client
