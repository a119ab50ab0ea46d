"""Small projects in memory, without files or a store, for the tests of planning."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from mzplan.model.address import Address
from mzplan.model.observed import Observation, Status
from mzplan.model.plan import Change, Plan
from mzplan.model.resources import Configuration, Instance, Resource
from mzplan.model.state import State
from mzplan.plan import apply_changes, build_plan
from mzplan.schema.kinds import resource_kind

LOCAL = {"local": Instance(name="local", type="embedded")}


def at(text: str) -> Address:
    return Address.parse(text)


def resource(address: str, type_: str, **body: Any) -> Resource:
    """Return a declared resource, normalised as by the loader."""
    where = at(address)
    kind = resource_kind(where.kind, type_)
    return Resource(
        address=where,
        type=type_,
        body=kind.normalise(body),
        references={role: r.address(name, ()) for role, r, name in kind.references_in(body)},
    )


def kafka(name: str = "k", **body: Any) -> Resource:
    return resource(f"connection.{name}", "kafka", **{"type": "kafka", "brokers": ["a:9092"], **body})


def postgres(name: str = "pg", **body: Any) -> Resource:
    given = {"type": "postgres", "host": "h", "database": "shop", "user": "app", **body}
    return resource(f"connection.{name}", "postgres", **given)


def files(name: str = "f", **body: Any) -> Resource:
    return resource(f"connection.{name}", "files", **{"type": "files", "path": "/data", **body})


def source(name: str = "orders", columns: str = "id BIGINT, amount INT", **body: Any) -> Resource:
    given = {"connection": "k", "topic": name, "format": {"type": "json", "schema": columns}, **body}
    return resource(f"source.{name}", "kafka", **given)


def sink(name: str = "orders_pg", **body: Any) -> Resource:
    given = {"from": "orders", "connection": "pg", "table": "t", "mode": "upsert", "key": ["id"], **body}
    return resource(f"sink.{name}", "postgres", **given)


def console(name: str, from_: str) -> Resource:
    return resource(f"sink.{name}", "console", **{"type": "console", "from": from_})


def project(*resources: Resource, **settings: Any) -> Configuration:
    given = {"project": "shop", "warehouse": "./warehouse", "instances": LOCAL, **settings}
    return Configuration(resources={r.address: r for r in resources}, **given)


def shop(instances: Mapping[str, Instance] = LOCAL, **changed: Resource) -> Configuration:
    """Return kafka `k` ← source `orders` ← sink `orders_pg` → postgres `pg`, with `changed` resources."""
    parts = {"k": kafka(), "pg": postgres(), "orders": source(), "orders_pg": sink()}
    return project(*{**parts, **changed}.values(), instances=instances)


def commit(configuration: Configuration, state: State | None = None, **options: Any) -> State:
    """Return the state after the configuration is applied."""
    state = state or State(project=configuration.project)
    return commit_plan(build_plan(configuration, state, **options), state)


def commit_plan(plan: Plan, state: State) -> State:
    ids = itertools.count(1)
    return apply_changes(state, plan, lambda: f"id-{state.serial}-{next(ids)}", lambda: "lineage-1")


def actions(plan: Plan) -> dict[str, str]:
    return {str(change.address): change.action for change in plan.changes}


def effects(plan: Plan) -> dict[str, str]:
    return {str(change.address): change.effect for change in plan.changes}


def change_of(plan: Plan, address: str) -> Change:
    return next(change for change in plan.changes if str(change.address) == address)


def fields(plan: Plan, address: str) -> dict[str, tuple[Any, Any, str]]:
    """Return (before, after, effect) of each field of one change, by path."""
    return {f.path: (f.before, f.after, f.effect) for f in change_of(plan, address).fields}


def names(addresses: Any) -> list[str]:
    return [str(address) for address in addresses]


def observe(state: State, **changed: Mapping[str, Any]) -> dict[str, Status]:
    """Return a status in which every query runs as committed. `changed`: other properties, by query name."""
    observations = {}
    for address, record in state.resources.items():
        if not record.digest:
            continue
        seen = {
            "generation": record.generation,
            "digest": record.digest,
            "wanted_digest": record.digest,
            "wanted_generation": record.generation,
            "condition": "paused" if record.paused else "running",
            "run_id": "run-1",
        }
        observations[address] = Observation(address=address, **{**seen, **changed.get(address.name, {})})
    status = Status(instance="local", epoch=1, heartbeat=0.0, serial=state.serial, observations=observations)
    return {"local": status}
