"""Which queries follow the erased rows of a source, and what to run for the others.

The changes of a keyed collection reach its readers, so the erased rows leave their collections and targets.
Readers of a collection that only grows skip an erasure, except for views that compute their rows again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreached:
    """A query that an erasure doesn't reach: why, and what to run by hand."""

    address: Address
    why: str
    how: str


@dataclass(frozen=True, slots=True)
class Reach:
    """The queries downstream of a source, in dependency order."""

    reached: tuple[Address, ...]
    unreached: tuple[Unreached, ...]


def reach_of(state: State, source: ResourceState, where: str) -> Reach:
    """Return the queries that an erasure reaches, and the others.

    `where`: the condition of the erasure, for statements.
    """
    graph = DependencyGraph.of(state.resources)
    # The collections that the erasure reaches, and whether their readers get the deletes.
    deletes = {source.address: bool(keys_of(source.type, source.body))}
    reached: list[Address] = []
    unreached: list[Unreached] = []
    downstream = graph.all_dependents([source.address])
    for address in graph.order(downstream):
        query = state.resources[address]
        inputs = [read for read in _inputs(query) if read in {*downstream, source.address}]
        found = _unreached(query, inputs, deletes, where, state.resources) or _stopped(query)
        if found is not None:
            unreached.append(found)
            continue
        reached.append(address)
        deletes[address] = True
    return Reach(tuple(reached), tuple(unreached))


def _inputs(query: ResourceState) -> list[Address]:
    return list(dict.fromkeys((*query.reads.values(), *query.snapshots.values())))


def _unreached(
    query: ResourceState,
    inputs: list[Address],
    deletes: Mapping[Address, bool],
    where: str,
    resources: Mapping[Address, ResourceState],
) -> Unreached | None:
    """Return why an erasure doesn't reach a query; None if it does.

    `inputs`: the collections that the query reads and that follow from the source.
    `deletes`: whether the readers of each reached collection get the deletes.
    """
    address = query.address
    if missing := next((read for read in inputs if read not in deletes), None):
        why = f"It reads {missing}, which isn't reached."
        how = _replace(address, f"after {missing}")
        if address.writes_target:
            is_replaced = _loses_rows(query, resources[missing])
            how = f"nothing more: {missing} replaces it, too" if is_replaced else _by_hand(query, where)
        return Unreached(address=address, why=why, how=how)
    if recomputes(query.body):
        return None
    if snapshot := next((read for read in inputs if read in query.snapshots.values()), None):
        why = f"Rows that it has joined with rows of {snapshot} stay as they are."
        return Unreached(address=address, why=why, how=_replace(address))
    growing = next((read for read in inputs if not deletes[read]), None)
    if address.writes_target:
        return _unreached_target(query, growing, where)
    kind = resource_kind(address.kind, query.type)
    if growing is None and keys_of(query.type, query.body) and is_row_view(kind, query.body):
        return None
    why = f"It only gets new rows of {growing or inputs[0]}; what it has computed from erased rows stays."
    return Unreached(address=address, why=why, how=_replace(address))


def _stopped(query: ResourceState) -> Unreached | None:
    """Return what to run for a query that only reads what is there when it starts."""
    if not is_available_now(query.body):
        return None
    why = "It has trigger: available-now, so it doesn't read the erasure until it starts again."
    how = f"once the erasure is done: mzplan restart {query.address}"
    return Unreached(address=query.address, why=why, how=how)


def _unreached_target(sink: ResourceState, growing: Address | None, where: str) -> Unreached | None:
    """`growing`: the collection that it reads, if that only grows."""
    address, target = sink.address, target_name(sink) or "its target"
    if keeps_history(sink.body):
        why = f"{target} keeps the former versions of each key's row."
    elif growing is None:
        return None
    elif effect_on_target(sink) in _REWRITES:
        why = f"{target} only gets new rows of {growing}."
        return Unreached(address=address, why=why, how=_replace(address))
    else:
        why = f"{target} only gets new rows of {growing}, and keeps the ones that it has."
    return Unreached(address=address, why=why, how=_by_hand(sink, where))


def _loses_rows(sink: ResourceState, view: ResourceState) -> bool:
    """Whether the sink's target loses the erased rows once the view that it reads is replaced."""
    compares = view.is_replaced_beside and compares_generations(sink.type, sink.body)
    return compares or effect_on_target(sink) in _REWRITES


def _by_hand(sink: ResourceState, where: str) -> str:
    target = target_name(sink) or "its target"
    how = f"remove its rows from {target} by hand"
    if sink.body.get("table") == target and "select" not in sink.body:
        how = f"DELETE FROM {target} WHERE {where}"
    return f"once the erasure is done and the sink has read it: {how}"


def _replace(address: Address, when: str = "once the erasure is done") -> str:
    return f"{when}: mzplan apply --replace {address} --allow-replace"
