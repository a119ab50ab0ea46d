"""ssh-tunnel connections: how a connection reaches its server through them, and what went wrong there."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mzplan.connectors.api.protocols import ResolvedConnection
from mzplan.model.address import Address
from mzplan.model.diagnostics import Diagnostic, MzplanError, error

if TYPE_CHECKING:
    from mzplan.connectors.network.ssh import Forwards, Hop, TunnelError

LOOPBACK = "127.0.0.1"
ROLE = "ssh_tunnel"
"""The property that names the ssh-tunnel connection of a connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Through:
    """Where a client on this machine finds what is behind a tunnel: this port of 127.0.0.1."""

    port: int


@functools.cache
def forwards() -> Forwards:
    """Those of this process: probes and queries that go the same way share them."""
    from mzplan.connectors.network.ssh import Forwards

    return Forwards()


def close_forwards() -> None:
    """End every tunnel of this process."""
    if forwards.cache_info().currsize:
        forwards().close()


@contextlib.contextmanager
def through_tunnel(
    connection: ResolvedConnection, host: str, port: int, directory: str, address: Address
) -> Iterator[Through | None]:
    """Where the host and port of a connection are to be found: None where it has no tunnel, and they are
    what they say. Raises MzplanError (MZ120 to MZ123) about `address`, where the tunnel can't be opened."""
    from mzplan.connectors.network.ssh import TunnelError

    if ROLE not in connection.connections:
        yield None
        return
    way = _way(connection.connections[ROLE], directory)
    with contextlib.ExitStack() as stack:
        try:
            local = stack.enter_context(forwards().to(way, host, port))
        except TunnelError as problem:
            raise MzplanError(_diagnostic(problem, address)) from None
        except TimeoutError:
            raise _silent(connection.connections[ROLE], address) from None
        yield Through(port=local)


def tunnel_problem(
    connection: ResolvedConnection, host: str, port: int, directory: str, address: Address
) -> Diagnostic | None:
    """What a tunnel said of the last connection through it, if that came to nothing there."""
    if ROLE not in connection.connections:
        return None
    try:
        found = forwards().problem(_way(connection.connections[ROLE], directory), host, port)
    except MzplanError as problem:
        return problem.diagnostics[0]
    return _diagnostic(found, address) if found is not None else None


def tunnel_elsewhere(
    connection: ResolvedConnection, host: str, port: int, directory: str
) -> Callable[[], AbstractContextManager[int]] | None:
    """For tasks on other machines, to which our ports mean nothing: what opens the tunnel there."""
    from mzplan.connectors.network.ssh import forwarding

    if ROLE not in connection.connections:
        return None
    return forwarding(_way(connection.connections[ROLE], directory), host, port)


def reach(tunnel: ResolvedConnection, directory: str, address: Address) -> None:
    """Log in to an ssh-tunnel connection's server, and nothing else. Raises MzplanError."""
    from mzplan.connectors.network.ssh import TunnelError

    try:
        # Whether anything listens at the far end is not asked.
        with forwards().to(_way(tunnel, directory), LOOPBACK, 1):
            pass
    except TunnelError as problem:
        raise MzplanError(_diagnostic(problem, address)) from None
    except TimeoutError:
        raise _silent(tunnel, address) from None


def _way(tunnel: ResolvedConnection, directory: str) -> tuple[Hop, ...]:
    """The SSH servers to go through, the nearest first."""
    before = _way(tunnel.connections[ROLE], directory) if ROLE in tunnel.connections else ()
    return (*before, _hop(tunnel, directory))


def _hop(tunnel: ResolvedConnection, directory: str) -> Hop:
    from mzplan.connectors.network.ssh import Hop

    body = tunnel.body
    known_hosts = ""
    if "known_hosts" in body:
        path = Path(directory) / Path(body["known_hosts"]).expanduser()
        try:
            known_hosts = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise error(
                "MZ120",
                f"The known hosts of {tunnel.address} can't be read",
                f"{path}: {getattr(problem, 'strerror', None) or 'it is no text'}.",
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


def _diagnostic(problem: TunnelError, address: Address) -> Diagnostic:
    """The problem, for people, as one of the resource that wanted to get through."""
    hop = problem.hop
    where = f"{hop.name} ({hop.host}:{hop.port})"
    match problem.why:
        case "host-key":
            shown = f"It shows {problem.shown}" if problem.shown else problem.text
            return Diagnostic(
                code="MZ120",
                summary="The SSH server is not the one that the connection trusts",
                detail=f"{where}: {shown}, which is none of the connection's keys. Either the server has "
                "a new key, or another machine answers in its place. Nothing was sent to it.",
                hint="compare that with /etc/ssh/ssh_host_*_key.pub on the server; if it is its, put it "
                f"into host_keys (or known_hosts) of {hop.name}.",
                address=address,
            )
        case "refused":
            return Diagnostic(
                code="MZ122",
                summary="The SSH server refused the connection's keys",
                detail=f"{where}: {problem.text}.",
                hint="add the public key (beside the private one, in its .pub file) to the user's "
                "~/.ssh/authorized_keys on the server, and see that the user may log in.",
                address=address,
            )
        case "key":
            return Diagnostic(
                code="MZ123",
                summary=f"{hop.name} has no usable key",
                detail=f"{where}: {problem.text}.",
                hint="make a pair of keys: mzplan alter "
                f'"ALTER CONNECTION {hop.name.partition(".")[2]} ROTATE KEYS" --no-apply; or let private_key '
                "refer to one that has no passphrase.",
                address=address,
            )
        case "target":
            return Diagnostic(
                code="MZ050",
                summary="The server behind the SSH tunnel can't be reached",
                detail=f"{where}: {problem.text}.",
                hint="check host and port of the connection, as the SSH server sees them, and that it may "
                "forward there (AllowTcpForwarding, PermitOpen).",
                address=address,
            )
        case _:
            return Diagnostic(
                code="MZ121",
                summary="The SSH server can't be reached",
                detail=f"{where}: {problem.text}.",
                hint=f"check host and port of {hop.name}, and that the server runs and is reachable from "
                "where the query runs.",
                address=address,
            )


def _silent(tunnel: ResolvedConnection, address: Address) -> MzplanError:
    return error(
        "MZ121",
        "The SSH server can't be reached",
        f"{tunnel.address}: no answer in time.",
        f"check host and port of {tunnel.address}, and what it goes through.",
        address=address,
    )
