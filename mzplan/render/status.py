"""`status`: every query, for people and as JSON."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from mzplan.model.observed import Observation
from mzplan.model.state import (
    DroppedStorage,
    InstanceStatus,
    ProjectStatus,
    QueryStatus,
)
from mzplan.model.words import count, first_names, size, span
from mzplan.render.status_json import ORDER, in_order
from mzplan.render.status_notes import NOTES, STARTED, lag_unit, observed
from mzplan.render.text import Paint, aligned_lines, paragraph, safe

MAX_DROPPED = 3  # dropped generations that are listed
SLOW_SECONDS = 15.0  # seconds; a shortage of cores is shown if the slowest query waits this long
MAX_NAMED = 8  # queries in one note
COLUMNS = (
    "QUERY",
    "INSTANCE",
    "CONDITION",
    "STEP",
    "ROWS",
    "ROWS/S",
    "LAG",
    "LAST BATCH",
    "ATTEMPTS",
    "NEXT TRY",
)


def has_failed(status: ProjectStatus) -> bool:
    """Whether a query failed, was rejected, can't reach a connection, or should run but doesn't yet."""
    starting = {instance.name for instance in status.instances if instance.is_starting}
    caught_up = {instance.name for instance in status.instances if instance.caught_up_at is not None}
    return any(
        query.condition in ("failed", "rejected", "degraded")
        or (
            (query.condition in ("stopped", "starting") or query.resource.instance in starting)
            and not query.resource.paused
            and not observed(query).completed
            and query.resource.instance not in caught_up
        )
        for query in status.queries
    )


def render_status(
    status: ProjectStatus, color: bool = False, now: float | None = None, by: str = "condition"
) -> str:
    """Format a line for each instance, a table of the queries sorted `by`, and notes below it.

    Equal notes appear once, with the names of their queries. `now` is in seconds since the epoch.
    """
    now = time.time() if now is None else now
    paint = Paint(color)
    lines = [
        f"Serial {status.serial}" + (f", environment {status.environment}" if status.environment else "")
    ]
    which = f" --env {safe(shlex.quote(status.environment))}" if status.environment else ""
    for instance in status.instances:
        if instance.is_dry:
            lines.append(f"Instance {instance.name}: dry (nothing runs: `running` means committed)")
        elif instance.alive:
            spark = _spark(instance, status, now)
            behind = "" if instance.serial >= status.serial else f", still at serial {instance.serial}"
            lines.append(f"Instance {instance.name}: alive (epoch {instance.epoch}{spark or behind})")
            if instance.replaced:
                lines.append(
                    "  warning[MZ243]: PySpark was replaced under its runner (now: "
                    f"{safe(instance.replaced)}): restart it, or tasks in Python fail"
                )
            if shortage := _shortage(instance, status):
                lines.append(f"  {shortage}")
        else:
            named = f"run --instance {safe(shlex.quote(instance.name))}"
            run = "up` or `run" if instance.is_embedded else named
            why = f"start one with `mzplan{which} {run}`"
            if instance.caught_up_at is not None:
                ago = _ago(now - instance.caught_up_at)
                why = f"the last one ended {ago}, when its queries had caught up"
            lines.append(f"Instance {instance.name}: no runner is alive ({why})")
            if instance.ended:
                lines.append(f"  {paragraph(instance.ended)}")
        if elsewhere := _elsewhere(instance, status):
            lines.append(f"  {elsewhere}")
    if not status.queries and not status.dropped:
        return (
            "\n".join([*lines, "", "No query is committed yet. Run `mzplan plan`, then `mzplan apply`."])
            + "\n"
        )
    queries = in_order(status.queries, by)
    if len(queries) > 1:
        lines.append(_counts(queries))
    rows = [COLUMNS, *(row(query, now) for query in queries)]
    lines.append("")
    for number, (cells, text) in enumerate(zip(rows, aligned_lines(rows), strict=True)):
        lines.append(paint(text, "bold") if number == 0 else _coloured(paint, cells[2], text))
    if stages := Counter(query.start_stage for query in status.queries if query.start_stage):
        lines += ["", f"Starting: {', '.join(f'{n} {stage}' for stage, n in sorted(stages.items()))}"]
    if status.dropped:
        lines += ["", _dropped(status.dropped)]
    for note in NOTES:
        lines += _merged_notes(queries, note)
    return "\n".join(lines) + "\n"


def _elsewhere(instance: InstanceStatus, status: ProjectStatus) -> str:
    """Return MZ341, unless the errors of queries already say it."""
    found, own = instance.elsewhere, (q for q in status.queries if q.resource.instance == instance.name)
    if found is None or any(observed(query).error_code == found.code for query in own):
        return ""
    return paragraph(f"error[{found.code}]: {found.summary}. {found.detail} Fix: {found.hint}")


def _spark(instance: InstanceStatus, status: ProjectStatus, now: float) -> str:
    """Return how Spark's start progresses, while a query waits for it."""
    if instance.opening_since is not None:
        return f"; Spark has been starting for {span(now - instance.opening_since)}"
    starts = any(q.start_stage is not None and q.resource.instance == instance.name for q in status.queries)
    return f"; Spark was ready after {span(instance.opened_in)}" if starts and instance.opened_in else ""


