"""Serves the pages until it is interrupted."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from starlette.types import ASGIApp

from mzplan.features.ui.access import Access, AccessGuard
from mzplan.features.ui.app import make_app
from mzplan.features.ui.connections import MAX_CONNECTIONS, Connection
from mzplan.features.ui.environments import Environments
from mzplan.features.ui.follower import Follower
from mzplan.features.ui.overview import OverviewReader
from mzplan.model.diagnostics import error, refusal, usage_error
from mzplan.operations.project import Project

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
        raise refusal(
            "MZ186",
            f"Others can reach {host}, and mzplan ui requires no token",
            "The pages show all names, server addresses and errors of the project.",
            "omit --host, or create a token: (umask 077; openssl rand -hex 24 > ui.token), then "
            "--token-file ui.token.",
        )
    parts = urlsplit(url or "")
    if url and (parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/")):
        raise usage_error(
            f"--url {url} is not the address of a server",
            hint="write https://mzplan.example.com, without a path: the pages are at the root.",
        )
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
        raise error("MZ188", f"The pages can't be served at {host}, port {port}", f"{why}.", hint) from None
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
    return error(
        "MZ186",
        "There is no valid token",
        why,
        "(umask 077; openssl rand -hex 24 > ui.token), then --token-file ui.token.",
    )
