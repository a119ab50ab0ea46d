"""What `status` says of a query besides its row: errors, faults, warnings, state and tasks."""

from __future__ import annotations

from mzplan.model.cause import NEW
from mzplan.model.observed import MEASURES, Observation, RunFacts
from mzplan.model.state import QueryStatus, ResourceState
from mzplan.model.times import instant_text
from mzplan.model.words import count, size
from mzplan.render.cause_text import cause_in_words
from mzplan.render.text import paragraph, safe

STARTED = ("running", "degraded", "starting")


def observed(query: QueryStatus) -> Observation:
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


def lag_unit(query: QueryStatus) -> str | None:
    """Return the unit of the lag; None without a lag."""
    seen = observed(query)
    return seen.lag_unit if seen.lag is not None else None


def _error(query: QueryStatus) -> str:
    seen = observed(query)
    if not seen.error:
        return ""
    return f"{f'[{safe(seen.error_code)}] ' if seen.error_code else ''}{paragraph(seen.error)}"


def _backlog(query: QueryStatus) -> str:
    backlog = observed(query).backlog
    if not backlog or "retained_bytes" not in backlog:
        return ""
    behind, kept = size(backlog.get("lag_bytes", 0)), size(backlog.get("retained_bytes", 0))
    return f"{behind} of the server's log to read; its slot keeps {kept}"


def _held(query: QueryStatus) -> str:
    held = observed(query).held
    return f"held: {paragraph(held)}" if held else ""


def _waits(query: QueryStatus) -> str:
    """Return what a starting query waits for."""
    return (observed(query).waits or "") if query.condition == "starting" else ""


def _completed(query: QueryStatus) -> str:
    """Return why a query is stopped that has read what was there."""
    if not observed(query).completed:
        return ""
    return "has read what was there; runs again at the next start of the runner, or by `mzplan restart`"


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
    warning = observed(query).warning
    return f"warning {paragraph(warning)}" if warning else ""


def _written_with(query: QueryStatus) -> str:
    written_with = observed(query).written_with
    if written_with is None:
        return ""
    versions = safe(str(written_with))
    return f"its checkpoint was last written with {versions}; its runner has other versions (MZ045)"


def _function(query: QueryStatus) -> str:
    seen = observed(query)
    if not seen.function_before:
        return ""
    return f"its function is of {safe(seen.function)}; its last apply accepted {safe(seen.function_before)}"


def _left_out(query: QueryStatus) -> str:
    seen = observed(query)
    if not seen.left_out:
        return ""
    kept = query.resource.body.get("on_error") == "dead-letter"
    records = f"{seen.left_out:,} malformed record{'s' if seen.left_out > 1 else ''}"
    return f"{records} {'set aside' if kept else 'skipped'} since it was started"


def _violations(query: QueryStatus) -> str:
    """Return `3 rows violate positive, last in step 12`, one line for each violated expectation."""
    return "\n".join(
        f"{count(counted.rows, 'row violates', 'rows violate')} {name}, last in step {counted.last_step}"
        for name, counted in sorted(observed(query).violations.items())
        if counted.rows
    )


def _state(query: QueryStatus) -> str:
    """Return `state rows 1,234; state size 5.2 MiB; watermark …; late rows 3`, without zeros.

    Then follows what the watermark waits for.
    """
    seen = observed(query)
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
    seen = observed(query)
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
    cause = observed(query).started_because if query.condition in STARTED else None
    return f"started for {cause_in_words(cause)}" if cause is not None and cause.detail != NEW else ""


def _refreshed(query: QueryStatus) -> str:
    """Return how the last step of a current view computed its rows."""
    seen = observed(query)
    return f"step {seen.step} {safe(seen.refreshed)}" if seen.refreshed and seen.step >= 0 else ""


_PROBLEMS = (_error, _fault, _stale_inputs, _held, _waits, _warning)
NOTES = (
    _error,
    _fault,
    _stale_inputs,
    _backlog,
    _held,
    _completed,
    _warning,
    _left_out,
    _violations,
    _written_with,
    _function,
    _state,
    _refreshed,
    _tasks,
    _started,
)


def notes(query: QueryStatus) -> list[str]:
    """Return the notes on a query besides its row, one text for each."""
    return [text for note in NOTES if (text := note(query))]


def render_now(query: QueryStatus) -> str:
    """Format what keeps a query from delivering rows now: its error, its connection, or its inputs."""
    texts = [text for note in _PROBLEMS if (text := note(query))]
    if not texts:
        return ""
    indented = [f"  {line}" for text in texts for line in text.splitlines()]
    return "\n".join([f"Now it is {query.condition}:", *indented]) + "\n"
