"""Requests to a schema-registry connection: where its server is, and what it has of a subject."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mzplan.connectors.api.queries import PROBE_TIMEOUT_S, ResolvedConnection
from mzplan.connectors.network.registry_http import (
    RegistryError,
    Server,
    get,
    schema_texts,
    schema_type,
    whole_number,
)
from mzplan.connectors.network.tunnels import Through
from mzplan.secrets.files import read_pem

_CERTIFICATE = re.compile(rb"-----BEGIN ([A-Z0-9 ]*CERTIFICATE)-----[\x00-\x7f]+?-----END \1-----")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The latest version of a subject. `type`: AVRO, JSON or PROTOBUF; `id` is the schema's in the registry;
    `schemas` are the texts of those that it refers to, and last its own."""

    version: int
    id: int
    type: str
    schemas: tuple[str, ...]


def server(connection: ResolvedConnection, directory: str) -> Server:
    """A connection's server. Raises RegistryError where its certificates can't be read."""
    body = connection.body
    ca = body["tls"].get("ca") if body["url"].startswith("https:") else None
    try:
        pem = _certificates(read_pem(Path(directory) / ca)) if ca else None
    except OSError as problem:
        raise RegistryError("unreachable", f"{ca}: {(problem.strerror or str(problem)).lower()}") from None
    if pem == "":  # given nothing, Python would trust whom the machine trusts
        raise RegistryError("unreachable", f"{ca}: no certificates in PEM")
    try:
        ssl.create_default_context(cadata=pem) if pem else None
    except ssl.SSLError:
        raise RegistryError("unreachable", f"{ca}: its certificates are damaged") from None
    login = f"{body['user']}:{body.get('password', '')}" if "user" in body else None
    return Server(url=body["url"], login=login, ca=pem, seconds=PROBE_TIMEOUT_S)


def _certificates(data: bytes) -> str:
    """Those of a file, which may have comments beside them, in any encoding: ssl takes ASCII alone."""
    return "\n".join(match[0].decode("ascii") for match in _CERTIFICATE.finditer(data))


def server_of(connection: ResolvedConnection) -> tuple[str, int]:
    """The registry's host and port."""
    return Server(url=connection.body["url"], seconds=PROBE_TIMEOUT_S).host_and_port


def list_subjects(connection: ResolvedConnection, directory: str, through: Through | None) -> None:
    """See that the registry answers and lets us in. Raises RegistryError."""
    found = _get(connection, directory, through, "/subjects")
    if not isinstance(found, list):
        raise RegistryError("answer", "it answered /subjects with no list: is it a schema registry?")


def latest_version(
    connection: ResolvedConnection, directory: str, through: Through | None, subject: str
) -> Subject:
    """The latest version of a subject. Raises RegistryError."""
    found = _get(connection, directory, through, f"/subjects/{quote(subject, safe='')}/versions/latest")
    if not isinstance(found, Mapping) or not isinstance(found.get("schema"), str):
        raise RegistryError("answer", "it answered with no schema: is it a schema registry?")
    return Subject(
        version=whole_number(found, "version"),
        id=whole_number(found, "id"),
        type=schema_type(found),
        schemas=schema_texts(lambda path: _get(connection, directory, through, path), found),
    )


def _get(connection: ResolvedConnection, directory: str, through: Through | None, path: str) -> Any:
    return get(server(connection, directory), path, through.port if through is not None else None)
