"""Servers as texts, `host:port`, by which they are compared."""

from __future__ import annotations

from urllib.parse import urlsplit

_PORTS = {"http": 80, "https": 443}


def server(host: str, port: int | float) -> str:
    """`("DB.internal", 5432)` → `db.internal:5432`."""
    name = host.rstrip(".").lower()
    return f"{name}:{int(port)}"


def server_of_url(url: str) -> str:
    """`https://registry/path` → `registry:443`. The whole URL where it is none that can be understood."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return url
    if not parts.hostname or port is None:
        return url
    return server(f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname, port)
