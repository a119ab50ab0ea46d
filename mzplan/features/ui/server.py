"""Serves the pages of one or several environments until it is interrupted. A cookie names the environment.

Idle connections are closed in time, and earlier if the server runs out of places. uvicorn times out a
connection after an answer, but not before or during a request. All this happens before any credentials are
checked.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from urllib.parse import urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from mzplan.features.ui.access import Access, AccessGuard
from mzplan.features.ui.app import make_app
from mzplan.features.ui.follower import Follower
from mzplan.features.ui.frame import document, environment_links
from mzplan.features.ui.overview import OverviewReader
from mzplan.model.diagnostics import MzplanError, error
from mzplan.operations.project import Project
from mzplan.render.diagnostics import render_diagnostics
from mzplan.render.html import element

HEADER_SECONDS = 10.0  # seconds within which a request's head must arrive
MAX_PER_CLIENT = 64  # connections of one address: a browser has six
MAX_CONNECTIONS = 200  # connections in total


class Connection(H11Protocol):
    """A connection of uvicorn.

    If its client has no place left, the client's oldest waiting connection is closed. If the server has no
    place left, the oldest waiting connection of all clients is closed."""

    waiting_since = 0.0  # the loop's time

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.waiting_since = self.loop.time()
        self._check_later(HEADER_SECONDS)
        others = [
            connection
            for connection in self.connections
            if isinstance(connection, Connection) and connection is not self
        ]
        from_client = [connection for connection in others if connection.network == self.network]
        for group, limit in ((from_client, MAX_PER_CLIENT), (others, MAX_CONNECTIONS - 1)):
            if len(group) >= limit:
                candidates = [connection for connection in group if connection.is_waiting]
                if not candidates and group is others:
                    return  # all are busy: uvicorn answers 503
                min(candidates, key=lambda connection: connection.waiting_since, default=self).close()
                return

    @property
    def network(self) -> str:
        """The client's address; for IPv6 its first half, which identifies the network."""
        try:
            address = ip_address((self.client or ("",))[0])
        except ValueError:
            return ""
        return address.exploded[:19] if isinstance(address, IPv6Address) else str(address)

    @property
    def is_waiting(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def close(self) -> None:
        """Close the connection; it no longer counts."""
        self.connections.discard(self)
        self.transport.abort()

    def on_response_complete(self) -> None:
        self.waiting_since = self.loop.time()
        super().on_response_complete()

    def _check_later(self, seconds: float) -> None:
        self.loop.call_later(seconds, self._check)

    def _check(self) -> None:
        if self.transport.is_closing():
            return
        remaining = (
            self.waiting_since + HEADER_SECONDS - self.loop.time() if self.is_waiting else HEADER_SECONDS
        )
        if remaining <= 0:
            self.close()
        else:
            self._check_later(remaining)


COOKIE = "mzplan_environment"
_PATH = "/environment/"


class Environments:
    """The pages of each environment in `names`. `open_app` opens an environment's pages on first use.

    Without a valid cookie, the environment is `first`. Runs behind the AccessGuard: the cookie only selects
    an environment, and permits nothing."""

    def __init__(self, first: str, names: Sequence[str], open_app: Callable[[str], ASGIApp]):
        self._first, self._names, self._open_app = first, names, open_app
        self._apps: dict[str, ASGIApp] = {}
        self._opening = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope["path"])
        chosen = path.removeprefix(_PATH) if path.startswith(_PATH) else ""
        if chosen in self._names:
            answer: Response = RedirectResponse("/", 303)
            answer.set_cookie(COOKIE, chosen, httponly=True, samesite="strict")
            return await answer(scope, receive, send)
        name = cookie_parser(Headers(scope=scope).get("cookie", "")).get(COOKIE, "")
        app = await run_in_threadpool(self._app, name if name in self._names else self._first)
        return await app(scope, receive, send)

    def _app(self, name: str) -> ASGIApp:
        with self._opening:
            if name not in self._apps:
                try:
                    self._apps[name] = self._open_app(name)
                except MzplanError as problem:  # the next request tries again
                    report = element("pre", render_diagnostics(problem.diagnostics, False), class_="box told")
                    links = environment_links(self._names, name)
                    body = element("body", element("header", links), element("main", report))
                    return HTMLResponse(document("Problem", (), body), 503)
            return self._apps[name]


TOKEN_VARIABLE = "MZPLAN_UI_TOKEN"
MIN_TOKEN = 16  # characters of a token
_MAX_TOKEN = 4096  # bytes of the token file


def read_token(file: str | None) -> str:
    """Return the token of a file or the environment; "" without one. Raises MzplanError MZ186."""
    where = file or f"${TOKEN_VARIABLE}"
    if file is not None:
        try:
            with Path(file).open("rb") as stream:
                text = stream.read(_MAX_TOKEN).decode(errors="replace").strip()
        except OSError as problem:
            raise _no_token(f"{file} can't be read: {problem.strerror or problem}.") from None
    else:
        text = os.environ.get(TOKEN_VARIABLE, "").strip()
        if not text:
            return ""
    if len(text) < MIN_TOKEN or not (text.isascii() and text.isprintable()) or " " in text:
        raise _no_token(
            f"The token in {where} needs at least {MIN_TOKEN} printable ASCII characters, without spaces."
        )
    return text


def access_for(host: str, token: str, url: str | None) -> Access:
    """Return the access rules for a server at `host`.

    Raises MzplanError MZ186 if others can reach the address and there is no token, and a usage error for an
    invalid `url`."""
    if not token and not _is_loopback(host):
        raise error("MZ186.others-reach", host=host)
    parts = urlsplit(url or "")
    if url and (parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/")):
        raise error("MZ070.url-not", url=url)
    return Access(token=token, host=parts.hostname or "", is_secure=parts.scheme == "https")


def serve(
    open_project: Callable[[str], Project],
    host: str,
    port: int,
    access: Access,
    on_start: Callable[[str, int], None],
) -> None:
    """Serve until the process is interrupted (KeyboardInterrupt).

    Raises MzplanError MZ188 if it can't serve.

    `open_project` returns the project in an environment; "" is the command's own environment. With a token,
    visitors see only the command's own environment. Without a token, users of this machine can choose any
    environment. `on_start` is called with address and port once the server accepts connections."""
    import uvicorn

    project = open_project("")
    names = () if access.token else project.settings.environments
    followers: list[Follower] = []

    def pages(name: str) -> ASGIApp:
        chosen = project if name == project.settings.environment else open_project(name)
        chosen = replace(chosen, settings=replace(chosen.settings, environments=names))
        followers.append(stack.enter_context(Follower(OverviewReader(chosen))))
        return make_app(chosen, followers[-1], access)

    with _listening(host, port) as listener, ExitStack() as stack:
        config = uvicorn.Config(
            AccessGuard(Environments(project.settings.environment, names, pages), access),
            loop="asyncio",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_graceful_shutdown=2,
        )

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                on_start(_address(listener), listener.getsockname()[1])

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                for follower in followers:
                    follower.end()
                await super().shutdown(sockets)

        Server(config).run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(128)
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as problem:
        is_in_use = isinstance(problem, OSError) and problem.errno == errno.EADDRINUSE
        hint = (
            "name another port (--port 0 picks a free one)."
            if is_in_use
            else "name an address of this machine."
        )
        why = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        raise error("MZ188.pages-cannot", host=host, port=port, why=why, how=hint) from None
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _no_token(why: str) -> Exception:
    return error("MZ186.no-valid", why=why)
