"""Which queries follow the erased rows of a source, which are replaced, and what to run for the others.

The changes of a keyed collection reach its readers, so the erased rows leave their collections and targets.
Readers of a collection that only grows skip an erasure, except for views that compute their rows again. A new
generation of the other readers begins without the erased rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from mzplan.model.address import Address
from mzplan.model.graph import DependencyGraph
from mzplan.model.state import ResourceState, State
from mzplan.plan.effects.targets import effect_on_target, target_name
from mzplan.schema.kinds import resource_kind
from mzplan.schema.relations.parse import recomputes
from mzplan.schema.source_columns import keys_of
from mzplan.schema.sql.view_query import is_row_view
from mzplan.schema.target_writes import compares_generations, keeps_history
from mzplan.schema.triggers import is_available_now

_REWRITES = ("empties", "corrects")  # what a replaced sink does so that erased rows leave its target

Route = Literal["deletes", "rows", "replaced"]
"""How an erasure reaches a collection: readers get the deletes or only new rows, or it is replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreached:
    """A query that an erasure doesn't reach: why, and what to run by hand.

    `is_replaceable`: whether a new generation that begins after the erasure has no erased rows.
    """

    address: Address
    why: str
    how: str
    is_replaceable: bool = False


@dataclass(frozen=True, slots=True)
class Reach:
    """The queries downstream of a source, in dependency order.

    - `reached`: the erased rows leave their collections and targets. They include `replaced`.
    - `replaced`: the queries to replace for that. Their readers may be replaced with them.
    """

    reached: tuple[Address, ...]
    replaced: tuple[Address, ...]
    unreached: tuple[Unreached, ...]


def reach_of(
    state: State, source: ResourceState, where: str, blocked: Mapping[Address, str] | None = None
) -> Reach:
    """Return the queries that an erasure reaches, and the others.

    `where`: the condition of the erasure, for statements. `blocked`: why some queries can't be replaced; None
    to replace none.
    """
    graph = DependencyGraph.of(state.resources)
    routes: dict[Address, Route] = {
        source.address: "deletes" if keys_of(source.type, source.body) else "rows"
    }
    replaced: list[Address] = []
    unreached: list[Unreached] = []
    downstream = graph.all_dependents([source.address])
    for address in graph.order(downstream):
        query = state.resources[address]
        inputs = [read for read in _inputs(query) if read in {*downstream, source.address}]
        follows_replaced = any(routes.get(read) == "replaced" for read in query.reads.values())
        found = _unreached(state, query, inputs, routes, where)
        is_ordered = all(read == source.address or routes.get(read) == "replaced" for read in inputs)
        if found is not None and found.is_replaceable and is_ordered and blocked is not None:
            found = _blocked(query, found, blocked)
            replaced += [address] if found is None else []
            follows_replaced |= found is None
        elif found is None and not follows_replaced:
            found = _stopped(query)
        if found is not None:
            unreached.append(found)
        else:
            routes[address] = "replaced" if follows_replaced and not recomputes(query.body) else "deletes"
    reached = tuple(address for address in routes if address != source.address)
    return Reach(reached, tuple(replaced), tuple(unreached))


def _inputs(query: ResourceState) -> list[Address]:
    return list(dict.fromkeys((*query.reads.values(), *query.snapshots.values())))


