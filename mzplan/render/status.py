"""`status`: every query, for people and as JSON."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any

from mzplan.model.address import natural, natural_item
from mzplan.model.cause import NEW
from mzplan.model.codec import encode
from mzplan.model.observed import MEASURES, Condition, Observation, RunFacts, Verdict
from mzplan.model.state import (
    Canary,
    DroppedStorage,
    InstanceStatus,
    ProjectStatus,
    QueryStatus,
    ResourceState,
)
from mzplan.model.times import instant_text
from mzplan.model.words import count, first_names, size, span
from mzplan.render.cause_text import cause_in_words, cause_to_json
from mzplan.render.resumption import task_to_json
from mzplan.render.text import Paint, aligned_lines, paragraph, safe

if TYPE_CHECKING:
    from mzplan.operations.connections import Reachability

_STARTED = ("running", "degraded", "starting")
MAX_DROPPED = 3  # dropped generations that are listed
SLOW_SECONDS = 15.0  # seconds; a shortage of cores is shown if the slowest query waits this long
MAX_NAMED = 8  # queries in one note
# Queries that need attention come first.
_ORDER: tuple[Condition, ...] = (
    "failed",
    "rejected",
    "stopped",
    "degraded",
    "starting",
    "paused",
    "running",
)
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


def _canary_to_json(canary: Canary, verdict: Verdict | None) -> dict[str, Any]:
    return {
        "address": str(canary.address),
        "serial": canary.serial,
        "wait": canary.wait,
        "holds": [str(held) for held in canary.holds],
        "verdict": "awaited" if verdict is None else "passed" if verdict.passed else verdict.condition,
        "reason": verdict.reason if verdict is not None and not verdict.passed else None,
    }


def query_to_json(query: QueryStatus) -> dict[str, Any]:
    seen, resource = _observed(query), query.resource
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
        "lag_unit": _unit(query),
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
        **({"tasks": _tasks_to_json(query)} if resource.own_tasks else {}),
        **({"task": encode(seen.task)} if seen.task is not None else {}),
    }


def _observed(query: QueryStatus) -> Observation:
    """Return the query's Observation; an empty one if no runner reports the query."""
    resource = query.resource
    return query.observation or Observation(
        address=resource.address,
        generation=resource.generation,
        digest="",
        wanted_digest="",
        wanted_generation=resource.generation,
        condition=query.condition,
    )


def _tasks_to_json(query: QueryStatus) -> list[dict[str, Any]]:
    """Return the tasks that the next request doesn't remove yet."""
    resource, seen = query.resource, query.observation
    outcomes = {outcome.serial: outcome for outcome in seen.tasks_done} if seen is not None else {}
    return [
        task_to_json(task, resource.has_done(task, seen), outcomes.get(task.serial))
        for task in resource.own_tasks
    ]


def _unit(query: QueryStatus) -> str | None:
    """Return the unit of the lag; None without a lag."""
    seen = _observed(query)
    return seen.lag_unit if seen.lag is not None else None


def has_failed(status: ProjectStatus) -> bool:
    """Whether a query failed, was rejected, can't reach a connection, or should run but doesn't yet."""
    starting = {instance.name for instance in status.instances if instance.is_starting}
    return any(
        query.condition in ("failed", "rejected", "degraded")
        or (
            (query.condition in ("stopped", "starting") or query.resource.instance in starting)
            and not query.resource.paused
        )
        for query in status.queries
    )


def in_order(queries: Iterable[QueryStatus], by: str) -> list[QueryStatus]:
    """Return the queries sorted by `name`, `condition`, `lag` or `rows`.

    By condition, queries that need attention come first. By lag or rows, the largest come first and queries
    without the number last.
    """

    def key(query: QueryStatus) -> tuple[float, str]:
        seen, rank = query.observation, 0.0
        if by == "condition":
            rank = _ORDER.index(query.condition)
        elif by != "name":
            number = None if seen is None else seen.lag if by == "lag" else seen.total_rows
            rank = inf if number is None else -number
        return rank, natural(query.resource.address)

    return sorted(queries, key=key)


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
            lines.append(
                f"Instance {instance.name}: no runner is alive (start one with `mzplan{which} {run}`)"
            )
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
    for note in _NOTES:
        lines += _merged_notes(queries, note)
    return "\n".join(lines) + "\n"


