"""Whether a host name is this machine, and libpq's options for TLS."""

from __future__ import annotations

from pathlib import Path

TLS_MODES = ("require", "verify-ca", "verify-full")  # libpq modes that never connect without TLS


def is_loopback(host: str) -> bool:
    """Whether the host is this machine, so that nobody on the network can read the traffic.

    True for `localhost`, loopback addresses and paths of sockets. In a comma-separated list for libpq, all
    hosts must be local. False for other names, even for `db.localhost`, because DNS may resolve them."""
    import ipaddress

    for part in host.split(","):
        name = part.strip("[]").lower()
        if name == "localhost" or part.startswith(("/", "@")):
            continue
        try:
            if not ipaddress.ip_address(name).is_loopback:
                return False
        except ValueError:
            return False
    return True


def names_host(header: str, own: str, *, by_address: bool) -> bool:
    """Return whether a request's Host header names this machine, or `own` (unless "").

    With `by_address`, any numeric address also matches, because nobody can redirect a numeric address. The
    check prevents DNS rebinding: if the name of a foreign page resolves to this machine, the requests of the
    page have that name as Host."""
    import ipaddress

    name = header.rpartition(":")[0] if header.rpartition(":")[2].isdecimal() else header
    name = name.removeprefix("[").removesuffix("]").lower().rstrip(".")
    if name == "localhost" or (own and name == own.lower()):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or by_address


def libpq_security(mode: str, ca: str | None, cleartext_login: str) -> dict[str, str]:
    """Return libpq's options for an sslmode.

    - `ca`: the file of trusted certificates (None: the system's).
    - `cleartext_login`: `never` refuses to send the password itself unless TLS is certain.
    """
    options = {"sslmode": mode}
    roots = ca or (system_roots() if mode == "verify-full" else None)
    if roots is not None:
        options["sslrootcert"] = roots
    if cleartext_login == "never" and mode not in TLS_MODES:
        options["require_auth"] = "!password"
    return options


def system_roots() -> str | None:
    """Return the file of certificates that this machine trusts.

    Returns None if the user has a root.crt for PostgreSQL, which libpq uses by itself.
    """
    if (Path.home() / ".postgresql" / "root.crt").is_file():
        return None
    import ssl

    return ssl.get_default_verify_paths().cafile or "system"
