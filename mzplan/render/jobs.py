"""`status --jobs`: the background jobs of runners."""

from __future__ import annotations

import time
from collections.abc import Mapping

from mzplan.model.observed import JobKind
from mzplan.model.state import InstanceStatus, ProjectStatus
from mzplan.model.words import span
from mzplan.render.text import aligned_lines, safe

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
            f"{'' if job.is_running else 'waiting for '}{span(max(0.0, now - job.since))}",
        )
        for job in instance.jobs
    ]