def _elsewhere(instance: InstanceStatus, status: ProjectStatus) -> str:
    """Return MZ341, unless the errors of queries already say it."""
    found, own = instance.elsewhere, (q for q in status.queries if q.resource.instance == instance.name)
    if found is None or any(_observed(query).error_code == found.code for query in own):
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
    sharing = count(sum(query.condition in _STARTED for query in own), "query", "queries")
    cores, wait = count(instance.cores, "core"), span(instance.slowest or 0.0)
    return (
        f"{sharing} share {cores}; the slowest waits {wait}: "
        "give the runner more cores, its queries longer trigger intervals, or some of them another instance"
    )


def _counts(queries: Sequence[QueryStatus]) -> str:
    """Format the queries by condition: `2 failed, 1 paused, 97 running`."""
    counts = Counter(query.condition for query in queries)
    return "Queries: " + ", ".join(f"{counts[name]} {name}" for name in _ORDER if counts[name])


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


def _error(query: QueryStatus) -> str:
    seen = _observed(query)
    if not seen.error:
        return ""
    return f"{f'[{safe(seen.error_code)}] ' if seen.error_code else ''}{paragraph(seen.error)}"


def _backlog(query: QueryStatus) -> str:
    backlog = _observed(query).backlog
    if not backlog or "retained_bytes" not in backlog:
        return ""
    behind, kept = size(backlog.get("lag_bytes", 0)), size(backlog.get("retained_bytes", 0))
    return f"{behind} of the server's log to read; its slot keeps {kept}"


def _held(query: QueryStatus) -> str:
    held = _observed(query).held
    return f"held: {paragraph(held)}" if held else ""


def _waits(query: QueryStatus) -> str:
    """Return what a starting query waits for."""
    return (_observed(query).waits or "") if query.condition == "starting" else ""


def _stale_inputs(query: QueryStatus) -> str:
    """Return `reads source.customers as of 2026-01-31T10:02:00Z, which has failed since`, one line each."""
    lines = []
    for stale in query.stale_inputs:
        through = f"{stale.through}, which reads " if stale.through is not None else ""
        as_of = f" as of {instant_text(int(stale.as_of) * 1000)}" if stale.as_of is not None else ""
        what = "which has failed" if stale.condition == "failed" else "whose connection is at fault"
        lines.append(f"reads {through}{stale.address}{as_of}, {what}{' since' if as_of else ''}")
    return "\n".join(lines)


def _warning(query: QueryStatus) -> str:
    warning = _observed(query).warning
    return f"warning {paragraph(warning)}" if warning else ""


def _written_with(query: QueryStatus) -> str:
    written_with = _observed(query).written_with
    if written_with is None:
        return ""
    versions = safe(str(written_with))
    return f"its checkpoint was last written with {versions}; its runner has other versions (MZ045)"


def _function(query: QueryStatus) -> str:
    seen = _observed(query)
    if not seen.function_before:
        return ""
    return f"its function is of {safe(seen.function)}; its last apply accepted {safe(seen.function_before)}"


def _dropped(storage: tuple[DroppedStorage, ...]) -> str:
    """Return one line about dropped storage, however much there is."""
    names = [f"{dropped.address} g{dropped.generation}" for dropped in storage]
    shown, number = first_names(names, MAX_DROPPED), count(len(storage), "generation")
    return f"Dropped storage of {number}, kept until retain_dropped has passed: {shown}"