def _unreached(
    state: State, query: ResourceState, inputs: list[Address], routes: Mapping[Address, Route], where: str
) -> Unreached | None:
    """Return why an erasure doesn't reach a query; None if it does.

    `inputs`: the collections that the query reads and that follow from the source.
    """
    address = query.address
    if missing := next((read for read in inputs if read not in routes), None):
        why = f"It reads {missing}, which isn't reached."
        how = _replace(address, f"after {missing}")
        if address.writes_target:
            loses_rows = _loses_rows(query, state.resources[missing])
            how = f"nothing more: {missing} replaces it, too" if loses_rows else _by_hand(query, where)
        return Unreached(address=address, why=why, how=how)
    if recomputes(query.body):
        return None
    is_replaced = any(routes.get(read) == "replaced" for read in query.reads.values())
    # A view that is replaced anyway reads its tables once the source has erased its rows. Views follow later.
    later = [a for a in inputs if not is_replaced or (routes[a] == "deletes" and not a.reads_upstream)]
    if snapshot := next((read for read in later if read in query.snapshots.values()), None):
        why = f"Rows that it has joined with rows of {snapshot} stay as they are."
        return Unreached(address=address, why=why, how=_replace(address), is_replaceable=not is_replaced)
    growing = next((read for read in inputs if routes[read] == "rows"), None)
    if address.writes_target:
        return _unreached_target(state, query, growing, where, is_replaced=is_replaced)
    if is_replaced:
        return None
    kind = resource_kind(address.kind, query.type)
    if growing is None and keys_of(query.type, query.body) and is_row_view(kind, query.body):
        return None
    why = f"It only gets new rows of {growing or inputs[0]}; what it has computed from erased rows stays."
    return Unreached(address=address, why=why, how=_replace(address), is_replaceable=True)


def _blocked(query: ResourceState, found: Unreached, blocked: Mapping[Address, str]) -> Unreached | None:
    """Return why a query isn't replaced with the erasure; None if it is."""
    why = blocked.get(query.address, "")
    if query.paused:
        why, found = "It is paused.", replace(found, how=_replace(query.address, "once it is resumed"))
    return replace(found, why=f"{found.why} {why}") if why else None


def _stopped(query: ResourceState) -> Unreached | None:
    """Return what to run for a query that only reads what is there when it starts."""
    if not is_available_now(query.body):
        return None
    why = "It has trigger: available-now, so it doesn't read the erasure until it starts again."
    how = f"once the erasure is done: mzplan restart {query.address}"
    return Unreached(address=query.address, why=why, how=how)


def _unreached_target(
    state: State, sink: ResourceState, growing: Address | None, where: str, *, is_replaced: bool
) -> Unreached | None:
    """`growing`: the collection that it reads, if that only grows. `is_replaced`: whether it is replaced."""
    address, target = sink.address, target_name(sink) or "its target"
    effect = effect_on_target(sink)
    if keeps_history(sink.body):
        why = f"{target} keeps the former versions of each key's row."
    elif is_replaced:
        # The planner refuses the others: each row would be in the target twice.
        views = [state.resources[read] for read in sink.reads.values()]
        if effect != "upserts" or _deletes_other_keys(sink, views):
            return None
        why = f"{target} keeps the keys that its new generation doesn't write."
    elif growing is None:
        return None
    elif effect in _REWRITES:
        why = f"{target} only gets new rows of {growing}."
        return Unreached(address=address, why=why, how=_replace(address), is_replaceable=True)
    else:
        why = f"{target} only gets new rows of {growing}, and keeps the ones that it has."
    return Unreached(address=address, why=why, how=_by_hand(sink, where))


def _loses_rows(sink: ResourceState, view: ResourceState) -> bool:
    """Whether the sink's target loses the erased rows once the view that it reads is replaced."""
    return _deletes_other_keys(sink, [view]) or effect_on_target(sink) in _REWRITES


def _by_hand(sink: ResourceState, where: str) -> str:
    target = target_name(sink) or "its target"
    how = f"remove its rows from {target} by hand"
    has_columns = "select" not in sink.body and all(read.reads_upstream for read in sink.reads.values())
    if sink.body.get("table") == target and has_columns:
        how = f"DELETE FROM {target} WHERE {where}"
    return f"once the erasure is done and the sink has read it: {how}"


def _deletes_other_keys(sink: ResourceState, views: Iterable[ResourceState]) -> bool:
    """Whether a sink deletes keys that only the former generation of its view has."""
    return compares_generations(sink.type, sink.body) and all(view.is_replaced_beside for view in views)


def _replace(address: Address, when: str = "once the erasure is done") -> str:
    return f"{when}: mzplan apply --replace {address} --allow-replace"
