"""The wake-up socket of an embedded runner: `.mzplan/<instance>.sock`, mode 0600.

It carries "look now", values of `${env:…}` references (see ReceivedSecretValues), and where a command that is
about to commit sends secrets: whoever may write to it is the runner's own user, who may read whatever the
runner may. Correctness never depends on it: a runner that is not woken looks every half second, and one that
lacks a value says so. Who listens there is the runner of this project: what `mzplan down` goes by.
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
from collections.abc import Callable, Iterator
from pathlib import Path

from mzplan.host.files import make_private_folder
from mzplan.host.local_folder import FOLDER, runtime_file, why_foreign, why_unused
from mzplan.model.resources import ProjectSettings
from mzplan.secrets.policy import Flow, SecretValues

log = logging.getLogger("mzplan.wake")
_LIMIT = 16 << 20  # bytes of one message
_TIMEOUT = 2.0  # seconds
_PEER = struct.Struct("3i")  # pid, user, group


def runtime_folder(directory: str | Path) -> Path | None:
    """`.mzplan/` of a project, only for its owner; None where it is not used, or can't be made: a runner
    needs it only to be woken, and to say why it has ended."""
    folder = Path(directory).resolve() / FOLDER
    try:
        why = why_unused(str(directory))
        if not why:
            make_private_folder(folder)
    except OSError as problem:
        why = problem.strerror or str(problem)
    if why:
        log.warning(
            "%s is not used: %s. Nobody can wake this runner: it looks every half second", FOLDER, why
        )
    return None if why else folder


def _is_own_socket(path: Path) -> bool:
    """Whether nobody else listens there: values of secrets are sent to it."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid()


@contextlib.contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """A path to the same file that fits a socket address (about 100 bytes), however deep the project is."""
    if len(os.fsencode(path)) < 100:
        yield str(path)
        return
    handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{path.name}"
    finally:
        os.close(handle)


class WakeListener:
    """Takes wake-up calls on a thread of its own. `receive` takes what comes with them, and numbers it."""

    def __init__(self, path: Path, receive: Callable[[SecretValues], int], event: threading.Event):
        self.path = path
        self.receive = receive
        self.event = event
        self._socket: socket.socket | None = None
        self._file: os.stat_result | None = None

    def start(self) -> None:
        """Listen; where that is not possible the runner simply polls."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.path.unlink(missing_ok=True)
            before = os.umask(0o177)
            try:
                with _short_path(self.path) as address:
                    listener.bind(address)
                self._file = self.path.lstat()
            finally:
                os.umask(before)
            listener.listen(16)
        except OSError as problem:
            log.warning("no wake-up socket (%s): looking every half second instead", problem)
            listener.close()
            return
        self._socket = listener
        threading.Thread(target=self._serve, name="wake", daemon=True).start()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            with contextlib.suppress(OSError):  # a successor's stays
                if self._file is not None and os.path.samestat(self.path.lstat(), self._file):
                    self.path.unlink(missing_ok=True)

    def _serve(self) -> None:
        assert self._socket is not None
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # closed
            # Whatever somebody sends must not end the thread (nested too deeply: RecursionError).
            unfit = (OSError, ValueError, TypeError, AttributeError, RecursionError)
            with connection, contextlib.suppress(*unfit):
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
                        again=message.get("again") is True,
                    )
                )
                self.event.set()
                connection.sendall(b"ok %d\n" % number)


def send_wake(settings: ProjectSettings, instance: str, secret_values: SecretValues) -> int | None:
    """Wake a runner of this machine. Returns what its Status will have as
    `secret_values_in_use` once it uses the values, None when nobody listens: it will look by itself."""
    message = {
        "wake": True,
        "env": dict(secret_values.values),
        "flows": list(secret_values.flows),
        "proposal": secret_values.proposal,
        "state": secret_values.state,
        "again": secret_values.again,
    }
    try:
        with _connected(settings, instance) as client:
            client.sendall(json.dumps(message).encode() + b"\n")
            word, _, number = client.recv(32).strip().partition(b" ")
            return int(number) if word == b"ok" else None
    except (OSError, ValueError):
        return None


def listening(settings: ProjectSettings, instance: str) -> int | None:
    """The process that leads this instance from this folder, as the kernel knows it: who listens on the
    socket that only this user can have made there. None when nobody does."""
    try:
        with _connected(settings, instance) as client:
            peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    except OSError:
        return None
    pid, user, _ = _PEER.unpack(peer)
    return pid if pid > 0 and user == os.geteuid() else None  # 0: in another container


@contextlib.contextmanager
def _connected(settings: ProjectSettings, instance: str) -> Iterator[socket.socket]:
    """The socket of a runner of this machine, if it is our own. Raises OSError where nobody listens."""
    path = runtime_file(settings, instance, "sock")
    if why_foreign(settings.directory) or not _is_own_socket(path):
        raise OSError
    with _short_path(path) as address, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_TIMEOUT)
        client.connect(address)
        yield client