def _left_out(query: QueryStatus) -> str:
    seen = _observed(query)
    if not seen.left_out:
        return ""
    kept = query.resource.body.get("on_error") == "dead-letter"
    records = f"{seen.left_out:,} malformed record{'s' if seen.left_out > 1 else ''}"
    return f"{records} {'set aside' if kept else 'skipped'} since it was started"


def _state(query: QueryStatus) -> str:
    """Return `state rows 1,234; state size 5.2 MiB; watermark …; late rows 3`, without zeros.

    Then follows what the watermark waits for.
    """
    seen = _observed(query)
    shown = [
        f"{measure.title[0].lower()}{measure.title[1:]} {measure.text(number)}"
        for name, measure in MEASURES.items()
        if measure.is_stateful and (number := getattr(seen, name))
    ]
    return "; ".join(filter(None, [*shown, awaited_rows(query.resource, seen)]))


def awaited_rows(resource: ResourceState, seen: RunFacts | None) -> str:
    """Return which rows a query's watermark waits for; "" if the query holds no rows back until then."""
    marks = resource.body.get("watermarks", {})
    if not marks or seen is None or not seen.state_rows or resource.body.get("output", "append") != "append":
        return ""
    columns = " and a later ".join(safe(f"{name}.{mark['column']}") for name, mark in marks.items())
    return f"the watermark waits for a later {columns}; rows that WHERE leaves out don't move it"


def _tasks(query: QueryStatus) -> str:
    """Return the work before a start, with how far it is, and the tasks that aren't done yet."""
    seen = query.observation
    current = seen.task if seen is not None and query.condition == "starting" else None
    waiting = [str(task) for task in query.resource.open_tasks(seen)]
    if current is not None:
        waiting = [title for title in waiting if title != current.title]
    lines = [f"its {title} is not done yet" for title in waiting]
    return "\n".join(safe(line) for line in ([str(current)] if current is not None else []) + lines)


def _fault(query: QueryStatus) -> str:
    """Return the connection that doesn't answer, and its fix."""
    seen = _observed(query)
    if seen.at_fault is None:
        return ""
    moved = f'if it has moved: mzplan alter "{query.repair}"' if query.repair else "look at its server."
    fix = paragraph(seen.fault_fix) if seen.fault_fix else moved
    again = "is repaired" if seen.fault_fix else "answers"  # with a fix, the server answers but refuses
    since = f"Since {instant_text(int(seen.fault_since) * 1000)}. " if seen.fault_since else ""
    return (
        f"error[MZ154]: {seen.at_fault} is at fault: {paragraph(seen.fault or '')}\n"
        f"  {since}The query continues as soon as the connection {again}.\n"
        f"  Fix: {fix}"
    )


def _started(query: QueryStatus) -> str:
    """Return why the query was last started; "" for its first start."""
    cause = _observed(query).started_because if query.condition in _STARTED else None
    return f"started for {cause_in_words(cause)}" if cause is not None and cause.detail != NEW else ""


_PROBLEMS = (_error, _fault, _stale_inputs, _held, _waits, _warning)
_NOTES = (
    _error,
    _fault,
    _stale_inputs,
    _backlog,
    _held,
    _warning,
    _left_out,
    _written_with,
    _function,
    _state,
    _tasks,
    _started,
)


def notes(query: QueryStatus) -> list[str]:
    """Return the notes on a query besides its row, one text for each."""
    return [text for note in _NOTES if (text := note(query))]


def render_now(query: QueryStatus) -> str:
    """Format what keeps a query from delivering rows now: its error, its connection, or its inputs."""
    texts = [text for note in _PROBLEMS if (text := note(query))]
    if not texts:
        return ""
    indented = [f"  {line}" for text in texts for line in text.splitlines()]
    return "\n".join([f"Now it is {query.condition}:", *indented]) + "\n"


def row(query: QueryStatus, now: float) -> tuple[str, ...]:
    """Return the cells of a query, one for each of COLUMNS. `now` is in seconds since the epoch."""
    seen = _observed(query)
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
    seen, unit = _observed(query), _unit(query)
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
