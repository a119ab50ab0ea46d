"""Addresses: how a resource is named in files, plans, state and on the command line."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

Kind = Literal["connection", "source", "view", "sink"]
KINDS: tuple[Kind, ...] = get_args(Kind)
COLLECTIONS: tuple[Kind, ...] = ("source", "view")
"""The kinds of queries that write a collection. Other queries read it by name."""
READERS: tuple[Kind, ...] = ("view", "sink")
"""The kinds of queries that read collections."""

# `\Z`, not `$`: `$` would let a trailing newline through.
NAME_PATTERN = r"^[a-z][a-z0-9_]*\Z"
NAME = re.compile(NAME_PATTERN)
_NAME_OR_BESIDE = re.compile(r"[a-z][a-z0-9_]*(@[1-9][0-9]*)?\Z")
MAX_NAME = 128
ID = re.compile(r"[0-9A-Za-z_-]{1,64}")  # ids are folder names, so they must not hold a path separator


Place: TypeAlias = tuple[str, int]
"""The storage of one generation of a query (its checkpoint and collection): (id, generation)."""


class Address(NamedTuple):
    """A resource's kind and name, such as `source.orders`.

    The name of a generation that runs beside the one in service has its number: `view.totals@2`.

    A NamedTuple, not a dataclass, because a plan hashes and sorts hundreds of thousands of addresses.
    """

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}.{self.name}"

    @property
    def is_connection(self) -> bool:
        return self.kind == "connection"

    @property
    def is_query(self) -> bool:
        """Whether the resource is a source, a view or a sink."""
        return self.kind != "connection"

    @property
    def writes_collection(self) -> bool:
        """Whether the resource is a query that writes a collection."""
        return self.kind in COLLECTIONS

    @property
    def reads_collections(self) -> bool:
        """Whether the resource is a query that reads collections."""
        return self.kind in READERS

    @property
    def reads_upstream(self) -> bool:
        """Whether the resource is a source: it reads an upstream, or rows from `mzplan append`."""
        return self.writes_collection and not self.reads_collections

    @property
    def is_view(self) -> bool:
        """Whether the resource is a view: it reads collections and writes one."""
        return self.reads_collections and self.writes_collection

    @property
    def writes_target(self) -> bool:
        """Whether the resource is a sink: it writes a target, through a connection."""
        return self.reads_collections and not self.writes_collection

    def beside(self, generation: int) -> Address:
        """Return the address of a generation that runs beside the one in service."""
        return Address(self.kind, f"{self.name}@{generation}")

    @property
    def is_beside(self) -> bool:
        """Whether this is a generation that runs beside the one in service."""
        return "@" in self.name

    @property
    def resource(self) -> Address:
        """The address of the resource, for a generation that runs beside the one in service."""
        return Address(self.kind, self.name.partition("@")[0])

    @classmethod
    def parse(cls, text: str) -> Address:
        """Parse an address such as `"source.orders"`. Raises ValueError that lists the valid forms."""
        kind, dot, name = text.partition(".")
        if (
            not dot
            or kind not in KINDS
            or not _NAME_OR_BESIDE.match(name)
            or len(name.partition("@")[0]) > MAX_NAME
        ):
            shown = text if len(text) <= MAX_NAME else f"{text[:MAX_NAME]}…"
            kinds = [f"{known}.NAME" for known in KINDS]
            raise ValueError(f"{shown!r} is not an address: write {', '.join(kinds[:-1])} or {kinds[-1]}")
        return cls(kind, name)


_DIGITS = re.compile(r"[0-9]+")


@lru_cache(maxsize=1 << 16)
def natural(name: Address | str) -> str:
    """Return the sort key that orders numbers in names by value: s2 before s10.

    Stored data and digests don't use it: they keep plain text order.
    """
    text = str(name)
    counted = _DIGITS.sub(lambda digits: digits[0].zfill(MAX_NAME), text)
    return text if counted == text else f"{counted}\0{text}"


def natural_item(item: tuple[Address | str, Any]) -> str:
    """Return the sort key of an item in a mapping by address or name; see `natural`."""
    return natural(item[0])


def is_glob(text: str) -> bool:
    """Whether the text is a pattern over addresses, such as `sink.pg_*`, rather than an address."""
    return any(wildcard in text for wildcard in "*?[")


def is_valid_name(name: object) -> bool:
    """Whether `name` can name a resource: `[a-z][a-z0-9_]*`, at most 128 characters."""
    return isinstance(name, str) and len(name) <= MAX_NAME and NAME.match(name) is not None
