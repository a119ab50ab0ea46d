"""What OpenLineage calls a topic, a table or a folder: https://openlineage.io/docs/spec/naming.

A name has nothing of a secret: it is made of bodies whose secrets are still references.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import urlsplit

from mzplan.warehouse.paths import local_path

_SAME = {"s3a": "s3", "s3n": "s3", "abfs": "abfss"}  # schemes of one store, by the one that names it
_IN_FRONT = ("abfss", "wasbs")  # whose container stands before an @: of others that is a login
_ROOTED = ("hdfs",)  # whose names begin with a slash: the other schemes are stores of objects


class LineageName(NamedTuple):
    """`("kafka://broker:9092", "orders")`."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """What a query reads from and writes to outside of the warehouse."""

    reads: tuple[LineageName, ...] = ()
    writes: tuple[LineageName, ...] = ()


def on_server(scheme: str, server: str, name: str) -> LineageName:
    """`("postgres", "db:5432", "shop.public.orders")`."""
    return LineageName(f"{scheme}://{server}", name)


def at_path(path: str) -> LineageName:
    """Of a folder by its absolute path or URI: `/data/x` → file, /data/x; `s3a://b/x/` → s3://b, x."""
    local = local_path(path)
    if local is not None:
        return LineageName("file", str(PurePosixPath(local)))
    parts = urlsplit(path)
    scheme = _SAME.get(parts.scheme, parts.scheme)
    place = parts.netloc if scheme in _IN_FRONT else parts.netloc.rpartition("@")[2]
    name = parts.path.strip("/")
    return LineageName(f"{scheme}://{place}", f"/{name}" if scheme in _ROOTED else name or "/")
