"""OpenLineage's names for topics, tables and folders: https://openlineage.io/docs/spec/naming.

Names hold no secrets: they are made from bodies whose secrets are still references.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

from mzplan.warehouse.paths import local_path

_ALIASES = {"s3a": "s3", "s3n": "s3", "abfs": "abfss"}  # aliases of a scheme
_CONTAINER_FIRST = ("abfss", "wasbs")  # they put the container before an @, where other schemes put a login
_WITH_ROOT = ("hdfs",)  # their names begin with a slash; the other schemes are object stores


class LineageName(NamedTuple):
    """A namespace and a name, such as `("kafka://broker:9092", "orders")`."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageNames:
    """The external places that a query reads and writes. The warehouse's collections aren't included."""

    reads: tuple[LineageName, ...] = ()
    writes: tuple[LineageName, ...] = ()


def on_server(scheme: str, server: str, name: str) -> LineageName:
    """Return the name of an object on a server: `postgres`, `db:5432`, `shop.public.orders` give
    `("postgres://db:5432", "shop.public.orders")`."""
    return LineageName(f"{scheme}://{server}", name)


def at_path(path: str) -> LineageName:
    """Return the name of a folder from its absolute path or URI: `/data/x` → file, /data/x; `s3a://b/x/` →
    s3://b, x."""
    local = local_path(path)
    if local is not None:
        return LineageName("file", str(PurePosixPath(local)))
    parts = urlsplit(path)
    scheme = _ALIASES.get(parts.scheme, parts.scheme)
    place = parts.netloc if scheme in _CONTAINER_FIRST else parts.netloc.rpartition("@")[2]
    name = parts.path.strip("/")
    return LineageName(f"{scheme}://{place}", f"/{name}" if scheme in _WITH_ROOT else name or "/")
