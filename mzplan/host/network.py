"""Which hosts and names are this machine, and the libpq options for a connection without TLS."""

from __future__ import annotations

from pathlib import Path

CERTAIN = ("require", "verify-ca", "verify-full")  # modes of libpq that never go on without TLS


def is_loopback(host: str) -> bool:
    """Whether nobody can be between here and a host: this machine, by name or address, or a socket's path; of
    several, as libpq takes them, all. Other names, `db.localhost` too, may be asked of a server of names."""
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


def is_named(header: str, own: str, *, by_address: bool) -> bool:
    """Whether a request's Host header names a server of this machine, or `own` ("": nothing more);
    `by_address`: also by any address in figures. A page elsewhere that has its own name lead here (DNS
    rebinding) sends that name; an address in figures can't be made to lead elsewhere."""
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
    """libpq's options for an sslmode, a file of certificates to trust (None: the system's), and `never` where
    a server is not to be sent the password itself unless TLS is certain."""
    options = {"sslmode": mode}
    roots = ca or (system_roots() if mode == "verify-full" else None)
    if roots is not None:
        options["sslrootcert"] = roots
    if cleartext_login == "never" and mode not in CERTAIN:
        options["require_auth"] = "!password"
    return options


def system_roots() -> str | None:
    """The certificates that this machine trusts; None where the user has a file for PostgreSQL, which libpq
    takes by itself."""
    if (Path.home() / ".postgresql" / "root.crt").is_file():
        return None
    import ssl

    return ssl.get_default_verify_paths().cafile or "system"
