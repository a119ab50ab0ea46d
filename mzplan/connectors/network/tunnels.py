"""ssh-tunnel connections: how a connection reaches its server through them, and their errors."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedConnection
from mzplan.connectors.network.ssh import Forwards, Hop, TunnelError, remote_forward
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.secrets.files import read_pem_text

if TYPE_CHECKING:
    from mzplan.connectors.network.ssh import Way, Why

LOOPBACK = "127.0.0.1"
ROLE = "ssh_tunnel"
"""The property of a connection that names its ssh-tunnel connection."""


@functools.cache
def forwards() -> Forwards:
    """Return this process's forwards, shared by probes and queries with the same way."""
    return Forwards()


def close_forwards() -> None:
    """Close every tunnel of this process."""
    if forwards.cache_info().currsize:
        forwards().close()


@contextlib.contextmanager
def through_tunnel(
    connection: ResolvedConnection, host: str, port: int, directory: str, address: Address
) -> Iterator[int | None]:
    """Open a connection's tunnel, and yield the port of 127.0.0.1 that leads to `host` and `port`.

    Yields None without a tunnel: `host` and `port` are then reached directly. Raises MzplanError (MZ120 to
    MZ123) about `address` if the tunnel can't be opened.
    """
    if ROLE not in connection.connections:
        yield None
        return
    with _open_forward(_way(connection.connections[ROLE], directory), host, port, address) as local:
        yield local


def tunnel_problem(
    connection: ResolvedConnection, host: str, port: int, directory: str, address: Address
) -> Diagnostic | None:
    """Return why the last connection failed in the tunnel, or None if it didn't fail there."""
    if ROLE not in connection.connections:
        return None
    try:
        failure = forwards().problem(_way(connection.connections[ROLE], directory), host, port)
    except MzplanError as problem:
        return problem.diagnostics[0]
    return _diagnostic(failure, address) if failure is not None else None


def remote_tunnel(
    connection: ResolvedConnection, host: str, port: int, directory: str
) -> Callable[[], AbstractContextManager[int]] | None:
    """Return a function that opens the tunnel on another machine, for tasks that can't use our ports. None
    without a tunnel."""
    if ROLE not in connection.connections:
        return None
    return remote_forward(_way(connection.connections[ROLE], directory), host, port)


def reach(tunnel: ResolvedConnection, directory: str, address: Address) -> None:
    """Log in to an ssh-tunnel connection's server, and do nothing else. Raises MzplanError."""
    # Whether anything listens at the far end doesn't matter.
    with _open_forward(_way(tunnel, directory), LOOPBACK, 1, address):
        pass


@contextlib.contextmanager
def _open_forward(way: Way, host: str, port: int, address: Address) -> Iterator[int]:
    """Open a local port that forwards there. Raises MzplanError about `address`."""
    with contextlib.ExitStack() as stack:
        try:
            local = stack.enter_context(forwards().to(way, host, port))
        except TunnelError as problem:
            raise MzplanError(_diagnostic(problem, address)) from None
        except TimeoutError:
            silent = TunnelError(way[-1], "unreachable", "no answer in time")
            raise MzplanError(_diagnostic(silent, address)) from None
        yield local


def _way(tunnel: ResolvedConnection, directory: str) -> Way:
    """Return the SSH servers to go through, nearest first."""
    before = _way(tunnel.connections[ROLE], directory) if ROLE in tunnel.connections else ()
    return (*before, _hop(tunnel, directory))


def _hop(tunnel: ResolvedConnection, directory: str) -> Hop:
    body = tunnel.body
    known_hosts = ""
    if "known_hosts" in body:
        path = Path(directory) / Path(body["known_hosts"]).expanduser()
        try:
            known_hosts = read_pem_text(path)
        except OSError as problem:
            raise error(
                "MZ120",
                f"The known hosts of {tunnel.address} can't be read",
                f"{path}: {problem.strerror or problem}.",
                "known_hosts is a path where the query runs; or pin the keys in the connection: host_keys.",
                address=tunnel.address,
            ) from None
    return Hop(
        name=str(tunnel.address),
        host=body["host"],
        port=body["port"],
        user=body["user"],
        keys=tuple(body[name] for name in ("private_key", "secondary_key") if name in body),
        host_keys=tuple(body.get("host_keys", ())),
        known_hosts=known_hosts,
    )


# The code, summary, detail and hint, by the reason of a TunnelError.
_PROBLEMS: Mapping[Why, tuple[str, str, str, str]] = {
    "host-key": (
        "MZ120",
        "The SSH server is not the one that the connection trusts",
        "{text}, which is none of the connection's keys. Either the server has a new key, or another machine "
        "answers in its place. Nothing was sent to it.",
        "compare it with /etc/ssh/ssh_host_*_key.pub on the server; if they match, put it into host_keys "
        "(or known_hosts) of {name}.",
    ),
    "unreachable": (
        "MZ050",
        "The SSH server can't be reached",
        "{text}.",
        "check host and port of {name}, and that the server runs and is reachable from where the query runs.",
    ),
    "refused": (
        "MZ051",
        "The SSH server refused the connection's keys",
        "{text}.",
        "add the public key (beside the private one, in its .pub file) to the user's ~/.ssh/authorized_keys "
        "on the server, and see that the user may log in.",
    ),
    "key": (
        "MZ123",
        "{name} has no usable key",
        "{text}.",
        'create a key pair: mzplan alter "ALTER CONNECTION {connection} ROTATE KEYS" --no-apply; or let '
        "private_key refer to one without a passphrase.",
    ),
    "target": (
        "MZ050",
        "The server behind the SSH tunnel can't be reached",
        "{text}.",
        "check host and port of the connection, as the SSH server sees them, and that it may forward there "
        "(AllowTcpForwarding, PermitOpen).",
    ),
}


def _diagnostic(problem: TunnelError, address: Address) -> Diagnostic:
    """Return a tunnel's error as a diagnostic of the resource that uses the tunnel."""
    hop = problem.hop
    values = {
        "name": hop.name,
        "connection": hop.name.partition(".")[2],
        "text": f"It shows {problem.shown_key}" if problem.shown_key else problem.text,
    }
    code, summary, detail, hint = (text.format(**values) for text in _PROBLEMS[problem.why])
    return Diagnostic(
        code=code,
        kind="unreachable" if problem.why in ("unreachable", "target") else "",
        summary=summary,
        detail=f"{hop.name} ({hop.host}:{hop.port}): {detail}",
        hint=hint,
        address=address,
    )
