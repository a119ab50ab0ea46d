"""A private SSH server on 127.0.0.1, through which clients reach other servers."""

from __future__ import annotations

import contextlib
import getpass
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from examples.servers.errors import ServerError
from examples.servers.pgbinaries import reachable
from examples.servers.ports import HOST, answers, free_port, require_free
from examples.servers.process import (
    Account,
    children_of,
    descendants_of,
    frozen,
    send,
    unprivileged_account,
    wait_until_gone,
)
from examples.servers.server import Server, remove_tree

_SETTINGS = {
    "ListenAddress": HOST,
    "AuthenticationMethods": "publickey",
    "UsePAM": "no",
    "StrictModes": "no",
    "PermitTTY": "no",
    "AllowTcpForwarding": "local",
    "PidFile": "none",
    "LogLevel": "VERBOSE",
}


class SshServer(Server):
    """OpenSSH's sshd, with its own host key and the public keys that ``authorize`` accepts.

    It runs as an ordinary user, and accepts only logins of that user: ``user``. Started by root, it runs as
    ``postgres`` or ``nobody``. If that user can't enter ``workdir``, the files are in a temporary folder, to
    which ``workdir/door`` is a link.
    """

    name = "ssh"

    def __init__(self, workdir: Path) -> None:
        super().__init__(workdir)
        self._account = unprivileged_account()
        self.user: str = self._account.name if self._account else _own_name()
        self.port: int = self._facts().get("port") or free_port()

    @property
    def host_key(self) -> str:
        """Return the server's public key, in the form for an ssh-tunnel connection."""
        return " ".join((self._folder / "host_key.pub").read_text().split()[:2])

    def authorize(self, *public_keys: str) -> None:
        """Accept these public keys, and no others."""
        self._write("authorized_keys", "".join(f"{key.strip()}\n" for key in public_keys))

    def new_host_key(self) -> None:
        """Make a new host key for the next start, as if another server had replaced this one."""
        for name in ("host_key", "host_key.pub"):
            (self._folder / name).unlink(missing_ok=True)
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", self._folder / "host_key"]
        subprocess.run([str(word) for word in command], check=True, stdin=subprocess.DEVNULL)
        self._give(self._folder / "host_key")

    def start(self) -> None:
        """Start the server, unless it runs, and wait until its port is open. Raises ServerError."""
        if self.pid is not None:
            return
        program = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
        if program is None:
            raise ServerError(
                "there is no sshd on this machine (Debian, Ubuntu: apt-get install openssh-server)"
            )
        require_free(self.port, "sshd")
        self._keep_facts(port=self.port)
        if not (self._folder / "host_key").exists():
            self.new_host_key()
        if not (self._folder / "authorized_keys").exists():
            self.authorize()
        settings = {
            **_SETTINGS,
            "Port": str(self.port),
            "HostKey": str(self._folder / "host_key"),
            "AuthorizedKeysFile": str(self._folder / "authorized_keys"),
        }
        self._write("sshd_config", "".join(f"{name} {value}\n" for name, value in settings.items()))
        self._process.spawn(
            [program, "-D", "-e", "-f", self._folder / "sshd_config"],
            detached=False,
            cwd=self._folder,
            account=self._account,
            when_orphaned="TERM",
        )
        self._wait_until_ready(lambda: None if answers(self.port) else "its port is not open", timeout_s=30.0)

    def stop(self) -> None:
        """Stop the server and every connection through it."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the server and every connection through it (SIGKILL)."""
        self._end(signal.SIGKILL)

    def remove_data(self) -> None:
        """Stop the server and delete its keys. Keep the log."""
        self.stop()
        remove_tree(self.workdir / "door")

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the server and every connection through it while the block runs."""
        pid = self.pid
        with frozen(pid) if pid is not None else contextlib.nullcontext():
            yield

    def sessions(self) -> int:
        """Return the number of connected clients."""
        pid = self.pid
        return len(children_of(pid)) if pid is not None else 0

    def _end(self, number: signal.Signals) -> None:
        pid = self.pid
        # Each connection has its own process, which outlives the listening process.
        sessions = children_of(pid) if pid is not None else []
        self._process.end((number, 10.0), (signal.SIGKILL, 10.0))
        for session in sessions:
            for one in reversed([session, *descendants_of(session)]):
                send(one, signal.SIGKILL)
        if not wait_until_gone(sessions, timeout_s=10.0):
            raise ServerError(f"processes of the SSH server do not end: {sessions}")

    @property
    def _folder(self) -> Path:
        """Return a folder that the server's user may enter."""
        link = self.workdir / "door"
        if link.exists():
            return link.resolve()
        link.unlink(missing_ok=True)
        if self._account is None or reachable(self.workdir):
            link.mkdir(mode=0o755)
        else:
            link.symlink_to(tempfile.mkdtemp(prefix="mzplan-ssh-"))
        self._give(link.resolve())
        return link.resolve()

    def _write(self, name: str, text: str) -> None:
        path = self._folder / name
        path.write_text(text)
        self._give(path)

    def _give(self, path: Path) -> None:
        account: Account | None = self._account
        if account is not None:
            shutil.chown(path, account.uid, account.gid)


def _own_name() -> str:
    return getpass.getuser()
