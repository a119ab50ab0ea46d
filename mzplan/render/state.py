"""`show`: the recorded state. It holds no secrets, so all of it can be shown."""

from __future__ import annotations

from typing import Any

from mzplan.model.address import natural_item
from mzplan.model.codec import encode
from mzplan.model.state import ResourceState, State


def resource_to_json(resource: ResourceState) -> dict[str, Any]:
    return {
        "address": str(resource.address),
        "id": resource.id,
        "type": resource.type,
        "generation": resource.generation,
        "digest": resource.digest,
        "override": resource.override,
        "restart_token": resource.restart_token,
        **({"tasks": [encode(task) for task in resource.tasks]} if resource.tasks else {}),
        "dependencies": [str(address) for address in resource.dependencies],
        "body": dict(resource.body),
    }


def state_to_json(state: State) -> dict[str, Any]:
    return {
        "format_version": state.format_version,
        "project": state.project,
        "lineage": state.lineage,
        "serial": state.serial,
        **({"environment": state.environment} if state.environment else {}),
        "warehouse": state.warehouse,
        "instances": {
            name: {"type": i.type} for name, i in sorted(state.instances.items(), key=natural_item)
        },
        "forgotten": [
            {"id": id_, "address": str(address), "generation": generation}
            for id_, (address, generation) in sorted(state.forgotten.items())
        ],
        "resources": [
            resource_to_json(resource) for _, resource in sorted(state.resources.items(), key=natural_item)
        ],
    }
