"""What a plan does to what is stored: which collections and checkpoints go, how large they are, and when."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from mzplan.model.diagnostics import Diagnostic
from mzplan.model.durations import shortest
from mzplan.model.plan import Plan
from mzplan.model.state import ResourceState, State
from mzplan.model.words import count, size
from mzplan.operations.project import Project

MAX_LISTED = 8
_LOOK = 2.0  # seconds that a command spends on sizes


def with_stored_data(plan: Plan, project: Project, state: State) -> Plan:
    """The plan for a state, with a notice (MZ152) of what it has removed, and when. Sizes are those of a
    warehouse on this machine, as far as they are found in two seconds."""
    gone = [c for c in plan.changes if c.action in ("delete", "replace") and c.before is not None]
    stored = [c.before for c in gone if c.before is not None and _stores(c.before, plan)]
    if not stored:
        return plan
    settings = plan.settings or state.settings or project.settings.runner
    wait = shortest(settings.retain_dropped)
    number = count(len(stored), "query", "queries")
    detail = [
        *_lines(stored, project, plan.warehouse),
        "What sinks have written into their targets stays.",
    ]
    deleted = [str(c.address) for c in gone if c.action == "delete" and c.before in stored]
    named = " ".join(deleted) if len(deleted) <= MAX_LISTED else "ADDRESS …"
    notice = Diagnostic(
        severity="notice",
        code="MZ152",
        summary=f"What {number} stored is removed {wait} after it stops (retain_dropped)",
        detail="\n".join(detail),
        hint=f"to keep it for good: mzplan state rm {named}, instead. "
        f"To have it back until then: mzplan state rollback {plan.serial}."
        if deleted
        else "",
    )
    return replace(plan, diagnostics=(*plan.diagnostics, notice))


def _stores(record: ResourceState, plan: Plan) -> bool:
    """Whether it is a query that has a runner: on a dry instance nothing is stored."""
    instance = plan.instances.get(record.instance)
    return bool(record.digest) and (instance is None or instance.type != "dry")


def _lines(stored: list[ResourceState], project: Project, warehouse: str) -> Iterator[str]:
    from mzplan.warehouse.checkpoints import Checkpoint, collection_path
    from mzplan.warehouse.paths import absolute

    place, until = absolute(project.settings.directory, warehouse), time.monotonic() + _LOOK
    for record in stored[:MAX_LISTED]:
        folders = {"checkpoint": Checkpoint.of(place, record.id, record.generation).folder}
        if record.address.kind == "source":
            folders = {"collection": collection_path(place, record.id, record.generation), **folders}
        shown = (f"{what}{_size(folder, until)}" for what, folder in folders.items())
        yield f"{record.address}: {' and '.join(shown)} ({record.id}, generation {record.generation})"
    if len(stored) > MAX_LISTED:
        yield f"and of {len(stored) - MAX_LISTED} more"


def _size(folder: str, until: float) -> str:
    """` of 1.5 MiB`, ` (nothing yet)`; "" where that takes longer, or can't be seen from here."""
    from mzplan.warehouse.checkpoints import stored_in
    from mzplan.warehouse.paths import local_path

    local = local_path(folder)
    if local is None or time.monotonic() > until or not local.parents[2].is_dir():
        return ""
    try:
        found = stored_in(folder)
    except OSError:  # a runner is at work in it
        return ""
    return f" of {size(found.bytes)}" if found is not None else " (nothing yet)"
