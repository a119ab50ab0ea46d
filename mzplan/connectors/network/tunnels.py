"""ssh-tunnel connections: open tunnels to servers, and explain their errors."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from mzplan.connectors.api.queries import ResolvedConnection
from mzplan.connectors.network.forwards import Forwards, remote_forward
from mzplan.connectors.network.ssh import Hop, TunnelError
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError, error
from mzplan.secrets.files import read_pem_text

if TYPE_CHECKING:
    from mzplan.connectors.network.ssh import Hops, Reason

LOOPBACK = "127.0.0.1"
ROLE = "ssh_tunnel"
"""The property of a connection that names its ssh-tunnel connection."""


@functools.cache
def forwards() -> Forwards:
    """Return this process's forwards, which probes and queries share."""
    return Forwards()


def close_forwards() -> None:
    """Close every tunnel of this process."""
    if forwards.cache_info().currsize:
        forwards().close()


@contextlib.contextmanager
def through_tunnel(
    connection: ResolvedConnection, host: str, port: int, directory: str, address: Address
) -> Iterator[int | None]:
    """Open a connection's tunnel, and yield the port of 127.0.0.1 that forwards to `host` and `port`.

    Yields None if the connection has no tunnel. Raises MzplanError about `address` if the tunnel can't be
    opened.
    """
    if ROLE not in connection.connections:
        yield None
        return
    with _open_forward(_hops(connection.connections[ROLE], directory), host, port, address) as local:
        yield local


def tunnel_problem(
    connection: ResolvedConnection, host: str, port: int, directory: str, address: Address
) -> Diagnostic | None:
    """Return why the tunnel failed at the last connection; None without a tunnel, or if the tunnel worked."""
    if ROLE not in connection.connections:
        return None
    try:
        failure = forwards().problem(_hops(connection.connections[ROLE], directory), host, port)
    except MzplanError as problem:
        return problem.diagnostics[0]
    return _diagnostic(failure, address) if failure is not None else None


def remote_tunnel(
    connection: ResolvedConnection, host: str, port: int, directory: str
) -> Callable[[], AbstractContextManager[int]] | None:
    """Return a function that opens the tunnel on another machine; None if the connection has no tunnel."""
    if ROLE not in connection.connections:
        return None
    return remote_forward(_hops(connection.connections[ROLE], directory), host, port)


def reach(tunnel: ResolvedConnection, directory: str, address: Address) -> None:
    """Check that an ssh-tunnel connection can log in to its server. Raises MzplanError."""
    # The forward connects to its target only when it is used, so any target will do.
    with _open_forward(_hops(tunnel, directory), LOOPBACK, 1, address):
        pass


@contextlib.contextmanager
def _open_forward(hops: Hops, host: str, port: int, address: Address) -> Iterator[int]:
    """Yield a local port that forwards to `host` and `port`. Raises MzplanError about `address`."""
    with contextlib.ExitStack() as stack:
        try:
            local = stack.enter_context(forwards().to(hops, host, port))
        except TunnelError as problem:
            raise MzplanError(_diagnostic(problem, address)) from None
        yield local


def _hops(tunnel: ResolvedConnection, directory: str) -> Hops:
    """Return the SSH servers of a tunnel, nearest first."""
    before = _hops(tunnel.connections[ROLE], directory) if ROLE in tunnel.connections else ()
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
                "MZ120.known-hosts", address=tunnel.address, path=path, strerror=problem.strerror or problem
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
_PROBLEMS: Mapping[Reason, tuple[str, str, str, str]] = {
    "host-key": (
        "MZ120",
        "The SSH server is not the one that the connection trusts",
        "{text}. Either the server has a new key, or another machine answers in its place. Nothing was sent "
        "to it.",
        "compare the key with /etc/ssh/ssh_host_*_key.pub on the server. If they match, add it to host_keys "
        "(or known_hosts) of {name}.",
    ),
    "unreachable": (
        "MZ050",
        "The SSH server can't be reached",
        "{text}.",
        "check host and port of {name}, and that the machine where the query runs can reach the server.",
    ),
    "refused": (
        "MZ051",
        "The SSH server refused the connection's keys",
        "{text}.",
        "add the public key (in the .pub file next to the private key) to the user's ~/.ssh/authorized_keys "
        "on the server, and check that the user may log in.",
    ),
    "key": (
        "MZ174",
        "{name} has no usable key",
        "{text}.",
        'create a key pair: mzplan alter "ALTER CONNECTION {connection} ROTATE KEYS" --no-apply; or let '
        "private_key refer to a key without a passphrase.",
    ),
    "target": (
        "MZ050",
        "The server behind the SSH tunnel can't be reached",
        "{text}.",
        "check host and port of the connection, as seen from the SSH server, and that it allows the "
        "forwarding (AllowTcpForwarding, PermitOpen).",
    ),
}


def _diagnostic(problem: TunnelError, address: Address) -> Diagnostic:
    """Return a tunnel's error as a diagnostic of the resource that uses the tunnel."""
    hop, shown = problem.hop, problem.shown_key
    values = {
        "name": hop.name,
        "connection": hop.name.partition(".")[2],
        "text": f"its key is {shown}, which is none of the connection's keys" if shown else problem.text,
    }
    code, summary, detail, hint = (text.format(**values) for text in _PROBLEMS[problem.reason])
    return Diagnostic(
        code=code,
        kind="unreachable" if problem.reason in ("unreachable", "target") else "",
        summary=summary,
        detail=f"{hop.name} ({hop.host}:{hop.port}): {detail}",
        hint=hint,
        address=address,
    )
