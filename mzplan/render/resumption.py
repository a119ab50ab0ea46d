"""Where queries resumed, outcomes of tasks, and runners' background jobs: for people and as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from mzplan.model.address import Address
from mzplan.model.observed import JobKind, Observation
from mzplan.model.state import InstanceStatus, ProjectStatus
from mzplan.model.tasks import Task, TaskOutcome
from mzplan.model.words import span
from mzplan.render.text import aligned_lines, safe


def render_resumed(address: Address, seen: Observation) -> str:
    """Format a resumption: `source.orders: resumed at 1,204,311; 18,040 records from the outage read`."""
    noun, done = ("records", "read") if address.reads_upstream else ("rows", "written")
    waits = f", {seen.lag:,} {seen.lag_unit or noun} wait" if seen.lag else ""
    if seen.run_rows is None:
        read = f"the {noun} since then aren't counted yet"
    else:
        read = f"{seen.run_rows:,} {noun} {f'from the outage {done}' if seen.lag == 0 else f'{done} since'}"
        waits = ", the rest isn't counted yet" if seen.lag is None else waits
    return f"{address}: resumed {_place(seen.resumed or {})}; {read}{waits}"


def resumed_to_json(seen: Observation) -> dict[str, Any]:
    """Return where a run resumed (`position` as in Spark's log), the rows since then, and the lag."""
    return {
        **(seen.resumed or {}),
        "rows": seen.run_rows,
        "lag": seen.lag,
        "lag_unit": seen.lag_unit,
    }


def task_to_json(task: Task, done: bool | None, outcome: TaskOutcome | None) -> dict[str, Any]:
    """Return a task, whether it is done (None: unknown), and its outcome if known."""
    return {
        "kind": task.kind,
        "serial": task.serial,
        "arguments": dict(task.arguments),
        "done": done,
        "outcome": dict(outcome.facts) if outcome is not None and outcome.facts else None,
    }


def _place(resumed: Any) -> str:
    """Format where a run resumed: at the next Kafka offset of each partition, or after the last step."""
    position = resumed.get("position")
    topics = list(position.values()) if isinstance(position, dict) else []
    if len(topics) == 1 and isinstance(topics[0], dict) and topics[0]:
        offsets = sorted((int(partition), int(offset)) for partition, offset in topics[0].items())
        if len(offsets) == 1:
            return f"at {offsets[0][1]:,}"
        shown = ", ".join(f"{partition}: {offset:,}" for partition, offset in offsets[:8])
        return f"at {shown}{', …' if len(offsets) > 8 else ''}"
    return f"after step {resumed.get('step')}"


_HEAD = ("JOB", "OF", "SINCE")
_VERBS: Mapping[JobKind, str] = {
    "start": "start or stop",
    "task": "one-off task, then start",
    "append": "append rows",
    "upstream": "check upstream or target",
    "connection": "check connection",
    "lag": "measure lag",
    "copy": "measure the first copy",
    "secret": "read secret",
    "survey": "list steps",
    "maintenance": "expire steps",
    "compaction": "compact files",
    "release": "remove objects on the server",
    "removal": "remove storage",
    "check": "validate",
    "proposal": "answer a proposal",
}


def render_jobs(status: ProjectStatus, now: float | None = None) -> str:
    """Format the jobs of each instance with a runner, in one table. `now` is in seconds since the epoch."""
    now = time.time() if now is None else now
    lines = []
    for instance in status.instances:
        if not instance.alive:
            lines.append(f"Instance {instance.name}: no runner is alive")
            continue
        if not instance.jobs:
            lines.append(f"Instance {instance.name}: no job takes longer than a moment")
            continue
        waiting = sum(not job.is_running for job in instance.jobs)
        lines.append(f"Instance {instance.name}: {len(instance.jobs) - waiting} running, {waiting} waiting")
        lines += [f"  {line}" for line in aligned_lines([_HEAD, *_rows(instance, now)])]
    return "\n".join(lines) + "\n"


def _rows(instance: InstanceStatus, now: float) -> list[tuple[str, str, str]]:
    return [
        (
            _VERBS[job.kind],
            safe(job.key),
            f"{'' if job.is_running else 'waiting for '}{span(max(0.0, now - job.since))}"
            f"{', hangs' if job.hangs else ''}",
        )
        for job in instance.jobs
    ]
