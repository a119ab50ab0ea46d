"""`plan --explain`: the stages of applying a plan, as text and as JSON.

Also the recorded state for `show`. It holds no secrets, so all of it can be shown.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from mzplan.model.address import natural_item
from mzplan.model.codec import encode
from mzplan.model.plan import Plan
from mzplan.model.state import ResourceState, State
from mzplan.model.words import count, first_names
from mzplan.plan.stages import QuerySwitch, Run, Stage, stages_of
from mzplan.render.plan_text import MAX_LISTED, SIGNS
from mzplan.render.text import Paint, safe

_WIDTH = 100
_INDENT = "   "


def render_stages(plan: Plan, colour: bool = False) -> str:
    """Format the stages, ending in a newline."""
    paint = Paint(colour)
    stages = stages_of(plan)
    if not stages:
        return "Nothing to apply.\n"
    lines = [paint("What apply will do:", "bold")]
    for number, stage in enumerate(stages, 1):
        lines += ["", *_wrapped(stage.summary[0].upper() + stage.summary[1:] + ".", f"{number}. ")]
        lines += _content(plan, stage)
        lines += [paint(line, "dim") for line in _wrapped(f"If it fails: {stage.on_failure}.", _INDENT)]
    return "\n".join(lines) + "\n"


def stages_to_json(plan: Plan) -> list[dict[str, Any]]:
    """Return the stages as JSON values: `"stages"` of `plan --explain --json`."""
    return [_stage_to_json(plan, stage) for stage in stages_of(plan)]


def _content(plan: Plan, stage: Stage) -> Iterator[str]:
    for instance, addresses in stage.instances:
        yield f"{_INDENT}  instance {safe(instance)}: {first_names(addresses, MAX_LISTED)}"
    width = max((len(str(change.address)) for change in stage.queries), default=0)
    for change in stage.queries:
        yield f"{_INDENT}{SIGNS[change.action]} {change.address!s:<{width}}  {_transition(change)}"
    if stage.name == "switch" and (plan.downstream or plan.unaffected):
        kept = [str(address) for address in plan.downstream[:MAX_LISTED]]
        others = plan.unaffected + len(plan.downstream) - len(kept)
        parts = kept + ([f"{count(others, 'other resource')}"] if others else [])
        yield f"{_INDENT}  Unaffected: {', '.join(parts)}"


def _transition(change: QuerySwitch) -> str:
    """Format a query's change: `stops on local; starts from checkpoints/3f…/g1 on local`."""
    stops, starts = change.stops, change.starts
    parts = []
    if stops is not None and starts is not None and stops.instance == starts.instance:
        parts.append(f"stops and starts on {safe(stops.instance)}, {_from(starts, fresh=stops != starts)}")
    else:
        if stops is not None:
            parts.append(f"stops on {safe(stops.instance)}")
        if starts is not None:
            parts.append(f"starts on {safe(starts.instance)}, {_from(starts, fresh=stops is None)}")
    return "; ".join([*parts, *(safe(note) for note in change.notes)])


def _from(run: Run, *, fresh: bool) -> str:
    if run.checkpoint is None:
        return "with a new checkpoint"
    return f"{'with' if fresh else 'from'} {safe(run.checkpoint)}"


def _stage_to_json(plan: Plan, stage: Stage) -> dict[str, Any]:
    document: dict[str, Any] = {"stage": stage.name, "does": stage.summary, "on_failure": stage.on_failure}
    match stage.name:
        case "validate":
            document["instances"] = [
                {"instance": name, "queries": [str(address) for address in addresses]}
                for name, addresses in stage.instances
            ]
        case "commit":
            document |= {"serial_before": plan.serial, "serial_after": plan.serial + 1}
        case "switch":
            document["queries"] = [encode(change) for change in stage.queries]
            document["keeps_running"] = [str(address) for address in plan.downstream]
            document["unaffected"] = plan.unaffected
    return document


def _wrapped(text: str, first: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=first, subsequent_indent=_INDENT, break_long_words=False
    )


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
