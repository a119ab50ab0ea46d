"""From a committed state to commands for the controller: a pure difference of what it was told and what is
now committed. A command is one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mzplan.controller.types import (
    CollectionDescription,
    ExportDescription,
    GlobalId,
    LagDuration,
    LagSteps,
    ReadPolicy,
    RetainFrom,
)
from mzplan.model.durations import seconds
from mzplan.model.state import State
from mzplan.schema.description import describe
from mzplan.schema.kinds import resource_kind


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
class Told:
    """What a controller was told last, by id."""

    collections: Mapping[GlobalId, CollectionDescription]
    exports: Mapping[GlobalId, ExportDescription]


NOTHING = Told(collections={}, exports={})


def wanted_of(state: State, instance: str) -> Told:
    """What the state wants of an instance: its sources and sinks, and what these have to do with others': the
    collections that its sinks read, and the sinks elsewhere that read its collections."""
    queries = [r for a, r in state.resources.items() if a.kind != "connection"]
    here = {r.address for r in queries if r.instance == instance}
    read = {r.references["from"] for r in queries if r.address in here and "from" in r.references}
    collections: dict[GlobalId, CollectionDescription] = {}
    exports: dict[GlobalId, ExportDescription] = {}
    for resource in queries:
        source = resource.references.get("from")
        if source is None and (resource.address in here or resource.address in read):
            collections[resource.id] = CollectionDescription(
                query=describe(resource, state.resources), instance=resource.instance, paused=resource.paused
            )
        elif source is not None and (resource.address in here or source in here):
            exports[resource.id] = ExportDescription(
                query=describe(resource, state.resources), instance=resource.instance, paused=resource.paused
            )
    return Told(collections=collections, exports=exports)


def commands(told: Told, wanted: Told) -> list[Command]:
    """What to tell the controller, in this order: sinks go before their sources and come after them."""
    found: list[Command] = []
    sinks = tuple(sorted(told.exports.keys() - wanted.exports.keys()))
    sources = tuple(sorted(told.collections.keys() - wanted.collections.keys()))
    if sinks:
        found.append(DropSinks(ids=sinks))
    if sources:
        found.append(DropSources(ids=sources))
    collections = tuple(c for i, c in sorted(wanted.collections.items()) if told.collections.get(i) != c)
    if collections:
        found.append(CreateCollections(collections=collections))
        found.append(SetReadPolicy(policies=tuple((c.query.id, policy_of(c)) for c in collections)))
    exports = tuple(e for i, e in sorted(wanted.exports.items()) if told.exports.get(i) != e)
    if exports:
        found.append(CreateExports(exports=exports))
    return found


def policy_of(collection: CollectionDescription) -> ReadPolicy:
    """What a source says of its `retention`; 7 days where it says nothing."""
    query = collection.query
    retention = resource_kind("source", query.type).with_defaults(query.body).get("retention", {})
    match retention:
        case {"steps": int(steps)}:
            return LagSteps(steps=steps)
        case {"duration": str(duration)}:
            return LagDuration(seconds=seconds(duration))
        case {"from": int(step)}:
            return RetainFrom(step=step)
    return RetainFrom(step=0)  # a connector of somebody else's, whose schema has no retention
