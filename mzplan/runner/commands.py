"""Turns a committed state into calls of the controller: one call for each kind of difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mzplan.controller.core import Controller
from mzplan.controller.terms import (
    CollectionDescription,
    ExportDescription,
    GlobalId,
    HostedQuery,
    LagDuration,
    LagSteps,
    ReadPolicy,
    RetainFrom,
)
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.state import State
from mzplan.model.times import seconds
from mzplan.schema.description import describe
from mzplan.schema.source_columns import collection_kind

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedQueries:
    """The collections and exports that a controller should host, by id."""

    collections: Mapping[GlobalId, CollectionDescription]
    exports: Mapping[GlobalId, ExportDescription]


def wanted_queries(state: State, instance: str) -> WantedQueries:
    """Return the collections and exports that the instance should host.

    It hosts its own queries, the collections of other instances that they read, and the queries of other
    instances that read its collections. A view is both a collection and an export.
    """
    queries = [r for a, r in state.resources.items() if a.is_query]
    own = {r.address for r in queries if r.instance == instance}
    own_queries = [r for r in queries if r.address in own]
    read = {address for r in own_queries for address in (*r.reads.values(), *r.snapshots.values())}
    collections: dict[GlobalId, CollectionDescription] = {}
    exports: dict[GlobalId, ExportDescription] = {}
    for resource in queries:
        reads, address = set(resource.reads.values()), resource.address
        is_own = address in own
        written = address.writes_collection and (is_own or address in read)
        is_reader = bool(reads) and (is_own or bool(reads & own))
        if not written and not is_reader:
            continue
        hosted = HostedQuery(
            query=describe(resource, state.resources),
            instance=resource.instance,
            paused=resource.paused,
            because=resource.because,
        )
        if written:
            collections[resource.id] = hosted
        if is_reader:
            exports[resource.id] = hosted
    return WantedQueries(collections=collections, exports=exports)


def apply_wanted(wanted: WantedQueries, controller: Controller) -> None:
    """Call the controller for each difference between the hosted and the wanted queries.

    Drops sinks before their sources, and creates sinks after their sources. Raises StorageError: the failed
    call has changed nothing, and the next comparison finds the same difference.
    """
    collections, exports = dict(controller.collections()), dict(controller.exports())
    if sinks := sorted(exports.keys() - wanted.exports.keys()):
        controller.drop_sinks(sinks)
        failpoint(Failpoint.COMMAND_DROP_SINKS)
    if sources := sorted(collections.keys() - wanted.collections.keys()):
        controller.drop_sources(sources)
        failpoint(Failpoint.COMMAND_DROP_SOURCES)
    changed = _differences(wanted.collections, {i: state.description for i, state in collections.items()})
    if changed:
        controller.create_collections(changed)
        failpoint(Failpoint.COMMAND_CREATE_COLLECTIONS)
    wanted_policies = {i: policy_of(c) for i, c in wanted.collections.items()}
    policies = _differences(wanted_policies, {i: state.policy for i, state in collections.items()})
    if policies:
        controller.set_read_policy(policies)
        failpoint(Failpoint.COMMAND_SET_READ_POLICY)
    changed_exports = _differences(wanted.exports, {i: state.description for i, state in exports.items()})
    if changed_exports:
        create_exports([export for _, export in changed_exports], controller)


def create_exports(exports: Sequence[ExportDescription], controller: Controller) -> None:
    # A query of another instance may also read collections that this controller doesn't host.
    hosted = dict(controller.collections())
    reads = [(export, from_id) for export in exports for from_id in export.from_ids if from_id in hosted]
    tokens = controller.prepare_exports([(export.query.id, from_id) for export, from_id in reads])
    failpoint(Failpoint.COMMAND_PREPARE_EXPORTS)
    controller.create_exports([(token, export) for token, (export, _) in zip(tokens, reads, strict=True)])
    failpoint(Failpoint.COMMAND_CREATE_EXPORTS)


def _differences(wanted: Mapping[GlobalId, T], now: Mapping[GlobalId, T]) -> list[tuple[GlobalId, T]]:
    return [(id_, value) for id_, value in sorted(wanted.items()) if id_ not in now or now[id_] != value]


def policy_of(collection: CollectionDescription) -> ReadPolicy:
    """Return the read policy that a source's `retention` asks for; its default is 7 days."""
    query = collection.query
    retention = collection_kind(query.type).with_defaults(query.body).get("retention", {})
    match retention:
        case {"steps": int(steps)}:
            return LagSteps(steps=steps)
        case {"duration": str(duration)}:
            return LagDuration(seconds=seconds(duration))
        case {"from": int(step)}:
            return RetainFrom(step=step)
    return RetainFrom(step=0)  # a third-party connector, whose schema has no retention