def _shortage(instance: InstanceStatus, status: ProjectStatus) -> str:
    """Return `33 queries share 2 cores; the slowest waits 40 s`, if it waits long; else ""."""
    if not instance.cores or (instance.slowest or 0.0) < SLOW_SECONDS:
        return ""
    own = [query for query in status.queries if query.resource.instance == instance.name]
    sharing = count(sum(query.condition in STARTED for query in own), "query", "queries")
    cores, wait = count(instance.cores, "core"), span(instance.slowest or 0.0)
    return (
        f"{sharing} share {cores}; the slowest waits {wait}: "
        "give the runner more cores, its queries longer trigger intervals, or some of them another instance"
    )


def _counts(queries: Sequence[QueryStatus]) -> str:
    """Format the queries by condition: `2 failed, 1 paused, 97 running`."""
    counts = Counter(query.condition for query in queries)
    return "Queries: " + ", ".join(f"{counts[name]} {name}" for name in ORDER if counts[name])


def _merged_notes(queries: Iterable[QueryStatus], note_of: Callable[[QueryStatus], str]) -> list[str]:
    """Return the note on each query. Queries with equal notes share one, with their names."""
    by_text: dict[str, list[str]] = {}
    for query in queries:
        if text := note_of(query):
            by_text.setdefault(text, []).append(str(query.resource.address))
    lines = []
    for text, names in by_text.items():
        lines += ["", f"{first_names(names, MAX_NAMED)}: {text}"]
    return lines


def _dropped(storage: tuple[DroppedStorage, ...]) -> str:
    """Return one line about dropped storage, however much there is."""
    names = [f"{dropped.address} g{dropped.generation}" for dropped in storage]
    shown, number = first_names(names, MAX_DROPPED), count(len(storage), "generation")
    return f"Dropped storage of {number}, kept until retain_dropped has passed: {shown}"


def row(query: QueryStatus, now: float) -> tuple[str, ...]:
    """Return the cells of a query, one for each of COLUMNS. `now` is in seconds since the epoch."""
    seen = observed(query)
    return (
        str(query.resource.address),
        query.resource.instance,
        query.condition,
        str(seen.step) if seen.step >= 0 else "-",
        f"{seen.total_rows:,}" if seen.total_rows is not None else "-",
        f"{seen.input_rows_per_second:.1f}" if query.observation else "-",
        _lag(query, now),
        _last_batch(seen, now),
        str(seen.failures) if seen.failures else "-",
        _next_try(seen, now),
    )


def _lag(query: QueryStatus, now: float) -> str:
    seen, unit = observed(query), lag_unit(query)
    if seen.lag is None or unit is None:
        return "-"
    steps = (seen.backlog or {}).get("steps", 0) if unit == "rows" else 0
    among = f" in {count(steps, 'step')}" if steps and seen.lag else ""
    text = (
        size(seen.lag) if unit == "bytes" else f"{seen.lag:,} {unit[:-1] if seen.lag == 1 else unit}{among}"
    )
    return text if query.as_of is None else f"{text}, {_ago(now - query.as_of)}"


def _last_batch(seen: Observation, now: float) -> str:
    if seen.last_batch_at is None:
        return "-"
    rows = f"{count(seen.last_rows, 'row')}, " if seen.last_rows is not None else ""
    return f"{rows}{_ago(now - seen.last_batch_at)}"


def _next_try(seen: Observation, now: float) -> str:
    if seen.retry_at is None:
        return "-"
    return f"in {span(seen.retry_at - now)}" if seen.retry_at > now else "now"


def _ago(seconds: float) -> str:
    return f"{span(seconds)} ago"


def _coloured(paint: Paint, condition: str, text: str) -> str:
    match condition:
        case "rejected" | "failed":
            return paint(text, "red")
        case "starting" | "paused" | "stopped":
            return paint(text, "yellow")
        case _:
            return text
