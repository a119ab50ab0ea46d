"""`status`: every query, for a person and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mzplan.model.canary import Canary, Verdict
from mzplan.model.state import ProjectStatus, QueryStatus, ResourceState
from mzplan.render.storage import size
from mzplan.render.text import Paint, cut, safe

if TYPE_CHECKING:
    from mzplan.operations.reached import Reach

_COLUMNS = ("QUERY", "INSTANCE", "CONDITION", "STEP", "ROWS/S", "LAG")


def reach_to_json(reach: Reach) -> dict[str, Any]:
    """A connection that was validated live, in the documents of `validate --live` and of VALIDATE
    CONNECTION."""
    found: dict[str, Any] = {
        "address": str(reach.address),
        "queries": [str(query) for query in reach.queries],
    }
    if reach.left_out:
        found["left_out"] = {str(query): why for query, why in sorted(reach.left_out.items())}
    return found


def status_to_json(status: ProjectStatus) -> dict[str, Any]:
    """The document of `status --json` (interface.md)."""
    return {
        "serial": status.serial,
        "instances": [
            {
                "name": instance.name,
                "epoch": instance.epoch,
                "alive": instance.alive,
                "heartbeat": instance.heartbeat,
                "serial": instance.serial,
            }
            for instance in status.instances
        ],
        "queries": [_query_to_json(query) for query in status.queries],
        "canaries": [_canary_to_json(canary, verdict) for canary, verdict in status.canaries],
        "dropped": [
            {
                "address": storage.address,
                "id": storage.id,
                "generation": storage.generation,
                "dropped_at": storage.dropped_at,
            }
            for storage in status.dropped
        ],
    }


def _canary_to_json(canary: Canary, verdict: Verdict | None) -> dict[str, Any]:
    return {
        "address": str(canary.address),
        "serial": canary.serial,
        "wait": canary.wait,
        "holds": [str(held) for held in canary.holds],
        "verdict": "awaited" if verdict is None else "passed" if verdict.passed else verdict.condition,
        "reason": verdict.reason if verdict is not None and not verdict.passed else None,
    }


def _query_to_json(query: QueryStatus) -> dict[str, Any]:
    seen, resource = query.observation, query.resource
    return {
        "address": str(resource.address),
        "instance": resource.instance,
        "id": seen.query_id if seen else None,
        "run_id": seen.run_id if seen else None,
        "generation": seen.generation if seen else resource.generation,
        "digest": seen.digest if seen else "",
        "condition": condition(query),
        "step": seen.step if seen and seen.step >= 0 else None,
        "input_rows_per_second": seen.input_rows_per_second if seen else 0.0,
        "lag": seen.lag if seen else None,
        "left_out": seen.left_out if seen else 0,
        "backlog": dict(seen.backlog) if seen and seen.backlog else None,
        "warning": seen.warning if seen else None,
        "error": seen.error if seen else None,
        "held": seen.held if seen else None,
    }


def condition(query: QueryStatus) -> str:
    """The condition; a query that no runner has reported yet is paused (if so committed) or stopped."""
    if query.observation is not None:
        return query.observation.condition
    return "paused" if query.resource.paused else "stopped"


def render_status(status: ProjectStatus, color: bool = False) -> str:
    """A line for each instance, a table of the queries, and the errors below it."""
    paint = Paint(color)
    lines = [f"Serial {status.serial}"]
    for instance in status.instances:
        if instance.alive:
            behind = "" if instance.serial >= status.serial else f", still at serial {instance.serial}"
            lines.append(f"Instance {instance.name}: alive (epoch {instance.epoch}{behind})")
        else:
            lines.append(
                f"Instance {instance.name}: no runner is alive (start one with `mzplan up` or `run`)"
            )
    rows = [_COLUMNS, *(_row(query) for query in status.queries)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    lines.append("")
    for number, row in enumerate(rows):
        text = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        lines.append(paint(text, "bold") if number == 0 else _coloured(paint, row[2], text))
    for storage in status.dropped:
        lines.append("")
        lines.append(
            f"Kept for now: the storage of {storage.address}, generation {storage.generation} "
            f"({storage.id}), which nothing claims any more; it is removed after retain_dropped."
        )
    errors = [q for q in status.queries if q.observation is not None and q.observation.error]
    for query in errors:
        assert query.observation is not None
        code = f"[{query.observation.error_code}] " if query.observation.error_code else ""
        lines.append("")
        lines.append(f"{query.resource.address}: {code}{cut(safe(query.observation.error or ''), 600)}")
    for query in status.queries:
        backlog = query.observation.backlog if query.observation is not None else None
        if backlog:
            behind, kept = size(backlog.get("lag_bytes", 0)), size(backlog.get("retained_bytes", 0))
            lines += [
                "",
                f"{query.resource.address}: {behind} of the server's log to read; its slot keeps {kept}",
            ]
    for query in status.queries:
        if query.observation is not None and query.observation.held:
            lines += ["", f"{query.resource.address}: held: {cut(safe(query.observation.held), 600)}"]
    for query in status.queries:
        if query.observation is not None and query.observation.warning:
            lines += ["", f"{query.resource.address}: warning {cut(safe(query.observation.warning), 600)}"]
    for query in status.queries:
        if query.observation is not None and query.observation.left_out:
            lines += [
                "",
                f"{query.resource.address}: {_left_out(query.observation.left_out, query.resource)}",
            ]
    return "\n".join(lines) + "\n"


def _left_out(count: int, resource: ResourceState) -> str:
    kept = resource.body.get("on_error") == "dead-letter"
    records = f"{count:,} malformed record{'s' if count > 1 else ''}"
    return f"{records} {'kept aside' if kept else 'skipped'} since it was started"


def _row(query: QueryStatus) -> tuple[str, ...]:
    seen = query.observation
    return (
        str(query.resource.address),
        query.resource.instance,
        condition(query),
        str(seen.step) if seen and seen.step >= 0 else "-",
        f"{seen.input_rows_per_second:.1f}" if seen else "-",
        str(seen.lag) if seen and seen.lag is not None else "-",
    )


def _coloured(paint: Paint, condition: str, text: str) -> str:
    match condition:
        case "rejected" | "failed":
            return paint(text, "red")
        case "starting" | "paused" | "stopped":
            return paint(text, "yellow")
        case _:
            return text
