"""An SSH server in the test's process: asyncssh's, with the interface of `examples.servers.SshServer`."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import asyncssh

from examples.servers.ports import HOST, free_port


class AsyncSshServer:
    """An SSH server that forwards ports for ``user``, who logs in with a key given to ``authorize``."""

    user = "tester"

    def __init__(self) -> None:
        self.port = free_port()
        self._authorized: list[asyncssh.SSHKey] = []
        self._clients: set[asyncssh.SSHServerConnection] = set()
        self._listener: asyncssh.SSHAcceptor | None = None
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self.new_host_key()

    @property
    def host_key(self) -> str:
        """The server's public key, as an ssh-tunnel connection wants it."""
        return " ".join(self._key.export_public_key().decode().split()[:2])

    def new_host_key(self) -> None:
        """Change the host key at the next start, as if another server had taken this one's place."""
        self._key = asyncssh.generate_private_key("ssh-ed25519")

    def authorize(self, *public_keys: str) -> None:
        """Accept these keys, and no others."""
        self._authorized = [asyncssh.import_public_key(key) for key in public_keys]

    def start(self) -> None:
        """Listen on the port, unless the server already listens."""
        if self._listener is None:
            self._listener = self._run(self._listen())

    def stop(self) -> None:
        """Stop the server and every connection through it at once."""
        if self._listener is not None:
            listener, self._listener = self._listener, None
            self._run(self._end(listener))

    kill = stop

    def remove_data(self) -> None:
        """Stop for good."""
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Freeze the server and every connection through it until the end of the block."""
        thaw = threading.Event()
        self._loop.call_soon_threadsafe(thaw.wait)
        try:
            yield
        finally:
            thaw.set()

    def sessions(self) -> int:
        """Return the number of connected clients."""
        return len(self._clients)

    async def _listen(self) -> asyncssh.SSHAcceptor:
        return await asyncssh.listen(
            HOST, self.port, server_factory=lambda: _Client(self), server_host_keys=[self._key]
        )

    async def _end(self, listener: asyncssh.SSHAcceptor) -> None:
        listener.close()
        await listener.wait_closed()
        for client in [*self._clients]:
            client.abort()
        while self._clients:
            await asyncio.sleep(0.01)

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)


class _Client(asyncssh.SSHServer):
    """One connection to the server."""

    def __init__(self, server: AsyncSshServer) -> None:
        self._server = server

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._connection = conn
        self._server._clients.add(conn)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server._clients.discard(self._connection)

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == self._server.user and key in self._server._authorized

    async def connection_requested(
        self, dest_host: str, dest_port: int, orig_host: str, orig_port: int
    ) -> Any:
        try:
            return await self._connection.forward_connection(dest_host, dest_port)
        except asyncssh.ChannelOpenError as problem:  # Report the reason in OpenSSH's words.
            refused = isinstance(problem.__context__, ConnectionRefusedError)
            raise asyncssh.ChannelOpenError(
                problem.code, "Connection refused" if refused else problem.reason
            ) from None
