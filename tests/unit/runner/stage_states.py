"""States for traces: the source `orders` and the sink `out`, and edits of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mzplan.model.address import Address
from mzplan.model.resources import Instance, Retries, RunnerSettings
from mzplan.model.state import Canary, ResourceState, State
from mzplan.model.tasks import Task
from mzplan.schema.description import digest_of
from tests.unit.runner.test_runner import make_state

# The fields of a ResourceState; other edits are of its body.
FIELDS = ("id", "generation", "override", "restart_token", "may_lose")


def make_first() -> State:
    """Return the state with the connection `k`, the source `orders` and the sink `out`."""
    state = make_state(0)
    orders_out, out = Address("sink", "orders_out"), Address("sink", "out")
    resources = {a: r for a, r in state.resources.items() if a != orders_out}
    resources[out] = replace(state.resources[orders_out], address=out)
    names = {name: Instance(name=name, type="embedded") for name in ("local", "big")}
    return replace(state, resources=resources, instances=names)


def edit(state: State, edits: Mapping[str, Any]) -> State:
    """Return the state with these edits, by address:

    - None: the resource is removed;
    - `like: ADDRESS`: a copy with an id of its own; `rename: ADDRESS`: another name for the same id;
    - `stream: ADDRESS, tables: [ADDRESS]`: a view;
    - `tasks: [TITLE]`; a field of ResourceState; anything else is a property of the resource's body.

    `canaries`, `retries` and `retain_dropped` are of the whole state.
    """
    resources = dict(state.resources)
    for name, wanted in edits.items():
        if "." in name:
            _edit_one(resources, Address.parse(name), wanted, state.serial)
    for address, resource in resources.items():
        if address.is_query:
            resources[address] = replace(resource, digest=digest_of(resource, resources))
    canaries = tuple(
        Canary(
            address=Address.parse(name),
            wait=float(made.get("wait", 60.0)),
            holds=tuple(map(Address.parse, made.get("holds", ()))),
            serial=state.serial,
        )
        for name, made in edits.get("canaries", {}).items()
    )
    settings = state.settings or RunnerSettings()
    settings = replace(settings, retries=Retries(**edits["retries"])) if "retries" in edits else settings
    retained = edits.get("retain_dropped", settings.retain_dropped)
    settings = replace(settings, retain_dropped=float(retained))
    return replace(state, resources=resources, canaries=canaries, settings=settings)


def _edit_one(
    resources: dict[Address, ResourceState], address: Address, wanted: Mapping[str, Any] | None, serial: int
) -> None:
    if wanted is None:
        del resources[address]
        return
    more = dict(wanted)
    if "like" in more:
        resources[address] = replace(
            resources[Address.parse(more.pop("like"))], address=address, id=address.name
        )
    elif "rename" in more:
        _rename(resources, Address.parse(more.pop("rename")), address)
    elif "stream" in more:
        stream, tables = Address.parse(more.pop("stream")), map(Address.parse, more.pop("tables", ()))
        references = {"reads[0]": stream} | {f"snapshots[{n}]": table for n, table in enumerate(tables)}
        body = {"query": f"SELECT id FROM {stream.name}", "schema": "id BIGINT"}
        resources[address] = ResourceState(
            address=address, id=address.name, type="sql", body=body, references=references
        )
    made = resources[address]
    tasks = tuple(
        Task(kind="replay", arguments={}, serial=serial, generation=made.generation, title=title)
        for title in more.pop("tasks", ())
    )
    fields = {name: more.pop(name) for name in FIELDS if name in more}
    resources[address] = replace(made, **fields, tasks=made.tasks + tasks, body={**made.body, **more})


def _rename(resources: dict[Address, ResourceState], old: Address, new: Address) -> None:
    resources[new] = replace(resources.pop(old), address=new)
    for address, resource in resources.items():
        references = {role: new if at == old else at for role, at in resource.references.items()}
        if references != resource.references:
            renamed = {name: new.name for name, value in resource.body.items() if value == old.name}
            resources[address] = replace(resource, references=references, body={**resource.body, **renamed})
