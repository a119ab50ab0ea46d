"""The sources that a connection could have: what `mzplan generate` prints."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mzplan.schema.columns import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A topic or table that a source could read.

    - `object`: its name on the server.
    - `body`: the properties of the source, without `connection`; empty if no source can read the object.
    - `notes`: what a person should check or complete, one sentence each.
    """

    object: str
    body: Mapping[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """A name for the source: `shop.Orders-v2` → `shop_orders_v2`."""
        name = re.sub(r"[^a-z0-9]+", "_", self.object.lower()).strip("_")
        return name if name[:1].isalpha() else f"source_{name}".rstrip("_")


def declared(columns: Sequence[Column]) -> str:
    """Return columns as a source's `schema`: `id BIGINT, name STRING`."""
    return ", ".join(f"{_named(column.name)} {column.type}" for column in columns)


def struct(columns: Sequence[Column]) -> str:
    """Return a STRUCT of columns."""
    return f"STRUCT<{', '.join(f'{_named(column.name)}: {column.type}' for column in columns)}>"


def _named(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else "`" + name.replace("`", "``") + "`"
