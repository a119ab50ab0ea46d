"""Local ports that forward through SSH servers.

A forward listens on 127.0.0.1, on a port that the system chooses. Each connection to the port becomes a
channel of one SSH connection. Forwards through the same servers share that SSH connection. If it is lost, the
next use opens another one, so the port stays the same while an SSH server restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from mzplan.connectors.network.ssh import OPEN_TIMEOUT_S, Hops, TunnelError, connect_hop

T = TypeVar("T")

IDLE_S = 60.0
"""An unused forward without connections closes after this many seconds."""

_CHUNK = 1 << 18


class Forwards:
    """The forwards of one process, served by its own thread. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._chains: dict[Hops, _HopChain] = {}
        self._forwards: dict[tuple[Hops, str, int], _Forward] = {}

    @contextlib.contextmanager
    def to(self, hops: Hops, host: str, port: int) -> Iterator[int]:
        """Yield a port of 127.0.0.1 that forwards to `host` and `port`, as the last hop resolves them.

        Raises TunnelError if the SSH servers refuse or don't answer. Doesn't check whether the target
        answers.
        """
        importlib.import_module("asyncssh")  # before the time limit begins
        try:
            forward = self._run(self._open(hops, host, port))
        except TimeoutError:
            raise TunnelError(hops[-1], "unreachable", "no answer in time") from None
        try:
            yield forward.port
        finally:
            with self._lock:
                if self._loop is not None:
                    self._loop.call_soon_threadsafe(forward.release)

    def problem(self, hops: Hops, host: str, port: int) -> TunnelError | None:
        """Return why the last connection to this forward failed, or None if it didn't."""
        forward = self._forwards.get((hops, host, port))
        return forward.problem if forward is not None else None

    def close(self) -> None:
        """Close all forwards. New ones can still be opened."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(self._close(), loop).result(OPEN_TIMEOUT_S)
            loop.call_soon_threadsafe(loop.stop)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._serve, args=(self._loop,), name="ssh", daemon=True).start()
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result()

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        tidying = loop.create_task(self._tidy())
        loop.run_forever()
        tidying.cancel()
        loop.run_until_complete(asyncio.gather(tidying, return_exceptions=True))
        loop.close()

    # ── run in the loop's thread

    async def _open(self, hops: Hops, host: str, port: int) -> _Forward:
        forward = self._forwards.get((hops, host, port))
        if forward is None:
            chain = self._chains.setdefault(hops, _HopChain(hops))
            forward = self._forwards[hops, host, port] = _Forward(chain, host, port)
        forward.users += 1
        try:
            # The limit is in here: a limit on the waiting thread could expire just after this has succeeded,
            # and then nobody would release the forward.
            async with asyncio.timeout((len(hops) + 1) * OPEN_TIMEOUT_S):
                await forward.chain.connect()
                await forward.listen()
        except BaseException:
            forward.release()
            raise
        return forward

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(IDLE_S / 6)
            idle = [key for key, forward in self._forwards.items() if forward.is_idle()]
            for key in idle:
                self._forwards.pop(key).close()
            used = {hops for hops, _, _ in self._forwards}
            for hops in self._chains.keys() - used:
                self._chains.pop(hops).close()

    async def _close(self) -> None:
        for forward in self._forwards.values():
            forward.close()
        for chain in self._chains.values():
            chain.close()
        self._forwards.clear()
        self._chains.clear()


class _HopChain:
    """One SSH connection through all hops. After it is lost, the next use opens another one."""

    def __init__(self, hops: Hops):
        self._hops = hops
        self._connections: list[Any] = []
        self._making = asyncio.Lock()

    async def connect(self) -> Any:
        """Return the connection to the last hop. Raises TunnelError."""
        async with self._making:
            if not self._connections or any(connection.is_closed() for connection in self._connections):
                self.close()
                try:
                    for hop in self._hops:
                        outer = self._connections[-1] if self._connections else None
                        self._connections.append(await connect_hop(hop, outer))
                except BaseException:
                    self.close()  # otherwise the next call would return the connection to an earlier hop
                    raise
            return self._connections[-1]

    async def open(self, host: str, port: int) -> tuple[Any, Any]:
        """Return a channel to the target. Raises TunnelError."""
        import asyncssh

        hop = self._hops[-1]
        for attempt in (1, 2):
            connection = await self.connect()
            try:
                opening = connection.open_connection(host, port, encoding=None)
                channel: tuple[Any, Any] = await asyncio.wait_for(opening, OPEN_TIMEOUT_S)
                return channel
            except asyncssh.ChannelOpenError as problem:
                # asyncssh notices a lost connection only now.
                if attempt == 2 or not connection.is_closed():
                    text = f"it can't reach {host}:{port}: {problem.reason}"
                    raise TunnelError(hop, "target", text) from None
            except TimeoutError:
                connection.abort()  # the server or the target's network is frozen
                text = f"it didn't connect to {host}:{port} within {OPEN_TIMEOUT_S:.0f} s"
                raise TunnelError(hop, "target", text) from None
        raise AssertionError("the second attempt returns or raises")

    def close(self) -> None:
        for connection in reversed(self._connections):
            connection.abort()
        self._connections = []


class _Forward:
    """A listening port, and the connections through it."""

    def __init__(self, chain: _HopChain, host: str, port: int):
        self.chain = chain
        self.users = 0
        self.used_at = time.monotonic()
        self.problem: TunnelError | None = None
        self._target = (host, port)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._starting = asyncio.Lock()

    @property
    def port(self) -> int:
        assert self._server is not None, "it listens"
        return int(self._server.sockets[0].getsockname()[1])

    async def listen(self) -> None:
        async with self._starting:
            if self._server is None:
                self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    def release(self) -> None:
        self.users -= 1
        self.used_at = time.monotonic()

    def is_idle(self) -> bool:
        return not self.users and not self._tasks and time.monotonic() - self.used_at > IDLE_S

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            far_reader, far_writer = await self.chain.open(*self._target)
            self.problem = None
            await _relay(_pump(reader, far_writer), _pump(far_reader, writer))
            far_writer.close()
        except TunnelError as problem:
            self.problem = problem
        except asyncio.CancelledError:
            pass  # the forward was closed
        finally:
            self._tasks.discard(task)
            self.used_at = time.monotonic()
            writer.close()


async def _pump(reader: Any, writer: Any) -> None:
    """Copy until the reader ends, then end the writer."""
    import asyncssh

    with contextlib.suppress(OSError, EOFError, asyncssh.Error):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


async def _relay(outbound: Awaitable[None], inbound: Awaitable[None]) -> None:
    """Copy in both directions until the far side ends, even if the near side ends first."""
    sending = asyncio.ensure_future(outbound)
    try:
        await inbound
    finally:
        sending.cancel()


def remote_forward(hops: Hops, host: str, port: int) -> Callable[[], AbstractContextManager[int]]:
    """Return a function that opens a forward on another machine, for the duration of a `with` block."""

    @contextlib.contextmanager
    def open_there() -> Iterator[int]:
        forwards = Forwards()
        try:
            with forwards.to(hops, host, port) as local:
                yield local
        finally:
            forwards.close()

    return open_there
