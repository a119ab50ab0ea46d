"""The JSON of `status`, and the order of its queries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from mzplan.model.address import natural, natural_item
from mzplan.model.codec import encode
from mzplan.model.observed import MEASURES, CanaryVerdict, Condition
from mzplan.model.state import Canary, ProjectStatus, QueryStatus
from mzplan.model.violations import ViolationCount
from mzplan.render.cause_text import cause_to_json
from mzplan.render.resumption import task_to_json
from mzplan.render.status_notes import lag_unit, observed

if TYPE_CHECKING:
    from mzplan.operations.connections import Reachability

# Queries that need attention come first.
ORDER: tuple[Condition, ...] = (
    "failed",
    "rejected",
    "stopped",
    "degraded",
    "starting",
    "paused",
    "running",
)


def reach_to_json(reach: Reachability) -> dict[str, Any]:
    """Return a connection that was validated live, for `validate --live` and VALIDATE CONNECTION."""
    document: dict[str, Any] = {
        "address": str(reach.address),
        "queries": [str(query) for query in reach.queries],
    }
    if reach.unreached:
        document["left_out"] = {
            str(query): why for query, why in sorted(reach.unreached.items(), key=natural_item)
        }
    return document


def status_to_json(status: ProjectStatus, by: str = "name") -> dict[str, Any]:
    """Return the document of `status --json` (interface.md). Queries are sorted as by `in_order`."""
    return {
        "serial": status.serial,
        "instances": [
            {
                "name": instance.name,
                "epoch": instance.epoch,
                "alive": instance.alive,
                "heartbeat": instance.heartbeat,
                **({"replaced": instance.replaced} if instance.replaced else {}),
                **({"ended": instance.ended} if instance.ended else {}),
                **({"caught_up_at": instance.caught_up_at} if instance.caught_up_at is not None else {}),
                **({"elsewhere": instance.elsewhere.detail} if instance.elsewhere is not None else {}),
                **({"cores": instance.cores, "slowest": instance.slowest} if instance.cores else {}),
                "serial": instance.serial,
                "opening_since": instance.opening_since,
                "versions": encode(instance.versions) if instance.versions else None,
                **({"jobs": [encode(job) for job in instance.jobs]} if instance.jobs else {}),
            }
            for instance in status.instances
        ],
        "queries": [query_to_json(query) for query in in_order(status.queries, by)],
        "canaries": [_canary_to_json(canary, verdict) for canary, verdict in status.canaries],
        "dropped": [encode(storage) for storage in status.dropped],
        **({"environment": status.environment} if status.environment else {}),
    }


def _canary_to_json(canary: Canary, verdict: CanaryVerdict | None) -> dict[str, Any]:
    return {
        "address": str(canary.address),
        "serial": canary.serial,
        "wait": canary.wait,
        "holds": [str(held) for held in canary.holds],
        "verdict": "awaited" if verdict is None else "passed" if verdict.passed else verdict.condition,
        "reason": verdict.reason if verdict is not None and not verdict.passed else None,
    }


def query_to_json(query: QueryStatus) -> dict[str, Any]:
    seen, resource = observed(query), query.resource
    return {
        "address": str(resource.address),
        "instance": resource.instance,
        "id": seen.query_id,
        "run_id": seen.run_id,
        "generation": seen.generation,
        "digest": seen.digest,
        "condition": query.condition,
        "awaits": query.start_stage,
        "step": seen.step if seen.step >= 0 else None,
        "input_rows_per_second": seen.input_rows_per_second,
        "lag": seen.lag,
        "lag_unit": lag_unit(query),
        "as_of": query.as_of,
        "total_rows": seen.total_rows,
        "last_batch": {"rows": seen.last_rows, "at": seen.last_batch_at} if seen.last_batch_at else None,
        "attempts": seen.failures,
        "retry_at": seen.retry_at,
        "left_out": seen.left_out,
        "backlog": dict(seen.backlog) if seen.backlog else None,
        "warning": seen.warning,
        "error": seen.error,
        "held": seen.held,
        **({"completed": True} if seen.completed else {}),
        "at_fault": str(seen.at_fault) if seen.at_fault else None,
        "fault": seen.fault,
        "repair": query.repair,
        **({"stale_inputs": [encode(stale) for stale in query.stale_inputs]} if query.stale_inputs else {}),
        **({"fault_fix": seen.fault_fix} if seen.fault_fix else {}),
        **({"fault_since": seen.fault_since} if seen.at_fault and seen.fault_since else {}),
        **({"function": seen.function} if seen.function else {}),
        **({"function_before": seen.function_before} if seen.function_before else {}),
        "written_with": encode(seen.written_with) if seen.written_with else None,
        **dict(measure.to_json(name, getattr(seen, name)) for name, measure in MEASURES.items()),
        "counters": encode(replace(seen.counters, starts={})) if seen.counters else None,
        "starts": dict(seen.counters.starts) if seen.counters else {},
        "started_because": cause_to_json(seen.started_because) if seen.started_because else None,
        **({"violations": _violations_to_json(seen.violations)} if seen.violations else {}),
        **({"refreshed": seen.refreshed} if seen.refreshed else {}),
        **({"tasks": _tasks_to_json(query)} if resource.own_tasks else {}),
        **({"task": encode(seen.task)} if seen.task is not None else {}),
    }


def _violations_to_json(violations: Mapping[str, ViolationCount]) -> dict[str, Any]:
    return {name: encode(counted) for name, counted in sorted(violations.items())}


def _tasks_to_json(query: QueryStatus) -> list[dict[str, Any]]:
    """Return the tasks that the next request doesn't remove yet."""
    resource, seen = query.resource, query.observation
    outcomes = {outcome.serial: outcome for outcome in seen.tasks_done} if seen is not None else {}
    return [
        task_to_json(task, resource.has_done(task, seen), outcomes.get(task.serial))
        for task in resource.own_tasks
    ]


def in_order(queries: Iterable[QueryStatus], by: str) -> list[QueryStatus]:
    """Return the queries sorted by `name`, `condition`, `lag` or `rows`.

    By condition, queries that need attention come first. By lag or rows, the largest come first and queries
    without the number last.
    """

    def key(query: QueryStatus) -> tuple[float, str]:
        seen, rank = query.observation, 0.0
        if by == "condition":
            rank = ORDER.index(query.condition)
        elif by != "name":
            number = None if seen is None else seen.lag if by == "lag" else seen.total_rows
            rank = inf if number is None else -number
        return rank, natural(query.resource.address)

    return sorted(queries, key=key)
