"""The canonical place of a state or a warehouse, so that two spellings of one place are equal.

The module follows links on this machine's disk, but opens no network connection and resolves no host name.
If a spelling is ambiguous, two places count as the same one.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from mzplan.schema.loading import load_schema
from mzplan.warehouse.paths import absolute, local_path

Setting = Literal["state", "warehouse"]
_SCHEMES = {
    "s3a": "s3",
    "s3n": "s3",
    "gcs": "gs",
    "abfs": "abfss",
    "wasb": "abfss",
    "wasbs": "abfss",
    "az": "abfss",
    "azure": "abfss",
    "adl": "abfss",
}
_OF_AWS = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws")
_HDFS_PORT = ":8020"  # the default


@dataclass(frozen=True, slots=True)
class StorageLocation:
    """The place of a state or a warehouse.

    - `root`: the server, bucket or disk.
    - `server`: which server has the root; None if the settings don't say it.
    - `path`: the folder in the root, "/" for the root itself.
    - `written`: the text in the file.
    """

    setting: Setting
    written: str
    root: tuple[str, ...]
    path: str = "/"
    server: str | None = None

    def equals(self, other: StorageLocation) -> bool:
        """Return whether `other` is the same place."""
        return self._is_beside(other) and self.path == other.path

    def overlaps(self, other: StorageLocation) -> bool:
        """Return whether `other` is the same place, or one place is inside the other."""
        return self._is_beside(other) and (
            _is_within(self.path, other.path) or _is_within(other.path, self.path)
        )

    def _is_beside(self, other: StorageLocation) -> bool:
        servers = {self.server, other.server}
        return self.root == other.root and (None in servers or len(servers) == 1)


def places_of(
    body: Mapping[str, Any], directory: str, state_directory: str = ""
) -> tuple[StorageLocation, ...]:
    """Return the places of an environment's state and warehouse.

    Malformed settings have no place; their error is reported elsewhere.

    - `directory`: the folder that relative paths start from.
    - `state_directory`: the folder for the state, if it is another one.
    """
    state, warehouse = body.get("state"), body.get("warehouse")
    places = [*_state_places(state if isinstance(state, dict) else {}, state_directory or directory)]
    written = warehouse if isinstance(warehouse, str) and warehouse else _default("warehouse")
    places += _path_place("warehouse", written, directory)
    return tuple(places)


def _default(name: str) -> Any:
    return load_schema("project")["properties"][name]["default"]


def _state_places(given: Mapping[str, Any], directory: str) -> Iterator[StorageLocation]:
    state = {**_default("state"), **given}
    match state.get("backend"):
        case "postgres":
            yield from _server_places(state)
        case "object-store":
            endpoint = _endpoint(str(state.get("endpoint") or ""))
            yield from _path_place("state", str(state.get("url", "")), directory, endpoint)
        case _:
            yield from _path_place("state", str(state["path"]), directory)


def _server_places(state: Mapping[str, Any]) -> Iterator[StorageLocation]:
    """Return a place for each host that libpq would try."""
    known = load_schema("state")["properties"]
    port, schema = (state.get(name) or known[name]["default"] for name in ("port", "schema"))
    named = (str(port), str(state.get("database", "")), str(schema))
    for host in str(state.get("host", "")).split(","):
        written = f"{host}, database {named[1]}, schema {named[2]}"
        yield StorageLocation("state", written, ("postgres", _host(host), *named))


def _host(name: str) -> str:
    """Return the canonical spelling of a host's name or address; `localhost` for this machine."""
    host = name.strip().strip("[]").rstrip(".").lower()
    if host in ("", "localhost", "ip6-localhost", "localhost.localdomain") or host.startswith(("/", "@")):
        return "localhost"
    import ipaddress

    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return "localhost" if address.is_loopback or address.is_unspecified else str(address)


def _endpoint(url: str) -> str:
    """Return the server of an object store; "" for the cloud's own."""
    if not url:
        return ""
    try:
        parts = urlsplit(url if "://" in url else f"//{url}")
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        host = _host(parts.hostname or "")
    except ValueError:
        return url.lower()
    return "" if host.endswith(_OF_AWS) else f"{host}:{port}"


def _path_place(
    setting: Setting, written: str, directory: str, server: str | None = None
) -> Iterator[StorageLocation]:
    if "\0" in written:
        return
    place = absolute(directory, written)
    folder = local_path(place)
    if folder is not None:
        yield StorageLocation(setting, written, ("disk",), os.path.realpath(folder))
        return
    try:
        parts = urlsplit(place)
        bucket = parts.netloc.lower()
    except ValueError:
        return
    scheme = _SCHEMES.get(parts.scheme.lower(), parts.scheme.lower())
    path = unquote(parts.path)
    if scheme == "abfss":  # container@account…, or a container whose account is set elsewhere
        bucket, at, account = bucket.partition("@")
        server = account.partition(".")[0] if at else None
    if scheme == "hdfs":  # without a host, Hadoop uses the one in core-site.xml
        server, bucket = bucket.removesuffix(_HDFS_PORT) or None, ""
    inner = posixpath.normpath("/" + path.lstrip("/"))
    yield StorageLocation(setting, written, (scheme, bucket), inner, server)


def _is_within(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")
