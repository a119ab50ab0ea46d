"""Logs in to SSH servers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

OPEN_TIMEOUT_S = 5.0
"""The time limit in seconds for connecting to one SSH server, or from the last one to the target."""

# Seconds. The connection to a silent server ends after three of these intervals.
_KEEPALIVE_S = 5

Reason = Literal["unreachable", "host-key", "refused", "key", "target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """An SSH server between this machine and the target.

    - `keys`: private keys to log in with, tried in this order; never shown.
    - `host_keys`: the public keys that the server may have.
    - `known_hosts`: the text of a known_hosts file with more such keys.
    """

    name: str
    host: str
    port: int
    user: str
    keys: tuple[str, ...] = field(repr=False)
    host_keys: tuple[str, ...] = ()
    known_hosts: str = ""


Hops = tuple[Hop, ...]
"""SSH servers, nearest first."""


class TunnelError(Exception):
    """The connection fails at `hop`, for this `reason`.

    `target` means that the last hop can't reach the target. `shown_key` is the public key of a server that
    isn't trusted.
    """

    def __init__(self, hop: Hop, reason: Reason, text: str, shown_key: str = ""):
        super().__init__(f"can't connect through {hop.name} ({hop.host}:{hop.port}): {text}")
        self.hop, self.reason, self.text, self.shown_key = hop, reason, text, shown_key

    def __reduce__(self) -> Any:
        return type(self), (self.hop, self.reason, self.text, self.shown_key)


async def connect_hop(hop: Hop, outer: Any) -> Any:
    """Return a connection to the hop, through `outer` if there is one. Raises TunnelError."""
    import asyncssh

    shown_keys: list[str] = []

    class Client(asyncssh.SSHClient):
        def validate_host_public_key(self, host: str, addr: str, port: int, key: Any) -> bool:
            shown_keys.append(key.export_public_key().decode().strip())
            return False  # called only for a key that isn't trusted

    keys = _private_keys(hop)
    trusted, kinds = _trusted(hop)
    connecting = asyncssh.connect(
        hop.host,
        hop.port,
        tunnel=outer,
        username=hop.user,
        client_keys=keys,
        known_hosts=trusted,
        client_factory=Client,
        # Kinds of trusted keys come first. The other kinds follow, so that an unknown server shows its key.
        server_host_key_algs=kinds,
        # Use only the connection's settings, not this machine's.
        config=None,
        agent_path=None,
        password=None,
        preferred_auth="publickey",
        x509_trusted_certs=None,
        gss_host=None,
        keepalive_interval=_KEEPALIVE_S,
        keepalive_count_max=2,
    )
    try:
        return await asyncio.wait_for(connecting, OPEN_TIMEOUT_S)
    except asyncssh.HostKeyNotVerifiable as problem:
        raise TunnelError(hop, "host-key", problem.reason, shown_keys[0] if shown_keys else "") from None
    except asyncssh.PermissionDenied:
        which = f"any of its {len(keys)} keys" if len(keys) > 1 else "its key"
        raise TunnelError(hop, "refused", f"user {hop.user} can't log in with {which}") from None
    except TimeoutError:
        raise TunnelError(hop, "unreachable", f"no answer within {OPEN_TIMEOUT_S:.0f} s") from None
    except asyncssh.ChannelOpenError as problem:  # the previous hop can't reach it
        raise TunnelError(hop, "unreachable", problem.reason) from None
    except asyncssh.Error as problem:
        raise TunnelError(hop, "unreachable", problem.reason) from None
    except OSError as problem:
        raise TunnelError(hop, "unreachable", _reason(problem)) from None


def _private_keys(hop: Hop) -> list[Any]:
    import asyncssh

    if not hop.keys:
        raise TunnelError(hop, "key", "it has no private key")
    keys = []
    for text in hop.keys:
        try:
            keys.append(asyncssh.import_private_key(text))
        except (asyncssh.KeyImportError, ValueError) as problem:
            if isinstance(problem, asyncssh.KeyEncryptionError) or "passphrase" in str(problem).lower():
                raise TunnelError(hop, "key", "its private key is protected by a passphrase") from None
            raise TunnelError(hop, "key", "OpenSSH can't read its private key") from None
    return keys


def _trusted(hop: Hop) -> tuple[Callable[[str, str, int | None], Any], list[str]]:
    """Return a function with which asyncssh looks up trusted keys, and all kinds of keys, trusted first."""
    import asyncssh
    from asyncssh.public_key import get_default_certificate_algs, get_default_public_key_algs

    try:
        pinned = [asyncssh.import_public_key(text) for text in hop.host_keys]
        known = asyncssh.import_known_hosts(hop.known_hosts)
    except (asyncssh.KeyImportError, ValueError):
        # Don't show asyncssh's message. It repeats the line, and a configuration may name any file.
        reason = "the keys to trust can't be read: they aren't in the format of known_hosts"
        raise TunnelError(hop, "host-key", reason) from None

    def match(host: str, addr: str, port: int | None) -> Any:
        keys, authorities, revoked, *_ = known.match(host, addr, port)
        return [*keys, *pinned], authorities, revoked

    keys, authorities, _ = match(hop.host, "", hop.port)
    first = [*(get_default_certificate_algs() if authorities else ())]
    first += [kind for key in keys for kind in key.sig_algorithms]
    kinds = dict.fromkeys([*first, *get_default_public_key_algs()])
    return match, [kind.decode() for kind in kinds]


def _reason(problem: OSError) -> str:
    if isinstance(problem, socket.gaierror):
        return f"its name can't be resolved: {problem.strerror}"
    text = problem.strerror or str(problem)
    # asyncio's text repeats the address.
    return text.partition("Connect call failed")[0].strip() or "connection refused"
