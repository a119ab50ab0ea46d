"""Which hosts are this machine, and how libpq is told what a connection may do without TLS."""

from __future__ import annotations

from pathlib import Path

CERTAIN = ("require", "verify-ca", "verify-full")  # modes of libpq that never go on without TLS


def is_loopback(host: str) -> bool:
    """Whether nobody can be between here and a host: this machine, by name or address, or a socket's path."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost") or host.startswith(("/", "@")):
        return True
    import ipaddress

    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


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
