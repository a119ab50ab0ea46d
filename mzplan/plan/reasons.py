"""Reasons: why a change is in a plan, in a few words that a script can show unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from mzplan.model.address import Address, natural, natural_item
from mzplan.model.plan import Effect, FieldChange
from mzplan.model.state import ResourceState

MAX_NAMED = 3
Ways = Mapping[Address, tuple[Address, ...]]
_NO_WAYS: Ways = {}
_INDEXES = re.compile(r"(\[\d+\])+$")


def reason_for(
    fields: tuple[FieldChange, ...],
    causes: Mapping[Address, Effect],
    ways: Ways,
    forced: bool,
    rotated: Iterable[str] = (),
    holders: Ways = _NO_WAYS,
) -> str:
    """`"brokers changed"`, `"connection.shop_kafka changed"`, `"connection.bastion changed, through
    connection.shop_pg"`, or several joined by `; `. `ways`: for indirect causes, the connections in between;
    `holders`: the same for connections with a secret whose value was `rotated`."""
    parts = ["asked for with --replace"] if forced else []
    if fields:
        parts.append(f"{_listed(_names(fields))} changed")
    # Only a query is replaced; a connection changes, even where that replaces the queries that use it.
    replaced = [
        str(a) for a in sorted(causes, key=natural) if a.kind != "connection" and causes[a] == "replace"
    ]
    changed = [str(a) for a in sorted(causes, key=natural) if str(a) not in replaced]
    by_way: dict[tuple[Address, ...], list[str]] = {}
    for cause in sorted(causes, key=natural):
        if str(cause) in changed:
            by_way.setdefault(ways.get(cause, ()), []).append(str(cause))
    parts += [
        f"{_listed(by_way[way])} changed{_through(way)}"
        for way in sorted(by_way, key=lambda way: [*map(natural, way)])
    ]
    if replaced:
        parts.append(f"{_listed(replaced)} replaced")
    if rotated:
        where = ", ".join(
            f"{holder}{_through(way)}" for holder, way in sorted(holders.items(), key=natural_item)
        )
        parts.append(
            f"the value of {_listed(sorted(rotated, key=natural))} changed"
            + (f", in {where}" if where else "")
        )
    return "; ".join(parts) or "its description changed"


def _through(way: tuple[Address, ...]) -> str:
    return f", through {_listed([str(address) for address in way])}" if way else ""


def _names(fields: tuple[FieldChange, ...]) -> list[str]:
    """The changed properties, without the index in a list: `brokers[0]` is `brokers`."""
    return list(dict.fromkeys(_INDEXES.sub("", change.path) for change in fields))


def _listed(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    if len(names) <= MAX_NAMED:
        return f"{', '.join(names[:-1])} and {names[-1]}"
    return f"{', '.join(names[:MAX_NAMED])} and {len(names) - MAX_NAMED} more"


def backfill_reason(before: ResourceState, after: ResourceState) -> str:
    """Why a source restarts whose backfills have changed."""
    new = [one for one in after.backfills if one not in before.backfills]
    if new:
        return "; ".join(f"a backfill {one}" for one in new)
    gone = [one for one in before.backfills if one not in after.backfills]
    return "; ".join(f"the backfill {one} is given up" for one in gone)
