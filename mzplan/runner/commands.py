"""From a committed state to commands for the controller: a pure difference of what it hosts and what is now
committed. A command is one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import assert_never

from mzplan.controller.core import Controller
from mzplan.controller.reconcile import Pace
from mzplan.controller.terms import (
    CollectionDescription,
    CollectionState,
    ExportDescription,
    ExportState,
    GlobalId,
    LagDuration,
    LagSteps,
    ReadPolicy,
    RetainFrom,
    StorageParameters,
)
from mzplan.host.failpoints import Failpoint, failpoint
from mzplan.model.resources import RunnerSettings
from mzplan.model.state import State
from mzplan.model.times import seconds
from mzplan.schema.description import describe
from mzplan.schema.source_columns import collection_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSinks:
    ids: tuple[GlobalId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropSources:
    ids: tuple[GlobalId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateCollections:
    """New ones, and those that are described anew."""

    collections: tuple[CollectionDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateExports:
    """New ones, and those that are described anew: each is prepared first."""

    exports: tuple[ExportDescription, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SetReadPolicy:
    """How far back collections can be read."""

    policies: tuple[tuple[GlobalId, ReadPolicy], ...]


Command = DropSinks | DropSources | CreateCollections | CreateExports | SetReadPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedQueries:
    """What a state wants of a controller, by id."""

    collections: Mapping[GlobalId, CollectionDescription]
    exports: Mapping[GlobalId, ExportDescription]


def wanted_of(state: State, instance: str) -> WantedQueries:
    """Return what the state wants of an instance: its queries, the collections of other instances that they
    read, and the queries of other instances that read theirs. A view is both a collection and an export."""
    queries = [r for a, r in state.resources.items() if a.kind != "connection"]
    own = {r.address for r in queries if r.instance == instance}
    mine = [r for r in queries if r.address in own]
    read = {address for r in mine for address in (*r.reads.values(), *r.snapshots.values())}
    collections: dict[GlobalId, CollectionDescription] = {}
    exports: dict[GlobalId, ExportDescription] = {}
    for resource in queries:
        reads, address = set(resource.reads.values()), resource.address
        if address.writes_collection and (address in own or address in read):
            collections[resource.id] = CollectionDescription(
                query=describe(resource, state.resources),
                instance=resource.instance,
                paused=resource.paused,
                because=resource.because,
            )
        if reads and (address in own or reads & own):
            exports[resource.id] = ExportDescription(
                query=describe(resource, state.resources),
                instance=resource.instance,
                paused=resource.paused,
                because=resource.because,
            )
    return WantedQueries(collections=collections, exports=exports)


def commands(
    collections: Mapping[GlobalId, CollectionState],
    exports: Mapping[GlobalId, ExportState],
    wanted: WantedQueries,
) -> list[Command]:
    """From what a controller hosts to what is wanted, in this order: sinks go before their sources and come
    after them."""
    needed: list[Command] = []
    sinks = tuple(sorted(exports.keys() - wanted.exports.keys()))
    sources = tuple(sorted(collections.keys() - wanted.collections.keys()))
    if sinks:
        needed.append(DropSinks(ids=sinks))
    if sources:
        needed.append(DropSources(ids=sources))
    sources_now, sinks_now = sorted(wanted.collections.items()), sorted(wanted.exports.items())
    described = tuple(c for i, c in sources_now if i not in collections or collections[i].description != c)
    if described:
        needed.append(CreateCollections(collections=described))
    policies = tuple((i, policy_of(c)) for i, c in sources_now)
    policies = tuple((i, p) for i, p in policies if i not in collections or collections[i].policy != p)
    if policies:
        needed.append(SetReadPolicy(policies=policies))
    written = tuple(e for i, e in sinks_now if i not in exports or exports[i].description != e)
    if written:
        needed.append(CreateExports(exports=written))
    return needed


def carry_out(command: Command, controller: Controller) -> None:
    """Raises StorageError; then nothing of the command was done."""
    match command:
        case DropSinks(ids=ids):
            controller.drop_sinks(ids)
            failpoint(Failpoint.COMMAND_DROP_SINKS)
        case DropSources(ids=ids):
            controller.drop_sources(ids)
            failpoint(Failpoint.COMMAND_DROP_SOURCES)
        case CreateCollections(collections=collections):
            controller.create_collections([(collection.query.id, collection) for collection in collections])
            failpoint(Failpoint.COMMAND_CREATE_COLLECTIONS)
        case CreateExports(exports=exports):
            # An export of another instance may also read collections that this one has nothing to do with.
            hosted = dict(controller.collections())
            reads = [(e, from_id) for e in exports for from_id in e.from_ids if from_id in hosted]
            tokens = controller.prepare_exports([(export.query.id, from_id) for export, from_id in reads])
            failpoint(Failpoint.COMMAND_PREPARE_EXPORTS)
            controller.create_exports(
                [(token, export) for token, (export, _) in zip(tokens, reads, strict=True)]
            )
            failpoint(Failpoint.COMMAND_CREATE_EXPORTS)
        case SetReadPolicy(policies=policies):
            controller.set_read_policy(policies)
            failpoint(Failpoint.COMMAND_SET_READ_POLICY)
        case _:
            assert_never(command)


def policy_of(collection: CollectionDescription) -> ReadPolicy:
    """What a source says of its `retention`; 7 days where it says nothing."""
    query = collection.query
    retention = collection_kind(query.type).with_defaults(query.body).get("retention", {})
    match retention:
        case {"steps": int(steps)}:
            return LagSteps(steps=steps)
        case {"duration": str(duration)}:
            return LagDuration(seconds=seconds(duration))
        case {"from": int(step)}:
            return RetainFrom(step=step)
    return RetainFrom(step=0)  # a connector of somebody else's, whose schema has no retention


def parameters_of(settings: RunnerSettings, now: StorageParameters) -> StorageParameters:
    """What the settings say of parameters; of others, those of `now`."""
    retries = settings.retries
    pace = Pace(first=retries.first, last=retries.last, budget=retries.budget)
    return replace(now, retain_dropped=settings.retain_dropped, pace=pace)
